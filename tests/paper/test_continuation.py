"""Exact match of the next tokens and of rare words, against counting by hand."""

import numpy as np
import pytest

from nearlm.paper.continuation import Predictions, Share, rare_words, runs, written
from nearlm.text import Framing, Reading, TextSource, read_text
from tiny import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def read(tokenizer, folder, *documents, window=16):
    return read_text(TextSource.from_strings(*documents), tokenizer, Reading(Framing((), ()), window, window), folder)


def test_runs_stay_in_their_window(tokenizer, tmp_path):
    text = read(tokenizer, tmp_path, "the licence grants rights to any person " * 4, "software free of charge " * 3)
    windows = np.repeat(np.arange(len(text.windows)), text.windows.targets)
    want = [list(range(i, i + 5)) for i in range(len(windows) - 4) if windows[i] == windows[i + 4]]
    assert runs(text, 5).tolist() == want and len(runs(text, 400)) == 0


def test_a_run_is_right_if_all_of_its_tokens_are(tokenizer, tmp_path):
    text = read(tokenizer, tmp_path, "the licence grants rights to any person " * 8, "software free of charge " * 9)
    hit = np.random.default_rng(0).random(len(text.targets)) < 0.8
    found = written(text, Predictions(np.zeros(len(hit)), hit), tokenizer)
    for length, share in ((5, found.next5), (10, found.next10)):
        rows = runs(text, length).tolist()
        assert share.count == len(rows) and share.share == pytest.approx(np.mean([all(hit[row]) for row in rows]))
        assert share.error > 0
    assert found.next20 == Share(0.0, 0.0, 0)  # no window has so many


def test_rare_words_take_several_tokens_and_count_once_per_document(tokenizer, tmp_path):
    documents = ("the zebra uses software and a zebra copies ox", "any zebra merges quokka software")
    text = read(tokenizer, tmp_path, *documents, window=64)
    words = [tokenizer.decode(text.targets[begin:end]).strip() for begin, end in rare_words(text, tokenizer).tolist()]
    want = []
    for one in documents:
        later = dict.fromkeys(one.split()[1:])  # what begins a document is given
        lengths = {word: len(tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) for word in later}
        want += [word for word in later if lengths[word] > 1 and len(word) >= 4]
    assert words == want and words.count("zebra") == 2 and "quokka" in words and "ox" not in words
    begin, end = rare_words(text, tokenizer)[-1]
    hit = np.zeros(len(text.targets), np.bool_)
    hit[begin:end] = True
    found = written(text, Predictions(np.zeros(len(hit)), hit), tokenizer).rare
    assert found.share == pytest.approx(1 / len(want)) and found.count == len(want)
    hit[end - 1] = False
    assert written(text, Predictions(np.zeros(len(hit)), hit), tokenizer).rare.share == 0
