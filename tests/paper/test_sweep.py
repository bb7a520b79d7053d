"""Sweeps: each point is what the commands would give one by one; they go on after a kill; bad input."""

import json

import numpy as np
import pytest

from calls import build, build_index, prune_store, reduce_store, tune
from nearlm.base import files
from nearlm.base.errors import OptionError
from nearlm.optimizer import Setup, bench
from nearlm.optimizer.bench import find_index
from nearlm.paper import sweep as sweeping
from nearlm.paper.results import SweepPoint
from nearlm.paper.sweep import SweepOptions, pareto_front
from nearlm.paper.sweep import sweep as sweep_store
from nearlm.search.retriever import Retriever
from nearlm.store import Datastore, SearchSettings
from tiny import make_text

pytestmark = pytest.mark.usefixtures("quick_timing")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "train.txt").write_text(make_text(1500, seed=1))
    (folder / "valid.txt").write_text(make_text(200, seed=2))
    return folder


@pytest.fixture
def store(texts, lm, tmp_path):
    return build(lm, str(texts / "train.txt"), tmp_path / "store", window=64, quiet=True)


def sweep(lm, store, over, values, text, *, out, **options):
    return sweep_store(lm, store, values, text, SweepOptions(over, **options), out)


@pytest.mark.parametrize(("over", "value"), [("dim", 8), ("keep", 0.5), ("neighbors", 20), ("k", 16), ("nprobe", 3)])
def test_a_point_is_what_the_commands_give(store, lm, texts, tmp_path, over, value):
    valid = str(texts / "valid.txt")
    options = {"factory": "IVF16,Flat", "k": 64, "nprobe": 8}
    found = sweep(lm, store, over, [value], valid, out=tmp_path / "s", **options)
    as_it_is, point = found.points
    assert not any((tmp_path / "s").glob("*/manifest.json"))
    made, k, nprobe = store, 64, 8
    if over == "dim":
        made = reduce_store(store, 8, tmp_path / "made", quiet=True)
    elif over in ("keep", "neighbors"):
        made = prune_store(store, "merge", tmp_path / "made", quiet=True, **{over: value})
    elif over == "k":
        k = value
    else:
        nprobe = value
    build_index(made, "IVF16,Flat", quiet=True, name="mine")
    best = tune(lm, Retriever(made, "mine", nprobe=nprobe), valid, k=k).by_k[-1]
    setup, search = point.setup, point.setup.search
    assert (setup.records, setup.dim, search.k, search.nprobe) == (len(made), made.dim, k, nprobe)
    assert point.perplexity == pytest.approx(best.perplexity, rel=1e-6)
    assert (search.knn_temperature, search.lam) == (best.knn_temperature, best.lam)
    assert setup.store_bytes == pytest.approx(made.bytes, rel=0.02) and setup.index_bytes > 0
    assert (
        as_it_is.value is None and as_it_is.setup.records == len(store) and as_it_is.perplexity < found.nlm_perplexity
    )


def test_an_index_of_the_kind_that_is_there_is_used_and_stays(store, lm, texts, tmp_path):
    valid, options = str(texts / "valid.txt"), {"factory": "IVF16,Flat", "k": 64}
    build_index(store, "IVF16,Flat", nprobe=4, name="other", quiet=True)  # searched in another way
    build_index(store, "IVF16,Flat", name="mine", quiet=True)
    before = files.checksum(store.path / "index" / "mine" / "index.json")
    found = sweep(lm, store, "k", [16], valid, out=tmp_path / "s", **options)
    assert [point.setup.search.nprobe for point in found.points] == [32, 32] and store.indexes == ["mine", "other"]
    assert files.checksum(store.path / "index" / "mine" / "index.json") == before
    assert find_index(store, "IVF16,Flat") == "mine" and find_index(store, "flat") is None
    (store.path / "index" / "mine" / "index.json").write_text("nonsense")
    assert find_index(store, "IVF16,Flat") is None


@pytest.mark.parametrize("method", ["merge", "rank"])
def test_a_sweep_leaves_no_index_and_none_of_the_users_is_touched(store, lm, texts, tmp_path, method):
    for name in ("sweep-IVF16-Flat", "measured-auto", "measured-auto-1", "measured-IVF16-Flat"):
        build_index(store, "SQ8", name=name, quiet=True)
    before = {path: files.checksum(path) for path in store.path.rglob("*") if path.is_file()}
    options = {"factory": "IVF16,Flat", "method": method, "k": 64}
    found = sweep(lm, store, "keep", [0.6, 0.9], str(texts / "valid.txt"), out=tmp_path / "s", **options)
    assert [point.value for point in found.points] == [None, 0.6, 0.9]
    assert {path: files.checksum(path) for path in store.path.rglob("*") if path.is_file()} == before


