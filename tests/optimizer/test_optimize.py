"""`optimize`: what it estimates and chooses, that its store is ready to use, and that it goes on after a kill."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from calls import build, evaluate, load_knnlm
from conftest import make_text
from nearlm.base import from_json, jobs, to_json
from nearlm.base.errors import OptionError, StoreError
from nearlm.mixing.adaptor import Adaptor
from nearlm.mixing.adaptor_training import split_rows
from nearlm.mixing.ngrams import last_tokens
from nearlm.mixing.traces import trace_lm, trace_search, traced_text
from nearlm.optimizer import bench, trials
from nearlm.optimizer import optimization as optimizing
from nearlm.optimizer.optimization import optimize
from nearlm.optimizer.points import Choice, Goal, Point, Setup, Shape, Skipping, cheapest, estimates, preferred
from nearlm.search.retriever import Retriever
from nearlm.store import Datastore, SearchSettings

pytestmark = pytest.mark.usefixtures("quick_timing")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("optimize")
    (folder / "train.txt").write_text(make_text(500, seed=1))
    for number in range(12):
        (folder / "valid").mkdir(exist_ok=True)
        (folder / "valid" / f"{number}.txt").write_text(make_text(30, seed=2 + number))
    return folder


@pytest.fixture(scope="module")
def store(texts, lm):
    return build(lm, str(texts / "train.txt"), texts / "store", window=64, quiet=True)


@pytest.fixture
def small(monkeypatch, quick_paper_index):
    """Try fewer and smaller things."""
    monkeypatch.setattr(optimizing, "SMALL_DIMS", (8, 4))
    monkeypatch.setattr(optimizing, "SMALL_KEEPS", (0.7, 0.001))
    monkeypatch.setattr(trials, "KS", (1024, 64))
    monkeypatch.setattr(trials, "TRUSTED_TOKENS", 10)


def point(perplexity, microseconds, keep=1.0, dim=16, nprobe=8, k=1024):
    search = SearchSettings(nprobe=nprobe, k=k, temperature=1.0, lam=0.5)
    return Point("", Setup(100, dim, 1000, 100, "Flat", search), keep, perplexity, microseconds)


def how(one):
    """What a point keeps, and how it is searched."""
    return one.keep, one.setup.dim, one.setup.search.nprobe, one.setup.search.k


def test_estimates_add_perplexities_and_multiply_times():
    whole = [point(10.0, 100.0), point(10.1, 60.0, nprobe=4), point(10.5, 30.0, k=128)]
    base = Shape(1.0, 16)
    alone = {base: whole[0], Shape(1.0, 8): point(10.2, 50.0, dim=8), Shape(0.6, 16): point(10.3, 80.0, keep=0.6)}
    found = {(shape, search): (time, ppl) for time, ppl, shape, search in estimates(whole, alone, base)}
    assert len(found) == 2 * 2 * 3
    assert found[Shape(0.6, 8), whole[1]] == pytest.approx((60 * 0.5 * 0.8, 10.1 + 0.2 + 0.3))
    assert found[base, whole[0]] == pytest.approx((100, 10))
    times = [one[0] for one in estimates(whole, alone, base)]
    assert times == sorted(times)


def test_the_fastest_within_the_target_is_chosen():
    points = [point(10.0, 100.0), point(10.1, 60.0), point(10.5, 30.0)]
    assert cheapest(points, Goal(10.2)) is points[1]
    assert cheapest(points, Goal(10.1)) is points[1]
    assert cheapest(points, Goal(11)) is points[2]
    assert cheapest(points, Goal(9)) is points[0]


def test_without_an_adaptor_the_perplexity_must_be_surely_within_the_target():
    goal = Goal(10.1)
    assert goal.price(10.05, 30.0, 0.04) == 30.0 and goal.price(10.05, 30.0, 0.06) == float("inf")
    unsure, safe = replace(point(10.05, 30.0), margin=0.06), replace(point(10.0, 50.0), margin=0.06)
    assert cheapest([unsure, safe], goal) is safe and cheapest([unsure], goal) is unsure


def test_an_adaptor_may_buy_a_worse_search_or_skip():
    ratios = [0.95 + 0.002 * percent for percent in range(101)]  # as good as one λ when 25 % are skipped
    goal = Goal(10.15, Skipping(ratios, 0.05, 5.0))
    assert goal.price(10.0, 100.0) == pytest.approx(5 + 0.70 * 100)  # 10.0 x 1.01
    assert goal.price(10.5, 60.0) == pytest.approx(5 + 0.95 * 60)  # 10.5 x 0.96 = 10.08
    assert goal.price(10.5, 4.0) == pytest.approx(5 + 0.95 * 4)
    assert goal.price(10.0, 4.0) == 4.0 and goal.price(10.14, 4.0) == 4.0  # the adaptor takes longer than the search
    assert goal.price(11.0, 1.0) == float("inf")
    points = [point(10.0, 100.0), point(10.5, 60.0), point(11.0, 1.0)]
    assert cheapest(points, goal) is points[1] and cheapest(points, goal.alone) is points[0]


def test_one_with_an_adaptor_is_preferred_if_it_is_faster_or_alone_within_the_budget():
    gated, plain = replace(point(10.0, 50.0), sure=True), point(10.0, 60.0)
    assert preferred(gated, plain, 10.1) and not preferred(gated, point(10.0, 40.0), 10.1)
    assert preferred(gated, replace(point(10.0, 40.0), margin=0.2), 10.1)
    assert preferred(gated, point(10.2, 40.0), 10.1) and not preferred(replace(gated, sure=False), plain, 10.1)


def test_the_store_is_ready_and_within_the_budget(store, lm, texts, tmp_path, small):
    valid, out = str(texts / "valid"), tmp_path / "fast"
    choice = optimize(lm, store, valid, out, budget=0.5)
    chosen, made = choice.chosen, Datastore.open(out)
    assert (chosen.setup.records, chosen.setup.dim) == (len(made), made.dim)
    assert not out.with_name("fast.optimize").exists()
    plain = [one for one in choice.points if not one.adaptor]
    base = next(one for one in plain if how(one) == how(chosen))
    search = chosen.setup.search
    within = min(one.microseconds for one in plain if one.perplexity + one.margin <= choice.target)
    assert chosen.microseconds < within if chosen.adaptor else chosen.microseconds == within
    assert chosen.beyond <= 0.5 and base.beyond == pytest.approx(base.perplexity - choice.vanilla.perplexity)
    assert choice.target == choice.vanilla.perplexity + 0.5
    assert {one.setup.dim for one in choice.points} >= {32, 8, 4} and {one.keep for one in choice.points} == {1.0, 0.7}
    assert str(len(made)) in choice.paragraph.replace(",", "")

    ready = load_knnlm(out, lm)
    assert ready.memory.settings.k == search.k and ready.memory.temperature == search.temperature
    assert (ready.gate is not None) == chosen.adaptor
    plain = load_knnlm(out, lm, adaptor="none")
    assert plain.gate is None and plain.memory.lam == pytest.approx(search.lam)
    assert evaluate(plain, valid).perplexity == pytest.approx(base.perplexity, rel=1e-4)
    assert load_knnlm(out, lm, lam=0.2).gate is None
    again = optimize(lm, store, valid, out, budget=0.5)
    assert again == choice == from_json(Choice, json.loads(json.dumps(to_json(choice))), "")
    with pytest.raises(StoreError, match="another store, text or budget"):
        optimize(lm, store, valid, out, budget=0.4)


BUDGET = 60.0


def test_the_share_to_skip_is_the_largest_within_the_budget_of_vanilla(store, lm, texts, tmp_path, small):
    choice = optimize(lm, store, str(texts / "valid"), tmp_path / "fast", budget=BUDGET)
    gated, made = [one for one in choice.points if one.adaptor][-1], Datastore.open(tmp_path / "fast")
    adaptor, vanilla, search = Adaptor.load(made), choice.vanilla.setup.search, gated.setup.search
    reading = store.reading()
    traced = trace_lm(lm, traced_text(str(texts / "valid"), lm.tokenizer, reading), reading)
    rows = split_rows(traced.text.documents, 0).held
    log_lm = np.asarray(traced.logp, np.float64)
    ours = trace_search(traced, Retriever.open(made, adaptor.settings), search.k).log_p_knn(
        search.temperature, search.k
    )
    paper = trace_search(traced, Retriever(store, "measured-paper"), 1024).log_p_knn(vanilla.temperature)
    log_vanilla = np.logaddexp(log_lm + np.log1p(-vanilla.lam), paper + np.log(vanilla.lam))
    contexts = last_tokens(traced.text.tokens, traced.text.bounds, traced.text.windows.target_positions)
    documents = np.asarray(traced.text.documents)

    def margin(logp, chosen):
        blocks = documents[chosen]
        if len(set(blocks)) < 10:
            blocks = np.arange(len(blocks)) * 10 // len(blocks)
        difference = (logp - log_vanilla)[chosen]
        sums = np.array([(difference - difference.mean())[blocks == one].sum() for one in set(blocks)])
        return 2 * np.exp(-logp[chosen].mean()) * np.sqrt((sums**2).sum()) / len(difference)

    def sure(logp, chosen):
        ours, theirs = np.exp(-logp[chosen].mean()), np.exp(-log_vanilla[chosen].mean())
        return ours + margin(logp, chosen) <= theirs + BUDGET

    plain = next(one for one in choice.points if how(one) == how(gated))
    lam = plain.setup.search.lam
    mixed = np.logaddexp(log_lm + np.log1p(-lam), ours + np.log(lam))
    assert plain.margin == pytest.approx(margin(mixed, np.arange(len(mixed))), rel=0.01)  # the store was rotated
    within = []
    for percent in range(100):
        lam = adaptor.gate(percent / 100).weights(traced.keys, traced.conf, traced.ent, contexts)
        with np.errstate(divide="ignore"):
            logp = np.logaddexp(log_lm + np.log1p(-lam), ours + np.log(lam))
        if sure(logp, rows) and sure(logp, np.arange(len(logp))):
            within.append((percent / 100, np.exp(-logp[rows].mean())))
    assert within and (search.skip, gated.perplexity) == pytest.approx(within[-1], rel=1e-5) and gated.sure
    there = np.exp(-log_vanilla[rows].mean())
    assert choice.held_out.vanilla == pytest.approx(there)
    assert gated.beyond == pytest.approx(within[-1][1] - there, rel=1e-4)
    if gated.chosen:
        assert made.defaults.skip == search.skip
        knnlm = load_knnlm(tmp_path / "fast", lm)
        assert knnlm.gate is not None and knnlm.gate.skip == search.skip


def test_a_killed_run_goes_on(store, lm, texts, tmp_path, small, monkeypatch):
    valid, out = str(texts / "valid"), tmp_path / "fast"
    real, calls = bench.searches_per_second, []
    monkeypatch.setattr(bench, "searches_per_second", lambda *given: calls.append(1) or real(*given))
    training = Adaptor.train

    def killed(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(optimizing.Adaptor, "train", killed)
    with pytest.raises(KeyboardInterrupt):
        optimize(lm, store, valid, out, budget=0.5)
    assert calls and not (out / "optimize.json").exists()
    calls.clear()
    monkeypatch.setattr(optimizing.Adaptor, "train", training)
    choice = optimize(lm, store, valid, out, budget=0.5)
    assert not calls and len(Datastore.open(out)) == choice.chosen.setup.records
    work = out.with_name("fast.optimize")
    work.mkdir()  # killed when all but this was done
    assert optimize(lm, store, valid, out, budget=0.5) == choice and not work.exists()


def test_a_run_for_something_else_begins_anew(store, lm, texts, tmp_path, small, monkeypatch):
    valid, out = str(texts / "valid"), tmp_path / "fast"

    def killed(*given, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(optimizing.Adaptor, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            optimize(lm, store, valid, out, budget=0.5)
    work = out.with_name("fast.optimize")
    assert out.exists() and list(work.glob("keep-*"))
    (work / "keep-0.7" / "manifest.json").unlink()  # would be refused if it were still there
    choice = optimize(lm, store, valid, out, budget=0.6)
    assert choice.budget == 0.6 and not work.exists() and len(Datastore.open(out)) == choice.chosen.setup.records


def test_a_refused_store_is_out_of_the_way_at_once(store, lm, texts, tmp_path, small, monkeypatch):
    valid, out = str(texts / "valid"), tmp_path / "fast"
    monkeypatch.setattr(optimizing, "preferred", lambda *given: False)
    monkeypatch.setattr(
        optimizing, "cheapest", lambda points, goal: points[0] if goal.skipping else points[1]
    )  # two different ones
    real = jobs.Job.note

    def killed(self, step, state):
        if step == "refused":
            raise KeyboardInterrupt
        real(self, step, state)

    with monkeypatch.context() as patched:
        patched.setattr(jobs.Job, "note", killed)
        with pytest.raises(KeyboardInterrupt):
            optimize(lm, store, valid, out, budget=0.5)
    assert not out.exists()
    choice = optimize(lm, store, valid, out, budget=0.5)
    assert Datastore.open(out).path == out and not choice.chosen.adaptor and sum(p.adaptor for p in choice.points) == 2


def test_bad_input(store, lm, texts, tmp_path):
    valid = str(texts / "valid")
    with pytest.raises(OptionError, match="--budget is -1"):
        optimize(lm, store, valid, tmp_path / "fast", budget=-1)
    with pytest.raises(StoreError, match="the store itself"):
        optimize(lm, store, valid, store.path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        optimize(lm, store, valid, tmp_path / "file")
    with pytest.raises(StoreError, match="is no store but holds 'file'"):
        optimize(lm, store, valid, tmp_path)
    shutil.copytree(store.path, tmp_path / "other")
    with pytest.raises(StoreError, match="made in another way"):
        optimize(lm, store, valid, tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other"]
    assert not (tmp_path / "fast").exists()


def test_as_a_user_types_it(store, texts, tmp_path, nearlm, small):
    code, out, _ = nearlm("optimize", str(store.path), "--text", str(texts / "valid"), "--out", str(tmp_path / "f"))
    assert code == 0 and "Chosen: " in out and "→" in out and "vanilla" in out
    code, out, _ = nearlm("eval", str(tmp_path / "f"), "--text", str(texts / "valid"), "--json")
    assert code == 0 and json.loads(out)["perplexity"] > 1
    code, out, _ = nearlm("info", str(tmp_path / "f"))
    assert code == 0 and "index default" in out
