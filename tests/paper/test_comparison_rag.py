"""RAG: what the LM reads, that nothing of what is predicted is in a query, and its scores."""

import numpy as np
import pytest
import torch

from nearlm.model.lm import LM
from nearlm.paper.comparison_rag import Passages, RagOptions, RagReader, candidates
from nearlm.paper.comparison_reading import reading_of
from nearlm.text import TextSource, read_text
from tiny import make_llama, make_text, make_tokenizer

pytest.importorskip("bm25s")


@pytest.fixture(scope="module")
def lm():
    return LM(make_llama(), make_tokenizer())


@pytest.fixture(scope="module")
def texts(lm, tmp_path_factory):
    def read(*documents):
        return read_text(
            TextSource.from_strings(*documents), lm.tokenizer, reading_of(lm), tmp_path_factory.mktemp("text")
        )

    return read(*(make_text(80, seed=seed) for seed in range(6))), read(
        *(make_text(60, seed=seed) for seed in (50, 51))
    )


def test_the_best_passage_is_the_one_with_the_words_of_the_query(lm, tmp_path):
    source = TextSource.from_strings("the quick zebra jumps", "a slow quokka sleeps", "software is free of charge")
    passages = Passages(lm.tokenizer, read_text(source, lm.tokenizer, reading_of(lm), tmp_path), 512)
    query = np.array(lm.tokenizer("where quokka lives")["input_ids"])
    (found,) = passages.find([query], 1)
    assert "quokka" in lm.tokenizer.decode(found[0])
    assert passages.find([np.array(lm.tokenizer("xylophone")["input_ids"])], 2) == [[]]
    assert passages.find([], 1) == []


def test_it_predicts_the_targets_of_the_text_with_passages_before_what_was_read(lm, texts):
    train, test = texts
    reader = RagReader(lm, Passages(lm.tokenizer, train, 16), RagOptions(16, 2, 32))
    found = reader.predict(test)
    covered = []
    for first, read, length in reader.inputs(test):
        with torch.inference_mode():
            log_p = lm.model(input_ids=torch.from_numpy(np.asarray(read, np.int64))[None]).logits[0].log_softmax(-1)
        rows = slice(first, first + length)
        want = log_p[-length:].gather(1, torch.from_numpy(test.targets[rows].astype(np.int64))[:, None])[:, 0]
        np.testing.assert_allclose(found.logp[rows], want, atol=1e-4)
        assert (found.hit[rows] == (log_p[-length:].argmax(1).numpy() == test.targets[rows])).all()
        covered += range(first, first + length)
    assert covered == list(range(len(test.targets)))
    reader.pass_over(test)


def test_what_is_predicted_changes_no_input_before_it(lm, texts):
    """Other targets in the second half of a document leave everything that was read in the first as it was."""
    train, test = texts
    passages = Passages(lm.tokenizer, train, 16)
    changed = test.tokens.copy()
    middle = int(test.bounds[1]) // 2
    changed[middle : test.bounds[1]] = test.tokens[middle : test.bounds[1]][::-1]
    other = type(test)(changed, test.bounds, test.windows, "other")
    reader = RagReader(lm, passages, RagOptions(16, 1, 16))
    places = test.windows.target_positions
    seen = 0
    for (first, read, length), (_, same, _) in zip(reader.inputs(test), reader.inputs(other), strict=True):
        if places[first] <= middle < test.bounds[1]:
            shown = len(read) - length + 1  # up to the first target of the stretch
            assert read[:shown].tolist() == same[:shown].tolist()
            seen += 1
    assert seen > 2


def test_a_passage_is_cut_where_the_model_reads_no_more(texts):
    lm = LM(make_llama(max_position_embeddings=48), make_tokenizer())
    train, _ = texts
    source = TextSource.from_strings(make_text(60, seed=50))
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        test = read_text(source, lm.tokenizer, reading_of(lm), Path(folder))
        reader = RagReader(lm, Passages(lm.tokenizer, train, 32), RagOptions(32, 2, 16))
        lengths = [len(read) for _, read, _ in reader.inputs(test)]
    assert max(lengths) == 48


def test_candidates_are_different_and_the_usual_one_is_first():
    found = candidates()
    assert found[0] == RagOptions() and len(found) == len(set(found)) == 18
    assert found[0].label == "1 × 128 tokens for every 128"
