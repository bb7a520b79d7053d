"""How memory and LM are mixed: equations, traces, tuning, gates, n-grams of any length, and a memory ready for use."""

from nearlm.mixing.contexts import Contexts
from nearlm.mixing.editing import add, compact, forget
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
from nearlm.mixing.infinigram import MAX_LENGTH, InfiniGram, Matches, verify_infinigram
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.mixing.learning import Learned, catch_up, learn_all
from nearlm.mixing.memory import Memory
from nearlm.mixing.mixture import ALL_SOURCES, Mixture, mixture_files, untrained_mixture, verify_mixture
from nearlm.mixing.mixture_features import SOURCES, TEXT, Bools, Known, feature_groups, kind_of, parse_sources, store_of
from nearlm.mixing.mixture_training import (
    MixtureExamples,
    Samples,
    Searched,
    cross_fit,
    halves,
    mixture_examples,
    train_mixture,
)
from nearlm.mixing.ngrams import verify_ngrams
from nearlm.mixing.prediction import Prediction
from nearlm.mixing.samples import samples_wanted, trace_samples
from nearlm.mixing.several import join_memories, learn_together, open_memory
from nearlm.mixing.text_first import build_text_first
from nearlm.mixing.traces import (
    LMTrace,
    Trace,
    cache_text,
    room_for_traces,
    trace_lm,
    trace_search,
    trace_text,
    traces_in,
)
from nearlm.mixing.trained import search_hash, search_only, trace_for
from nearlm.mixing.tuning import Tuning, best_setting, best_settings, paper_setting, tune, tuned_at
