"""The usual weights of a memory without keys that nobody trained: the longer what repeats, the more it counts."""

from dataclasses import dataclass

import numpy as np

from nearlm.base import Doubles, Floats
from nearlm.mixing.mixture_features import NGRAM, TEXT, Bools, column_of, experts_of

USUAL_SOURCES = (NGRAM, TEXT)
_LENGTHS = (2, 16)  # tokens of the suffix between which the ∞-gram's weight rises
_NGRAM = 0.75  # at most
_TEXT = 0.15
_LEAST_MATCH = 3  # tokens


@dataclass(frozen=True)
class UsualWeights:
    """Weights by length alone, in place of a network: of the suffix in the store's text, and of the match so far."""

    def frozen(self) -> "UsualWeights":
        """Return itself: there is nothing to learn."""
        return self

    def log_weights(self, features: Floats, there: Bools) -> Doubles:
        """Return the log weights of LM, ∞-gram and text so far, [n, 3]; -inf for those that are not there."""
        places = experts_of(USUAL_SOURCES)
        suffix = features[:, column_of(NGRAM, "length", USUAL_SOURCES)]
        match = features[:, column_of(TEXT, "length", USUAL_SOURCES)]
        weights = np.zeros(there.shape)
        weights[:, places[NGRAM]] = np.interp(suffix, _LENGTHS, (0, _NGRAM))[:, None]
        weights[:, places[TEXT]] = np.where(match >= _LEAST_MATCH, _TEXT, 0)[:, None]
        weights *= there
        weights[:, 0] = 1 - weights.sum(1)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(weights))
