"""How memory and LM are mixed: the equations, tuned settings, traces, tuning, adaptors, n-gram tables."""

from nearlm.mixing.adapting import TRUSTED_TOKENS, Settings, examples_of, judged, traced
from nearlm.mixing.adaptor import NO_ADAPTOR, Adaptor, Gate, adaptor_folder, verify_adaptor
from nearlm.mixing.adaptor_network import DEFAULT_FEATURES, FEATURES, Shape, capped_lambda
from nearlm.mixing.adaptor_training import (
    DEFAULT_A,
    SHARES,
    SURE,
    Examples,
    Split,
    Training,
    best_constant,
    pruned_logp,
    split_rows,
    standard_error,
    train_network,
)
from nearlm.mixing.equations import found, log_p_knn, log_p_knn_vocabulary, mix, perplexity, warm_up
from nearlm.mixing.ngrams import MAX_N, Tokens, build_ngrams, last_tokens, verify_ngrams
from nearlm.mixing.traces import (
    SCORE_BATCH_TOKENS,
    LMTrace,
    Reading,
    TokenText,
    Trace,
    read_text,
    room_for_traces,
    trace_lm,
    trace_search,
)
from nearlm.mixing.tuning import Point, best_setting, best_settings, paper_setting, save_settings, tune
