"""Generation as a person sees it: the text as it comes, and each token explained on lines of their own."""

import json

import pytest

from nearlm.base import OptionError
from nearlm.cli.console import Generation, _streamer, choose_explained, format_explanation, write_continuation
from nearlm.cli.options import Output
from nearlm.knnlm import KNNLM, Explanation
from nearlm.store import Context, SearchSettings


def test_a_token_is_explained_with_its_nearest_contexts():
    far = Context("b.txt", 3, "x" * 80, "tail")
    nearest = [(0.5, Context("a.txt", 12, "the\n  licence ", " grants")), (12.25, far)]
    lines = format_explanation(Explanation(" grants", 0.125, 0.5, 0.3125, 0.5, nearest)).splitlines()
    assert lines[0] == "' grants'          p_LM 0.1250  p_kNN 0.5000  λ 0.50  p 0.3125"
    assert lines[1].split() == ["0.50", "…the", "licence", "→", "'", "grants'", "(a.txt,", "12)"]
    assert lines[2] == f"{'':6}   12.25  …{'x' * 60} → 'tail'  (b.txt, 3)" and len(lines) == 3
    assert "\n" not in format_explanation(Explanation("x", 1.0, 0.0, 1.0, 0.0, []))
    unsearched = format_explanation(Explanation("x", 1.0, 0.0, 1.0, 0.0, [], {"ngram": (0.25, 0.5)}))
    assert "p_kNN" not in unsearched and "∞-gram 0.25 of 0.5000" in unsearched


@pytest.fixture(scope="module")
def knnlm(text_store, lm):
    from nearlm.search import build_index
    from nearlm.store import Datastore

    build_index(Datastore.open(text_store), "flat")
    return KNNLM.load(text_store, lm, SearchSettings(lam=0.5))


def test_what_is_printed_is_the_continuation_streamed_or_not(knnlm, capsys):
    write_continuation(knnlm, "the licence", Generation(max_new_tokens=5))
    streamed = capsys.readouterr().out
    assert streamed.strip() == knnlm.generate("the licence", max_new_tokens=5, do_sample=False).strip()
    write_continuation(knnlm, "the licence", Generation(max_new_tokens=5, beams=2, explain=True))
    beams = capsys.readouterr().out
    expected = knnlm.generate("the licence", max_new_tokens=5, do_sample=False, num_beams=2)
    assert beams.startswith(f"{expected}\n\n") and beams.count("p_kNN") == 5


def test_the_seed_decides_a_sample(knnlm, capsys):
    def sampled(seed):
        write_continuation(knnlm, "the", Generation(max_new_tokens=12, sample=True, seed=seed))
        return capsys.readouterr().out

    assert sampled(3) == sampled(3) and len({sampled(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({}, {"do_sample": False}),
        ({"sample": True}, {"do_sample": True}),
        ({"temperature": 0.5}, {"do_sample": True, "temperature": 0.5}),
        ({"top_k": 0}, {"do_sample": True, "top_k": 0}),
        ({"top_p": 0.9, "beams": 2}, {"do_sample": True, "top_p": 0.9, "num_beams": 2}),
    ],
)
def test_sampling_options_are_those_of_transformers(given, passed):
    assert Generation(**given).options == {"max_new_tokens": 60, "num_beams": 1, **passed}


def test_sampling_from_one_token_is_greedy(knnlm, capsys):
    write_continuation(knnlm, "the licence", Generation(max_new_tokens=8, top_k=1, seed=5))
    sampled = capsys.readouterr().out
    write_continuation(knnlm, "the licence", Generation(max_new_tokens=8))
    assert sampled == capsys.readouterr().out


def explanation(number: int, gain: float) -> Explanation:
    return Explanation(str(number), 0.1, 0.5, 0.1 + gain, 0.5, [])


def test_tokens_that_owe_the_memory_most_are_explained_in_their_order():
    gains = [0.0, 0.5, -0.1, 0.2, 0.4]
    explained = [explanation(number, gain) for number, gain in enumerate(gains)]
    assert [one.token for one in choose_explained(explained, 3)] == ["1", "3", "4"]
    assert choose_explained(explained, None) == explained and choose_explained(explained, 0) == []


def test_what_is_left_out_of_an_explanation_is_counted(knnlm, capsys):
    write_continuation(knnlm, "the", Generation(max_new_tokens=30, explain=True))
    out = capsys.readouterr().out
    assert out.count("p_kNN") == 20 and out.endswith(
        "10 tokens that owe the memory less are left out; see --explain-all\n"
    )
    write_continuation(knnlm, "the", Generation(max_new_tokens=30, explain_all=True))
    out = capsys.readouterr().out
    assert out.count("p_kNN") == 30 and "left out" not in out


def test_json_has_prompt_text_tokens_and_the_explanation_if_asked(knnlm, capsys):
    write_continuation(knnlm, "the licence", Generation(max_new_tokens=5), Output(as_json=True))
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"prompt", "text", "tokens"} and found["prompt"] == "the licence"
    assert found["text"] == knnlm.generate("the licence", max_new_tokens=5, do_sample=False)
    assert knnlm.lm.tokenizer.decode(found["tokens"], skip_special_tokens=True) == found["text"]
    write_continuation(knnlm, "the", Generation(max_new_tokens=22, explain=True), Output(as_json=True))
    found = json.loads(capsys.readouterr().out)
    assert len(found["explanation"]) == 20 and found["left_out"] == 2
    assert found["explanation"][0]["nearest"][0][1]["document"] == "train.txt"


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"beams": 0},
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"seed": -1},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(OptionError, match=f"`{next(iter(wrong))}` is"):
        Generation(**wrong)


def test_a_generated_text_cannot_command_a_terminal(capsys):
    _streamer(None).on_finalized_text("one\x1b[2J\ttwo\n", stream_end=True)
    assert capsys.readouterr().out.startswith("one\\x1b[2J\ttwo\n")
