"""From a text to a ready memory; the fastest within a perplexity budget; the bench on which memories are measured."""

from nearlm.optimizer.bench import Bench, find_index, own_name, searches_per_second
from nearlm.optimizer.continuations import WRITING
from nearlm.optimizer.fit_plan import FitOptions
from nearlm.optimizer.fit_record import Fit, verify_fit
from nearlm.optimizer.fitting import fit
from nearlm.optimizer.optimization import OVERHEAD, optimize
from nearlm.optimizer.points import Choice, Setup, mark_front
