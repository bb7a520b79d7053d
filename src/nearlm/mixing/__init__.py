"""How memory and LM are mixed: equations, traces, tuning, gates, n-grams of any length, and a memory ready for use."""

from nearlm.mixing.contexts import Contexts
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.gate import Gate, gate_files, verify_gate
from nearlm.mixing.gate_learning import Looked, Ways, examples_of, judge
from nearlm.mixing.gate_network import FEATURES, GateNetwork, Inputs, capped_lambda
from nearlm.mixing.gate_training import (
    SHARES,
    SURE,
    TRUSTED_TOKENS,
    Examples,
    Split,
    Training,
    best_constant,
    split_rows,
    standard_error,
    train_network,
)
from nearlm.mixing.infinigram import MAX_LENGTH, InfiniGram, Matches, build_infinigram, verify_infinigram
from nearlm.mixing.learning import Learned, learn_all
from nearlm.mixing.memory import Memory
from nearlm.mixing.mixture import ALL_SOURCES, Mixture, mixture_files, untrained_mixture, verify_mixture
from nearlm.mixing.mixture_features import SOURCES, Bools, Known, feature_groups
from nearlm.mixing.mixture_training import (
    MixtureExamples,
    Searched,
    cross_fit,
    halves,
    mixture_examples,
    train_mixture,
)
from nearlm.mixing.ngrams import verify_ngrams
from nearlm.mixing.prediction import Prediction
from nearlm.mixing.traces import LMTrace, Trace, cache_text, room_for_traces, trace_lm, trace_search, trace_text
from nearlm.mixing.trained import search_hash, search_only, trace_for
from nearlm.mixing.tuning import Tuning, best_setting, best_settings, paper_setting, tune, tuned_at
