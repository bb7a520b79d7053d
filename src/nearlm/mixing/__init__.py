"""How memory and LM are mixed: equations, traces, tuning, gates, n-grams of any length, and a memory ready for use."""

from nearlm.mixing.equations import back_off, log_weights, mix, mix_logs, perplexity, warm_up
from nearlm.mixing.gate import Gate, gate_files, verify_gate
from nearlm.mixing.gate_learning import examples_of, judge, search_only, trace_for
from nearlm.mixing.gate_network import FEATURES, Inputs, capped_lambda
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
from nearlm.mixing.memory import Memory
from nearlm.mixing.ngrams import MAX_N, build_ngrams, last_tokens, verify_ngrams
from nearlm.mixing.traces import LMTrace, Trace, cache_text, room_for_traces, trace_lm, trace_search, trace_text
from nearlm.mixing.tuning import Tuning, best_setting, best_settings, paper_setting, tune, tuned_at
