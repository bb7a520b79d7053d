"""The usual weights of a memory without keys: by length alone, from real contexts, and a distribution always."""

import itertools

import numpy as np

from nearlm.mixing.contexts import Contexts
from nearlm.mixing.infinigram import InfiniGram
from nearlm.mixing.mixture import Mixture
from nearlm.mixing.mixture_features import Known
from nearlm.mixing.usual import USUAL_SOURCES, UsualWeights


def expected(suffix: int, match: int) -> list[float]:
    """The rule in plain Python: of LM, ∞-gram and text so far."""
    ngram = 0.0 if suffix < 3 else min(0.75, 0.75 * (suffix - 2) / 14)
    text = 0.15 if match >= 3 else 0.0
    return [1 - ngram - text, ngram, text]


def longest_suffix(context: list[int], text: list[int], bounds: list[int]) -> int:
    """The longest end of a context that some document holds with a token after it."""
    documents = [text[begin:end] for begin, end in itertools.pairwise(bounds)]
    for length in range(len(context), 0, -1):
        wanted = context[-length:]
        if any(document[i : i + length] == wanted for document in documents for i in range(len(document) - length)):
            return length
    return 0


def longest_match(context: list[int]) -> int:
    """The longest end of a context that it holds before, at most 24 tokens."""
    found = 0
    for end in range(1, len(context)):
        length = 0
        while length < min(end, 24) and context[end - 1 - length] == context[-1 - length]:
            length += 1
        found = max(found, length)
    return found


def test_weights_follow_the_lengths_that_plain_python_finds(bare):
    text, bounds = bare.tokens[:].tolist(), bare.document_bounds.tolist()
    rng = np.random.default_rng(0)
    read = [*text[5:40], *rng.integers(0, 300, 4).tolist(), *text[10:24], *text[60:66], *text[5:18]]
    ends = np.arange(1, len(read) + 1)
    contexts = Contexts(np.asarray(read, np.int32), np.zeros(len(ends), np.int64), ends)
    count = len(ends)
    known = Known(np.full(count, 0.5), np.ones(count), np.full(count, 3, np.int32), contexts)
    mixture = Mixture.usual(bare)
    advice = mixture.weigh(known, mixture.ask(known), None, np.zeros(count, np.bool_))
    prefixes = [read[:end] for end in ends]
    lengths = [(longest_suffix(one, text, bounds), longest_match(one)) for one in prefixes]
    np.testing.assert_allclose(np.exp(advice.log_weights), [expected(*pair) for pair in lengths], atol=1e-6)
    suffixes = {suffix for suffix, _ in lengths}
    assert max(suffixes) >= 16 and min(suffixes) < 3 and any(match >= 3 for _, match in lengths)
    np.testing.assert_allclose(np.exp(advice.log_weights).sum(1), 1, atol=1e-12)


def test_what_is_not_there_weighs_nothing():
    features = np.full((2, 40), 20, np.float32)
    there = np.array([[True, True, False], [True, False, True]])
    weights = np.exp(UsualWeights().log_weights(features, there))
    np.testing.assert_allclose(weights, [[0.25, 0.75, 0], [0.85, 0, 0.15]], atol=1e-12)


def test_the_usual_mixture_needs_the_suffix_array_and_belongs_to_the_stores_model(bare, lm):
    mixture = Mixture.usual(bare)
    assert mixture.info.sources == USUAL_SOURCES and not mixture.searches and not mixture.info.better
    assert mixture.bytes == InfiniGram.open(bare).bytes
    mixture.check(None, mixture.info.settings, lm.fingerprint())
