"""`optimize`: that its store is ready to use, and that it goes on after a kill."""

import json
import shutil

import pytest
import torch
from pointing import how

from calls import evaluate, load_knnlm
from nearlm.base import Reporter, files, from_json, jobs, to_json
from nearlm.base.errors import OptionError, StoreError
from nearlm.mixing.gate import Gate
from nearlm.model.lm import LM
from nearlm.optimizer import bench
from nearlm.optimizer import optimization as optimizing
from nearlm.optimizer.optimization import optimize
from nearlm.optimizer.points import Choice
from nearlm.search import build_index
from nearlm.store import Datastore
from tiny import make_llama

pytestmark = pytest.mark.usefixtures("quick_timing")


def test_the_store_is_ready_and_within_the_budget(store, lm, texts, tmp_path, small):
    valid, out = str(texts / "valid"), tmp_path / "fast"
    choice = optimize(store, valid, out, lm, budget=0.5)
    chosen, made = choice.winner, Datastore.open(out)
    assert (chosen.setup.records, chosen.setup.dim) == (len(made), made.dim)
    assert not out.with_name("fast.optimize").exists()
    plain = [one for one in choice.points if not one.gate]
    base = next(one for one in plain if how(one) == how(chosen))
    search = chosen.setup.search
    within = min(one.microseconds for one in plain if one.perplexity + one.margin <= choice.target)
    assert chosen.microseconds < within if chosen.gate else chosen.microseconds == within
    assert chosen.beyond <= 0.5 and base.beyond == pytest.approx(base.perplexity - choice.vanilla.perplexity)
    assert choice.target == choice.vanilla.perplexity + 0.5
    assert {one.setup.dim for one in choice.points} >= {32, 8, 4} and {one.keep for one in choice.points} == {1.0, 0.7}
    assert str(len(made)) in choice.paragraph.replace(",", "")

    ready = load_knnlm(out, lm)
    assert ready.memory.settings.k == search.k and ready.memory.knn_temperature == search.knn_temperature
    assert (ready.gate is not None) == chosen.gate
    plain = load_knnlm(out, lm, gate="none")
    assert plain.gate is None and plain.memory.lam == pytest.approx(search.lam)
    # k and lists cut between neighbours that are about equally near, so one rounding of a key can exchange two
    assert evaluate(plain, valid).perplexity == pytest.approx(base.perplexity, rel=1e-3)
    assert load_knnlm(out, lm, lam=0.2).gate is None
    again = optimize(store, valid, out, lm, budget=0.5)
    assert again == choice == from_json(Choice, json.loads(json.dumps(to_json(choice))), "")
    with pytest.raises(StoreError, match="another store, model, text or rule"):
        optimize(store, valid, out, lm, budget=0.4)
    other = LM(make_llama(), lm.tokenizer)
    assert optimize(store, valid, out, other, budget=0.5) == choice
    with torch.no_grad():
        other.model.lm_head.weight.mul_(2)
    with pytest.raises(StoreError, match="another store, model"):
        optimize(store, valid, out, other, budget=0.5)
    noted = files.read_stamped(out / "optimize.json")
    del noted["plan"]["weights"]  # as older versions wrote it
    files.write_stamped(out / "optimize.json", noted)
    assert optimize(store, valid, out, lm, budget=0.5) == choice


