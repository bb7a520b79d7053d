"""Text that the LM writes by itself as a text to learn from: framed, traced, kept."""

import numpy as np
import pytest

from nearlm.base import QUIET, OptionError
from nearlm.mixing import samples
from nearlm.mixing.mixture import Mixture
from nearlm.mixing.samples import samples_wanted, trace_samples
from nearlm.model.own_text import NOTHING
from nearlm.text import Framing, Reading


def test_pieces_are_documents_that_are_framed_as_the_stores(lm, store):
    traced = trace_samples(lm, store, 1000, 0, QUIET)
    text, reading = traced.text, store.reading()
    documents = np.split(text.tokens, text.bounds[1:-1])
    assert len(documents) == 3 * (1000 // (48 + 64 + 64))  # the store's windows have 64 tokens
    for document in documents:
        assert tuple(document[: len(reading.framing.bos)]) == reading.framing.bos
        assert tuple(document[-1:]) == reading.framing.separator
        assert list(document[1:]).count(reading.framing.separator[0]) == 1
    assert len(traced) == len(text.targets) == sum(len(document) - 1 for document in documents)


def test_what_was_written_is_kept(lm, store, monkeypatch):
    first = trace_samples(lm, store, 500, 7, QUIET)
    monkeypatch.setattr(samples, "write_pieces", lambda *_: pytest.fail("the LM wrote again"))
    again = trace_samples(lm, store, 500, 7, QUIET)
    np.testing.assert_array_equal(again.text.tokens, first.text.tokens)
    with pytest.raises(pytest.fail.Exception, match="wrote again"):
        trace_samples(lm, store, 500, 8, QUIET)


def test_an_end_is_not_doubled_and_nothing_is_no_token():
    pieces = np.array([[5, 6, 1, NOTHING], [5, 6, 7, 8], [5, 1, NOTHING, NOTHING]], np.int32)
    text = samples._as_text(pieces, Reading(Framing((0,), (1,)), 8, 8))
    assert text.tokens.tolist() == [0, 5, 6, 1, 0, 5, 6, 7, 8, 1, 0, 5, 1]
    assert text.bounds.tolist() == [0, 4, 10, 13]


def test_how_much_is_written(lm, store):
    assert samples_wanted(10_000) == 4_000 and samples_wanted(10**6) == 20_000
    assert samples_wanted(10**6, 0) == 0 and samples_wanted(10, 300) == 300
    with pytest.raises(OptionError, match="`samples` is -1"):
        samples_wanted(10, -1)
    assert trace_samples(lm, store, 40, 0, QUIET) is None  # not a piece of each length


def test_a_mixture_says_how_much_it_learned_from(lm, tuned_store, valid_folder):
    plain = Mixture.train(tuned_store, valid_folder, lm, name="plain", samples=0)
    taught = Mixture.train(tuned_store, valid_folder, lm, name="taught", samples=400)
    assert plain.info.samples == 0 and "own" not in plain.table()
    assert 200 < taught.info.samples <= 400 and f"and {taught.info.samples} of the model's own" in taught.table()
    assert plain.hash != taught.hash
    assert taught.info.held_tokens == plain.info.held_tokens and taught.info.constant == plain.info.constant
