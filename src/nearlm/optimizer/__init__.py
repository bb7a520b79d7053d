"""The fastest memory within a perplexity budget."""

from nearlm.optimizer.measuring import (
    AUTO,
    PAPER,
    TIMED,
    adaptor_seconds,
    index_of,
    known_index,
    own_name,
    quiet_steps,
    searches_per_second,
    unbeaten,
)
from nearlm.optimizer.optimization import optimize
from nearlm.optimizer.points import Choice
