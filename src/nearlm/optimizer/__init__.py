"""The fastest memory within a perplexity budget, and the bench on which memories are measured."""

from nearlm.optimizer.bench import Bench, find_index, own_name, searches_per_second
from nearlm.optimizer.optimization import OVERHEAD, optimize
from nearlm.optimizer.points import Choice, Setup, mark_front
