"""Load any causal LM, find its key tap, and run windows → keys, log-probabilities, statistics."""

from nearlm.model.lm import LM, PROBE_TOKENS, confidence_and_entropy, longest_window, tokenizer_fingerprint
from nearlm.model.pretrained import BUILT_IN, ModelSpec, choose_device, hushed, load_pretrained
from nearlm.model.tap import FFN, captured
