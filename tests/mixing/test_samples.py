"""Text that the LM writes by itself as a text to learn from: framed, traced, kept."""

from dataclasses import replace

import numpy as np
import pytest

from nearlm.base import QUIET, OptionError, Reporter
from nearlm.mixing import learn_all, samples
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
        ends = list(document[1:]).count(reading.framing.separator[0])
        assert ends == (tuple(document[-1:]) == reading.framing.separator)  # one, or it was cut before its end
    assert {len(document) for document in documents} > {48 + len(reading.framing.bos), 64 + len(reading.framing.bos)}
    assert len(traced) == len(text.targets) == sum(len(document) - 1 for document in documents)


def test_what_was_written_is_kept(lm, store, monkeypatch):
    first = trace_samples(lm, store, 500, 7, QUIET)
    monkeypatch.setattr(samples, "write_pieces", lambda *_: pytest.fail("the LM wrote again"))
    again = trace_samples(lm, store, 500, 7, QUIET)
    np.testing.assert_array_equal(again.text.tokens, first.text.tokens)
    with pytest.raises(pytest.fail.Exception, match="wrote again"):
        trace_samples(lm, store, 500, 8, QUIET)


def test_a_piece_is_what_the_lm_wrote_and_no_end_is_added():
    pieces = np.array([[5, 6, 1, NOTHING], [5, 6, 7, 8], [5, 6, 7, 1], [2, NOTHING, NOTHING, NOTHING]], np.int32)
    text = samples._as_text(pieces, Reading(Framing((0,), (1,)), 8, 8))
    assert text.tokens.tolist() == [0, 5, 6, 1, 0, 5, 6, 7, 8, 0, 5, 6, 7, 1, 0, 2]
    assert text.bounds.tolist() == [0, 4, 9, 14, 16]


def test_how_much_is_written(lm, store):
    assert samples_wanted(10_000) == 4_000 and samples_wanted(10**6) == 20_000
    assert samples_wanted(10**6, 0) == 0 and samples_wanted(10, 400) == 400
    assert trace_samples(lm, store, 40, 0, QUIET) is None  # not a piece of each length


def test_pieces_do_not_run_into_each_other_in_a_store_whose_documents_do(lm, store, monkeypatch):
    packed = replace(store.reading(), pack=True)
    monkeypatch.setattr(type(store), "reading", lambda *_: packed)
    text = trace_samples(lm, store, 500, 7, QUIET).text
    assert len(text.targets) == len(text.tokens) - (len(text.bounds) - 1)


@pytest.mark.parametrize(("asked", "said"), [(-1, "`samples` is -1"), (300, "expected 0 for none, or at least 336")])
def test_too_few_are_refused_before_any_work(lm, tuned_store, valid_folder, asked, said, monkeypatch):
    monkeypatch.setattr("nearlm.mixing.learning.cache_text", lambda *_: pytest.fail("the text was read"))
    for stores in (tuned_store, [tuned_store, tuned_store]):
        with pytest.raises(OptionError, match=said):
            learn_all(stores, valid_folder, lm, samples=asked)


def test_an_lm_that_hardly_writes_anything_is_learned_from_the_text_alone(lm, tuned_store, valid_folder, monkeypatch):
    def write(lm, rows, length, *_):
        return np.array([[lm.tokenizer.eos_token_id, *[NOTHING] * (length - 1)]] * rows, np.int32)

    monkeypatch.setattr(samples, "write_pieces", write)
    said = []
    monkeypatch.setattr(Reporter, "say", lambda _, message: said.append(message))
    made = Mixture.train(tuned_store, valid_folder, lm, samples=400, seed=5, reporter=Reporter())
    assert made.info.samples == 0
    assert any("too few to learn from" in one for one in said)


def test_a_model_that_cannot_write_says_so(lm, store, monkeypatch):
    monkeypatch.setattr(samples, "can_write", lambda _: False)
    said = []
    monkeypatch.setattr(Reporter, "say", lambda _, message: said.append(message))
    assert trace_samples(lm, store, 400, 9, Reporter()) is None
    assert "cannot write text by itself" in said[0]


def test_other_end_tokens_make_other_pieces(lm, store, monkeypatch):
    trace_samples(lm, store, 500, 7, QUIET)
    monkeypatch.setattr(samples, "end_tokens", lambda _: (5,))
    monkeypatch.setattr(samples, "write_pieces", lambda *_: pytest.fail("written anew"))
    with pytest.raises(pytest.fail.Exception, match="written anew"):
        trace_samples(lm, store, 500, 7, QUIET)


def test_a_mixture_says_how_much_it_learned_from(lm, tuned_store, valid_folder):
    plain = Mixture.train(tuned_store, valid_folder, lm, name="plain", samples=0)
    taught = Mixture.train(tuned_store, valid_folder, lm, name="taught", samples=400)
    assert plain.info.samples == 0 and "own" not in plain.table()
    assert 200 < taught.info.samples <= 400 and f"and {taught.info.samples} of the model's own" in taught.table()
    assert plain.hash != taught.hash
    assert taught.info.held_tokens == plain.info.held_tokens and taught.info.constant == plain.info.constant
