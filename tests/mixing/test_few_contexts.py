"""A mixture of a few contexts is that of many, to the bit: what sources propose, and the weights."""

import itertools

import numpy as np
import pytest
import torch
from test_candidates import FakeInfiniGram, as_dict

from nearlm.mixing.advice import there_of
from nearlm.mixing.candidates import from_neighbors, from_text
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.few_contexts import few_from_infinigram, few_from_text, few_log_weights, few_neighbors, few_proposals
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.mixing.mixture_features import KNN, NGRAM, SOURCES, TEXT, Known, Proposal, features_of, propose
from nearlm.mixing.mixture_network import network_of
from nearlm.search import Neighbors
from nearlm.store import Datastore

ROWS = 20  # more than one chunk of rows
COMBINATIONS = [one for size in (1, 2, 3) for one in itertools.combinations(SOURCES, size)]


def neighbors(rows, weighted=False):
    rng = np.random.default_rng(rows)
    tokens = rng.integers(-1, 9, (rows, 30)).astype(np.int32)
    tokens[:1] = -1  # a search that found nothing
    weights = rng.integers(1, 5, tokens.shape).astype(np.int32) if weighted else None
    return Neighbors(rng.uniform(0, 9, tokens.shape).astype(np.float32), tokens, weights, None)


def contexts_of(store, rows):
    text = np.asarray(store.tokens[:400], np.int32).copy()
    ends = np.append(np.linspace(1, 400, rows - 1).astype(np.int64), 0)  # one is empty
    return Contexts(text, np.maximum(0, ends - 150), ends)


def assert_same(few, many):
    np.testing.assert_array_equal(few.counts, many.counts)
    np.testing.assert_array_equal(few.favourites, many.favourites)
    np.testing.assert_array_equal(few.largest, many.largest)
    np.testing.assert_array_equal(few.measures, many.measures)
    for row, expert in itertools.product(range(len(few.counts)), range(few.p.shape[1])):
        assert as_dict(few, row, expert) == as_dict(many, row, expert)


@pytest.mark.parametrize("weighted", [False, True])
def test_neighbours(weighted):
    near = neighbors(ROWS, weighted)
    assert_same(few_neighbors(near, 2.0), from_neighbors(near, 2.0))


def test_suffixes_and_the_text_so_far(tuned_store):
    opened = Datastore.open(tuned_store)
    contexts = contexts_of(opened, ROWS)
    infinigram = build_infinigram(opened)
    known = Known(np.ones(ROWS, np.float32), np.ones(ROWS, np.float32), np.zeros(ROWS, np.int32), contexts)
    few = few_proposals((NGRAM, TEXT), known, infinigram)
    many = propose((NGRAM, TEXT), known, infinigram)
    assert few[NGRAM].candidates.counts.sum() > ROWS and few[TEXT].candidates.counts.sum() > ROWS
    for name in (NGRAM, TEXT):
        assert_same(few[name].candidates, many[name].candidates)
    assert few_proposals((KNN,), known, None) == {}


def test_contexts_that_lead_outside_their_text_are_refused(tuned_store):
    wrong = Contexts(np.zeros(4, np.int32), np.zeros(1, np.int64), np.full(1, 9))
    with pytest.raises(ValueError, match="lead outside"):
        few_from_infinigram(build_infinigram(tuned_store), wrong)


@pytest.mark.parametrize("sources", COMBINATIONS)
@pytest.mark.parametrize("searched", ["all", "some", "none"])
def test_weights(sources, searched):
    rng = np.random.default_rng(5)
    text = rng.integers(0, 9, 300).astype(np.int32)
    ends = np.arange(1, ROWS + 1, dtype=np.int64) * 10
    contexts = Contexts(text, np.maximum(0, ends - 60), ends)
    conf = rng.uniform(1e-8, 1, ROWS).astype(np.float32)
    known = Known(conf, -np.log(conf), rng.integers(0, 9, ROWS).astype(np.int32), contexts)
    rows = {"all": np.arange(ROWS), "some": np.arange(0, ROWS, 3), "none": np.arange(0)}[searched]
    found = dict(propose(sources, known, FakeInfiniGram([9, *text, 9])))
    if KNN in sources and len(rows):
        found[KNN] = Proposal(rows, few_neighbors(neighbors(len(rows)), 2.0))
    torch.manual_seed(1)
    weigher = network_of(sources).frozen()
    expected = weigher.log_weights(features_of(sources, known, found), there_of(sources, found, ROWS))
    np.testing.assert_array_equal(few_log_weights(sources, known, found, weigher), expected)
    np.testing.assert_allclose(np.exp(expected).sum(1), 1, rtol=1e-6)


def test_nothing_read_proposes_nothing():
    nothing = Contexts(np.zeros(1, np.int32), np.zeros(2, np.int64), np.zeros(2, np.int64))
    assert few_from_text(nothing).counts.tolist() == from_text(nothing).counts.tolist() == [0, 0]