def test_a_killed_sweep_finds_the_index_that_it_began(store, lm, texts, tmp_path, monkeypatch):
    def killed(*given, **options):
        raise KeyboardInterrupt

    arguments = (lm, store, "keep", [0.9], str(texts / "valid.txt"))
    with monkeypatch.context() as patched:
        patched.setattr(sweeping._SweepBench, "prune", killed)
        with pytest.raises(KeyboardInterrupt):
            sweep(*arguments, out=tmp_path / "s", factory="flat", k=64)
    assert store.indexes == ["measured-auto-1", "measured-flat-1"]
    sweep(*arguments, out=tmp_path / "s", factory="flat", k=64)
    assert store.indexes == []


def test_a_machine_that_slows_down_does_not_slow_down_a_point(store, lm, texts, tmp_path, monkeypatch):
    times = iter([100.0, 300.0, 50.0, 60.0, 120.0])  # as it is; a point and the store as it is again, twice
    monkeypatch.setattr(bench, "searches_per_second", lambda *given: next(times))
    found = sweep(lm, store, "k", [16, 8], str(texts / "valid.txt"), out=tmp_path / "s", factory="flat")
    assert [point.searches_per_second for point in found.points] == [100.0, 600.0, 50.0]


def test_a_killed_sweep_goes_on(store, lm, texts, tmp_path, monkeypatch):
    valid, options = str(texts / "valid.txt"), {"out": tmp_path / "s", "method": "random", "k": 32}
    measured, real = [], sweeping._SweepBench.measure

    def measure(self, made, value, *rest):
        if value == 0.25 and measured.count(0.25) == 0:
            measured.append(value)
            raise KeyboardInterrupt
        measured.append(value)
        return real(self, made, value, *rest)

    monkeypatch.setattr(sweeping._SweepBench, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        sweep(lm, store, "keep", [0.5, 0.25], valid, **options)
    found = sweep(lm, store, "keep", [0.5, 0.25], valid, **options)
    assert measured == [None, 0.5, 0.25, 0.25]
    assert store.indexes == [] and not list((tmp_path / "s").glob("*/manifest.json"))
    assert [point.value for point in found.points] == [None, 0.5, 0.25]
    assert [point.setup.records for point in found.points[1:]] == [round(len(store) * share) for share in (0.5, 0.25)]


def test_the_front_holds_what_nothing_beats():
    def point(speed, ppl):
        return SweepPoint(1, Setup(1, 1, 1, 1, "Flat", SearchSettings()), speed, ppl)

    points = [point(10, 5.0), point(20, 6.0), point(15, 7.0), point(20, 6.0), point(5, 4.9), point(5, 5.1)]
    assert [one.pareto for one in pareto_front(points)] == [True, True, False, True, True, False]


def test_the_command_prints_writes_and_draws(nearlm, store, texts, tmp_path):
    figure = tmp_path / "f.png"
    arguments = ["sweep", store.path, 4, 16, "--over", "k", "--text", texts / "valid.txt", "--quiet"]
    code, out, err = nearlm(*arguments, "--figure", figure)
    assert (code, err) == (0, "") and "as it is" in out and figure.stat().st_size > 10_000
    code, out, _ = nearlm(*arguments, "--json", "--out", tmp_path / "elsewhere", "--save-stores")
    points = json.loads(out)["points"]
    assert code == 0 and [point["setup"]["search"]["k"] for point in points][1:] == [4, 16]
    code, out, err = nearlm(
        *["sweep", store.path, 8, "--over", "dim", "--text", texts / "valid.txt", "--quiet"],
        *["--out", tmp_path / "kept", "--save-stores"],
    )
    assert code == 0 and Datastore.open(tmp_path / "kept" / "dim-8").dim == 8
    assert np.isfinite(points[0]["perplexity"])


@pytest.mark.parametrize(
    ("over", "values", "options", "message"),
    [
        ("size", [1], {}, "`over` is 'size'"),
        ("keep", [], {}, "needs values"),
        ("keep", [1.5], {}, "between 0 and 1"),
        ("dim", [0.5], {}, "whole numbers"),
        ("dim", [9999], {}, "at most 32"),
        ("k", [0], {}, "whole numbers"),
        ("keep", [0.5], {"method": "luck"}, "`method` is 'luck'"),
        ("dim", [8], {"method": "merge"}, "`method` has no effect"),
        ("keep", [0.5], {"k": 0}, "`k` is 0"),
        ("nprobe", [2], {"factory": "flat"}, "no lists"),
    ],
)
def test_nonsense_is_refused_before_the_work(store, lm, texts, tmp_path, over, values, options, message):
    with pytest.raises(OptionError, match=message):
        sweep(lm, store, over, values, str(texts / "valid.txt"), out=tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_a_share_that_merging_cannot_reach_is_left_out(store, lm, texts, tmp_path):
    found = sweep(lm, store, "keep", [0.0001, 0.9], str(texts / "valid.txt"), out=tmp_path / "s", k=32)
    assert [point.value for point in found.points] == [None, 0.9]
    assert "the least that can be reached" in found.left_out["0.0001"] and "left out" in found.table()
