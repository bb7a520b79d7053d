"""Figures and one page of what was measured; figures need matplotlib, which is imported only when one is drawn."""

from nearlm.paper.report.figures import ablation_figure, sweep_figure
from nearlm.paper.report.page import write_report
from nearlm.paper.report.plotting import check_figure, save
