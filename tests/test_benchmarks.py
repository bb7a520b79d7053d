"""Benchmarks say what they do when asked, and one of them runs at a tiny size; their numbers are no test."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from calls import build, build_index
from nearlm.base import QUIET
from nearlm.knnlm import KNNLM, Attachment
from nearlm.knnlm.draft_votes import Chain
from nearlm.mixing import Memory, build_infinigram
from nearlm.store import SearchSettings
from nearlm.text import TextSource, read_once
from tiny import make_text

FOLDER = Path(__file__).parent.parent / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name, *arguments):
    sys.argv = [name, *arguments]
    load(name).main()


@pytest.fixture(autouse=True)
def _own_arguments(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmark"])
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_a_benchmark_says_what_it_does(name, capsys):
    with pytest.raises(SystemExit) as left:
        run(name, "--help")
    assert left.value.code == 0 and "usage: " in capsys.readouterr().out


def test_merging_is_measured(capsys):
    with pytest.raises(SystemExit):
        run("merge_speed", "--records", "2000", "--search-records", "400", "--dim", "16", "--json")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"speedup", "search_ratio"} <= found.keys() and 0 < found["kept"] <= 1


def test_the_bounds_within_which_a_token_is_written_are_those_of_the_argmax():
    bounds_of = load("writing").bounds_of
    draw = torch.Generator().manual_seed(0)
    p_lm = torch.rand(400, 7, generator=draw, dtype=torch.float64)
    memory = torch.rand(400, 7, generator=draw, dtype=torch.float64)
    memory *= torch.rand(400, 7, generator=draw) < 0.4  # a memory proposes few tokens
    targets = torch.randint(0, 7, (400,), generator=draw)
    low, high = bounds_of(p_lm, memory, targets)
    for raised in (0.01, 0.3, 1.0, 2.0, 20.0):
        likeliest = (p_lm + raised * memory).argmax(1)
        assert ((low < raised) & (raised < high)).tolist() == (likeliest == targets).tolist()


@pytest.mark.parametrize("keys", ["all", "none"])
def test_one_pass_tells_what_greedy_decoding_writes(lm, tmp_path, keys):
    writing = load("writing")
    text = tmp_path / "text.txt"
    text.write_text(make_text(60))
    store = build(lm, str(text), tmp_path / "store", window=64, quiet=True, keys=keys)
    settings = [SearchSettings()]  # of a memory without keys: LM, ∞-gram and the text so far
    if keys == "none":
        build_infinigram(store)
    else:
        build_index(store, "flat", quiet=True)
        raised = 0.2 * np.exp(1.5) / (0.8 + 0.2 * np.exp(1.5))
        settings = [SearchSettings(lam=lam, knn_temperature=1.0, k=8) for lam in (0.2, raised)]
    text.write_text(make_text(14) + make_text(60, seed=1))  # the store knows its beginning
    memories = [Memory.open(store, one) for one in settings]
    with read_once(str(text), lm.tokenizer, store.reading()) as tokens:
        found = writing.read(lm, tokens, {"one": memories[0]}, QUIET)
        ids = torch.from_numpy(np.array(tokens.tokens[:65], np.int64))[None]
    runs = found.runs(3)
    assert (np.diff(runs) == 1).all() and (np.diff(found.windows[runs]) == 0).all()
    for memory, leaning in zip(memories, (0.0, 1.5), strict=False):
        expected = found.exact("one", leaning, 3)
        with Attachment(lm, memory) as model:
            for place in range(0, 62, 2):
                prompt = ids[:, : place + 1]
                new = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=3, do_sample=False)
                assert (new[0].tolist() == ids[0, : place + 4].tolist()) == bool(expected[place]), (leaning, place)
        assert 0 < expected[:62:2].sum() < 31


def test_drafting_is_measured(lm, tmp_path, monkeypatch, capsys):
    speed = load("generation_speed")
    monkeypatch.setattr(speed, "PROMPT_TOKENS", 12)
    (tmp_path / "text.txt").write_text(make_text(60))
    store = build(lm, str(tmp_path / "text.txt"), tmp_path / "store", window=64, quiet=True)
    build_index(store, "flat", quiet=True)
    knnlm = KNNLM.load(store, lm, SearchSettings(lam=0.5, knn_temperature=1.0, k=8))
    prompts = speed.prompts_of(store, TextSource((str(tmp_path / "text.txt"),)), 2, 8)
    runs = speed.measure(
        knnlm, dict(enumerate(prompts)), 8, list(speed.VARIANTS), tmp_path / "kept.jsonl", speed.costs_of("1:5,17:5")
    )
    assert len(prompts) == 1 and len(prompts[0]) == 12 and {one.variant for one in runs} == set(speed.VARIANTS)
    again = speed.kept(tmp_path / "kept.jsonl")
    assert [one.tokens for one in again] == [one.tokens for one in runs]
    plain = next(one for one in again if one.variant == speed.PLAIN)
    assert plain.passes == 8 and all(passes[0] == 8 for passes in plain.replayed.values())
    drafting = next(one for one in again if one.variant == speed.DRAFTS)
    assert sum(written for _, written in drafting.drafts) == 8 and len(drafting.drafts) == drafting.passes
    assert speed.table(again)[2].startswith("| LM alone |") and len(speed.by_length(again)) == 2 + 4 + 3 + 4
    together = speed.write_together(knnlm, prompts, 8, speed.costs_of("1:4,2:5,16:12"))
    assert together[0].tokens == plain.tokens
    assert {name: found[:9] for name, found in together[0].replayed.items()} == {
        name: found[:9] for name, found in plain.replayed.items()
    }


def test_passes_are_counted_as_drafts_are_accepted():
    speed = load("generation_speed")
    tokens = [3, 4, 5, 6, 7, 8, 9]

    def chain(*drafted):
        return Chain(np.array(drafted, np.int32), np.zeros(len(drafted), np.int32), np.ones(len(drafted)))

    chains = [chain(4, 5, 0), chain(), chain(), chain(7, 8, 9, 1), chain(), chain(), chain()]
    assert speed.passes_of(chains, tokens, lambda _: 0) == [(0, 1)] * 7
    assert speed.passes_of(chains, tokens, lambda _: 4) == [(0, 1), (3, 3), (2, 3)], "the last token is not drafted"
    assert speed.passes_of(chains, tokens, lambda _: 1) == [(0, 1), (1, 2), (0, 1), (1, 2), (0, 1)]
    learned = []
    speed.passes_of(chains, tokens, lambda _: 4, lambda chain, drafted, written: learned.append(written.tolist()))
    assert learned == [[4, 5, 6], [7, 8, 9]]
    assert speed.costs_of("1:4,3:8").tolist() == [1.0, 1.5, 2.0]


def test_an_answer_is_a_tie_only_where_it_first_differs():
    serve_load = load("serve_load")
    expected = serve_load.Answer(200, ids=[1, 2, 3])
    sure = [1.0, serve_load.TIE / 2, 1.0]
    assert serve_load.is_tie(expected, sure, [1, 9, 9])
    for wrong in ([9, 2, 3], [1, 2, 9], [1, 2], []):
        assert not serve_load.is_tie(expected, sure, wrong)
