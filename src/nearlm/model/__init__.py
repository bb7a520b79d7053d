"""Load any causal LM, find its key tap, and run windows → keys, log-probabilities, statistics.

The modules `lm`, `pretrained` and `tap` are imported by their names, since they need torch.
"""

from nearlm.model.spec import BUILT_IN, FFN, ModelSpec
