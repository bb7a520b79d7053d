"""The bench: indexes that are there are used, others are made under names of its own, and searches are timed."""

import shutil

import numpy as np
import pytest

from nearlm.mixing import cache_text, trace_lm
from nearlm.optimizer import bench
from nearlm.optimizer.bench import Bench, find_index, own_name, searches_per_second
from nearlm.search import Retriever, build_index
from nearlm.shrink import PruneOptions
from nearlm.store import Datastore

pytestmark = pytest.mark.usefixtures("quick_timing")


@pytest.fixture
def copied(store, tmp_path):
    """A store without any index."""
    shutil.copytree(store.path, tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    return Datastore.open(tmp_path / "store")


@pytest.fixture
def traced(store, lm, texts):
    reading = store.reading()
    return trace_lm(lm, cache_text(str(texts / "valid"), lm.tokenizer, reading), reading)


def test_an_index_is_made_once_under_a_name_of_its_own(copied, traced):
    one = Bench(copied, traced)
    assert find_index(copied, "flat") is None
    assert one.index(copied, "flat") == own_name("flat") == "measured-flat"
    made = copied.layout.index("measured-flat").description.read_bytes()
    assert one.index(copied, "flat") == "measured-flat" and copied.indexes == ["measured-flat"]
    assert copied.layout.index("measured-flat").description.read_bytes() == made


def test_an_index_of_the_users_is_used_the_default_one_first(copied, traced):
    build_index(copied, "flat", name="a")
    assert Bench(copied, traced).index(copied, "flat") == "a"
    build_index(copied, "flat")
    assert Bench(copied, traced).index(copied, "flat") == "default" and copied.indexes == ["a", "default"]


def test_an_index_of_another_kind_or_a_damaged_one_is_no_use(copied, traced):
    build_index(copied, "SQ8")
    assert find_index(copied, "flat") is None
    build_index(copied, "flat", name="b")
    copied.layout.index("b").description.write_text("{}")
    assert find_index(copied, "flat") is None
    assert Bench(copied, traced).index(copied, "flat") == "measured-flat"


def test_derived_stores_are_what_was_asked_for(copied, traced, tmp_path):
    one = Bench(copied, traced)
    assert one.reduce(copied, 8, tmp_path / "narrow").dim == 8
    assert len(one.prune(PruneOptions("random", keep=0.5), tmp_path / "few")) == round(len(copied) / 2)


def test_of_slow_searches_fewer_queries_are_timed(copied, traced, monkeypatch):
    monkeypatch.setattr(bench, "_WARM", 16)
    build_index(copied, "flat")
    retriever, queries, searched = Retriever(copied), np.asarray(traced.keys[:200]), []
    clock = iter(range(10**6))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))  # every pass takes a second
    real = retriever.search
    monkeypatch.setattr(retriever, "search", lambda q, k, **more: searched.append(len(q)) or real(q, k, **more))
    monkeypatch.setattr(bench, "_SECONDS", 5.0)
    monkeypatch.setattr(bench, "_PASSES", 2)
    assert searches_per_second(retriever, queries, 8) == 40  # 5 s / 2 passes at 16 queries/s
    assert searched == [16, 16, 40, 40, 40, 40, 40]


def test_traces_and_speeds_are_those_of_the_bench_own_text(copied, traced):
    one = Bench(copied, traced)
    trace = one.trace(one.open(copied, "flat"), 12)
    assert trace.k == 12 and len(trace.lm) == len(traced)
    assert one.searches_per_second(trace.retriever, 12) > 0
