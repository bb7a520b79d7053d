"""Features of a mixture: where they stand, what is zero without a search, and how far sources agree."""

import numpy as np
import pytest

from nearlm.base.errors import OptionError
from nearlm.mixing.candidates import from_neighbors, from_text
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.mixture_features import (
    KNN,
    NGRAM,
    TEXT,
    Known,
    Proposal,
    column_of,
    columns_with,
    experts_of,
    feature_groups,
    features_of,
    parse_sources,
    propose,
    suffix_features,
    width_of,
)
from nearlm.search import Neighbors


def known_of(tokens, count):
    contexts = Contexts.of_text(np.asarray(tokens, np.int32), np.array([0, len(tokens)]), np.arange(1, count + 1))
    rng = np.random.default_rng(0)
    return Known(rng.uniform(size=count), rng.uniform(size=count), np.full(count, 4, np.int32), contexts)


def neighbors(rows, k=6, seed=0):
    rng = np.random.default_rng(seed)
    distances = rng.uniform(0, 9, (rows, k)).astype(np.float32)
    return Neighbors(distances, rng.integers(0, 6, (rows, k)).astype(np.int32), None, None)


def logit(p):
    return np.log((p + 1e-3) / (1 - p + 1e-3))


@pytest.mark.parametrize("sources", [(KNN,), (TEXT,), (KNN, TEXT)])
def test_there_are_as_many_as_it_says_and_a_search_changes_just_its_own(sources):
    known = known_of([1, 2, 1, 2, 1, 2, 3, 1], 7)
    without = propose(sources, known, None)
    found = {KNN: Proposal(np.arange(7), from_neighbors(neighbors(7), 2.0)), **without} if KNN in sources else without
    features = features_of(sources, known, found)
    assert features.shape == (7, width_of(sources)) and np.isfinite(features).all()
    skipped = features_of(sources, known, without)
    own = columns_with(KNN, sources)
    expected = features.copy()
    expected[:, own] = 0
    np.testing.assert_array_equal(skipped, expected)


def test_agreement_is_what_each_gives_to_the_others_favourite():
    known = known_of([4, 5, 4, 5, 4], 5)
    sources = (KNN, TEXT)
    near = from_neighbors(neighbors(5), 2.0)
    text = from_text(known.contexts)
    features = features_of(sources, known, {KNN: Proposal(np.arange(5), near), TEXT: Proposal(np.arange(5), text)})
    copied = text.favourites
    p_text = text.p_of(near.favourites)[:, 0]
    p_near = near.p_of(copied)[:, 2]
    np.testing.assert_allclose(features[:, -1], np.where(text.counts > 0, logit(p_text), 0), rtol=1e-4)
    np.testing.assert_allclose(features[:, -2], np.where(copied >= 0, logit(p_near), 0), rtol=1e-4)
    conf = np.asarray(known.conf)
    np.testing.assert_allclose(features[:, :3], np.stack([conf, np.log(conf), known.ent], 1), rtol=1e-5)
    width = 3 + 2 + 6 + 2 * 5
    np.testing.assert_allclose(features[:, 3:5], np.stack([np.ones(5), np.log1p(near.counts)], 1), rtol=1e-5)
    np.testing.assert_allclose(features[:, 5:11], near.measures, rtol=1e-5)
    np.testing.assert_allclose(features[:, 11:16], logit(near.largest), rtol=1e-4)
    np.testing.assert_allclose(features[:, 16:width], logit(near.p_of(known.top)), rtol=1e-4)


def test_only_those_that_retrieved_have_neighbours():
    known = known_of([1, 2, 3, 4, 5], 4)
    rows = np.array([1, 3])
    found = {KNN: Proposal(rows, from_neighbors(neighbors(2), 1.0))}
    features = features_of((KNN,), known, found)
    assert (features[[0, 2], 3:] == 0).all() and (features[rows, 3] == 1).all()


def test_sources_are_named_in_any_order():
    assert parse_sources("text, knn") == (KNN, TEXT) and parse_sources("ngram") == (NGRAM,)
    for wrong in ("", "knn,knn", "lm"):
        with pytest.raises(OptionError, match="some of knn,ngram,text"):
            parse_sources(wrong)
    assert experts_of((KNN, NGRAM, TEXT)) == {KNN: slice(1, 6), NGRAM: slice(6, 7), TEXT: slice(7, 8)}


def test_what_is_not_asked_for_stands_there_as_nothing():
    known = Known.of(None, None, 3)
    assert len(known) == 3 and known.top.tolist() == [-1] * 3 and known.contexts.last(1).tolist() == [[-1]] * 3


def test_suffix_features_are_of_the_infinigram_alone():
    from test_candidates import FakeInfiniGram

    known = known_of([1, 2, 3], 2)
    found = propose((NGRAM,), known, FakeInfiniGram([9, 4, 4, 5, 9]))
    expected = [[3, np.log(3), logit(2 / 3), logit(2 / 3)]] * 2
    np.testing.assert_allclose(suffix_features(known, found), expected, rtol=1e-4)


def test_a_feature_is_found_by_its_name():
    tokens = [1, 2, 3, 1, 2, 3, 1, 2]
    known = known_of(tokens, 7)
    for sources in ((TEXT,), (KNN, TEXT)):
        found = propose(sources, known, None)
        features = features_of(sources, known, found)
        candidates = found[TEXT].candidates
        np.testing.assert_array_equal(features[:, column_of(TEXT, "length", sources)], candidates.measures[:, 0])
        np.testing.assert_array_equal(features[:, column_of(TEXT, "some", sources)], candidates.counts > 0)
        np.testing.assert_allclose(features[:, column_of(TEXT, "count", sources)], np.log1p(candidates.counts))


def test_every_feature_is_in_one_group_and_each_group_holds_what_it_says():
    known = known_of([4, 5, 4, 5, 4], 5)
    sources = (KNN, TEXT)
    near = from_neighbors(neighbors(5), 2.0)
    text = from_text(known.contexts)
    features = features_of(sources, known, {KNN: Proposal(np.arange(5), near), TEXT: Proposal(np.arange(5), text)})
    groups = feature_groups(sources)
    assert sorted(np.concatenate(list(groups.values()))) == list(range(width_of(sources)))
    there = (text.counts > 0)[:, None]
    counted = [np.log1p(one.counts)[:, None] for one in (near, text)]
    expected = {
        "lm": [np.stack([known.conf, np.log(known.conf), known.ent], 1)],
        "measures": [np.ones((5, 1)), counted[0], near.measures, there, counted[1], text.measures],
        "largest": [logit(near.largest), there * logit(text.largest)],
        "top": [logit(near.p_of(known.top)), there * logit(text.p_of(known.top))],
        "agreement": [features[:, -2:]],
    }
    assert list(groups) == list(expected)
    for group, columns in expected.items():
        np.testing.assert_allclose(features[:, groups[group]], np.hstack(columns), rtol=1e-4, err_msg=group)
    for alone in ((KNN,), (NGRAM,), (TEXT,)):
        assert len(feature_groups(alone)["agreement"]) == 0
