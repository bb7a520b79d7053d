"""Generation as a person sees it: the text as it comes, and each token explained on lines of their own."""

import pytest

from nearlm.base import OptionError
from nearlm.cli.console import format_explanation, write_continuation
from nearlm.knnlm import KNNLM, Explanation
from nearlm.store import Context, SearchSettings

OPTIONS = {"chat": False, "seed": 0, "explain": False, "max_new_tokens": 5, "do_sample": False, "num_beams": 1}


def test_a_token_is_explained_with_its_nearest_contexts():
    far = Context("b.txt", 3, "x" * 80, "tail")
    nearest = [(0.5, Context("a.txt", 12, "the\n  licence ", " grants")), (12.25, far)]
    lines = format_explanation(Explanation(" grants", 0.125, 0.5, 0.3125, 0.5, nearest)).splitlines()
    assert lines[0] == "' grants'          p_LM 0.1250  p_kNN 0.5000  λ 0.50  p 0.3125"
    assert lines[1].split() == ["0.50", "…the", "licence", "→", "'", "grants'", "(a.txt,", "12)"]
    assert lines[2] == f"{'':6}   12.25  …{'x' * 60} → 'tail'  (b.txt, 3)" and len(lines) == 3
    assert "\n" not in format_explanation(Explanation("x", 1.0, 0.0, 1.0, 0.0, []))


@pytest.fixture(scope="module")
def knnlm(text_store, lm):
    from nearlm.search import build_index
    from nearlm.store import Datastore

    build_index(Datastore.open(text_store), "flat")
    return KNNLM.load(text_store, lm, SearchSettings(lam=0.5))


def test_what_is_printed_is_the_continuation_streamed_or_not(knnlm, capsys):
    write_continuation(knnlm, "the licence", **OPTIONS)
    streamed = capsys.readouterr().out
    assert streamed.strip() == knnlm.generate("the licence", max_new_tokens=5, do_sample=False).strip()
    write_continuation(knnlm, "the licence", **{**OPTIONS, "num_beams": 2, "explain": True})
    beams = capsys.readouterr().out
    expected = knnlm.generate("the licence", max_new_tokens=5, do_sample=False, num_beams=2)
    assert beams.startswith(f"{expected}\n\n") and beams.count("p_kNN") == 5


def test_the_seed_decides_a_sample(knnlm, capsys):
    def sampled(seed):
        write_continuation(knnlm, "the", **{**OPTIONS, "do_sample": True, "max_new_tokens": 12, "seed": seed})
        return capsys.readouterr().out

    assert sampled(3) == sampled(3) and len({sampled(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize("wrong", [{"max_new_tokens": 0}, {"num_beams": 0}])
def test_nothing_to_generate_is_refused(knnlm, wrong):
    with pytest.raises(OptionError, match="at least 1"):
        write_continuation(knnlm, "the", **{**OPTIONS, **wrong})