def test_an_index_like_the_papers_shortens_the_forecast_whatever_its_name(store, tmp_path, monkeypatch, capsys):
    shutil.copytree(store.path, tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    copied = Datastore.open(tmp_path / "store")
    monkeypatch.setattr(optimizing, "_PAPER_SECONDS", 100.0)

    def forecast():
        optimizing._announce(copied, 1000, optimizing.Rule(None, 0.1), Reporter())
        return capsys.readouterr().err

    without = forecast()
    build_index(copied, "flat", name="paper")
    assert forecast() == without
    build_index(copied, "paper", name="mine")
    assert forecast() != without


def test_a_killed_run_goes_on(store, lm, texts, tmp_path, small, monkeypatch):
    valid, out = str(texts / "valid"), tmp_path / "fast"
    real, calls = bench.searches_per_second, []
    monkeypatch.setattr(bench, "searches_per_second", lambda *given: calls.append(1) or real(*given))
    training = Gate.train

    def killed(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(optimizing.Gate, "train", killed)
    with pytest.raises(KeyboardInterrupt):
        optimize(store, valid, out, lm, budget=0.5)
    assert calls and not (out / "optimize.json").exists()
    calls.clear()
    monkeypatch.setattr(optimizing.Gate, "train", training)
    choice = optimize(store, valid, out, lm, budget=0.5)
    assert not calls and len(Datastore.open(out)) == choice.winner.setup.records
    work = out.with_name("fast.optimize")
    work.mkdir()  # killed when all but this was done
    assert optimize(store, valid, out, lm, budget=0.5) == choice and not work.exists()


def test_a_run_for_something_else_begins_anew(store, lm, texts, tmp_path, small, monkeypatch):
    valid, out = str(texts / "valid"), tmp_path / "fast"

    def killed(*given, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(optimizing.Gate, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            optimize(store, valid, out, lm, budget=0.5)
    work = out.with_name("fast.optimize")
    assert out.exists() and list(work.glob("keep-*"))
    (work / "keep-0.7" / "manifest.json").unlink()  # would be refused if it were still there
    choice = optimize(store, valid, out, lm, budget=0.6)
    assert choice.budget == 0.6 and not work.exists() and len(Datastore.open(out)) == choice.winner.setup.records


def test_a_refused_store_is_out_of_the_way_at_once(store, lm, texts, tmp_path, small, monkeypatch):
    valid, out = str(texts / "valid"), tmp_path / "fast"
    monkeypatch.setattr(optimizing, "is_preferred", lambda *given: False)
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
            optimize(store, valid, out, lm, budget=0.5)
    assert not out.exists()
    choice = optimize(store, valid, out, lm, budget=0.5)
    assert Datastore.open(out).path == out and not choice.winner.gate and sum(p.gate for p in choice.points) == 2


def test_bad_input(store, lm, texts, tmp_path):
    valid = str(texts / "valid")
    with pytest.raises(OptionError, match="`budget` is -1"):
        optimize(store, valid, tmp_path / "fast", lm, budget=-1)
    with pytest.raises(StoreError, match="the store itself"):
        optimize(store, valid, store.path, lm)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        optimize(store, valid, tmp_path / "file", lm)
    with pytest.raises(StoreError, match="is not a store but holds 'file'"):
        optimize(store, valid, tmp_path, lm)
    shutil.copytree(store.path, tmp_path / "other")
    with pytest.raises(StoreError, match="made in another way"):
        optimize(store, valid, tmp_path / "other", lm)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other"]
    assert not (tmp_path / "fast").exists()


def test_as_a_user_types_it(store, texts, tmp_path, nearlm, small):
    code, out, _ = nearlm("optimize", str(store.path), "--text", str(texts / "valid"), "--out", str(tmp_path / "f"))
    assert code == 0 and "Chosen: " in out and "→" in out and "vanilla" in out
    code, out, _ = nearlm("eval", str(tmp_path / "f"), "--text", str(texts / "valid"), "--json")
    assert code == 0 and json.loads(out)["perplexity"] > 1
    code, out, _ = nearlm("info", str(tmp_path / "f"))
    assert code == 0 and "index default" in out


def test_a_folder_that_only_looks_like_ours_is_left_alone(store, lm, texts, tmp_path):
    foreign = tmp_path / "fast.optimize"
    foreign.mkdir()
    (foreign / "diary.txt").write_text("dear diary")
    with pytest.raises(StoreError, match=r"fast\.optimize holds 'diary\.txt', not made by nearlm"):
        optimize(store, str(texts / "valid"), tmp_path / "fast", lm)
    assert [path.name for path in foreign.iterdir()] == ["diary.txt"] and not (tmp_path / "fast").exists()


def test_a_store_of_the_users_is_not_removed_in_place_of_an_unfinished_one(store, lm, texts, tmp_path):
    out = shutil.copytree(store.path, tmp_path / "fast")
    job = jobs.Job(tmp_path / "fast.optimize", "optimize")
    job.begin({"another": "plan"})
    job.note("final", {"begun": True})
    with pytest.raises(StoreError, match="built from text; choose another"):
        optimize(store, str(texts / "valid"), out, lm)
    Datastore.open(out).verify()
