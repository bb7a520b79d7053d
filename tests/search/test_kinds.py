"""What `auto`, `paper`, `flat` and factory strings stand for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls import build_index
from nearlm.base.errors import OptionError
from nearlm.search import kinds as index_module
from nearlm.search.kinds import (
    RECORD_BYTES,
    WIDEST_CODE,
    IndexSpec,
    choose_index,
    code_bits,
    code_bytes_within,
    describe,
    index_bytes,
    list_count,
    paper_code_bytes,
    paper_nlist,
)
from nearlm.search.retriever import Retriever


def test_the_papers_index_is_as_facts_define_it():
    assert [paper_nlist(n) for n in (852_105, 1, 103_000_000)] == [1024, 1, 4096]
    assert [paper_code_bytes(d) for d in (576, 1024, 1536, 50)] == [64, 64, 64, 50]
    assert choose_index("paper", 852_105, 576) == IndexSpec("IVF1024,PQ64", 32)
    assert choose_index("flat", 10, 576) == IndexSpec("Flat")
    with pytest.raises(OptionError, match="not a FAISS factory"):
        choose_index("nonsense", 10, 576)
    with pytest.raises(OptionError, match="nprobe"):
        choose_index("paper", 10, 576, 0)
    for kind in ("flat", "auto", "SQ8"):
        with pytest.raises(OptionError, match="leave it out"):
            choose_index(kind, 10, 576, 8)


def test_the_automatic_index_has_lists_from_a_thousand_records_on():
    assert choose_index("auto", 900, 64) == choose_index("auto", 4000, 576) == IndexSpec("Flat")
    assert choose_index("auto", 15_600, 576).nprobe > 1


def test_lists_are_about_equally_long_at_any_size():
    specs = {n: choose_index("auto", n, 576) for n in np.geomspace(5_000, 10**8, 60).astype(int)}
    lengths = [n / list_count(spec) for n, spec in specs.items()]
    assert 600 < min(lengths) <= max(lengths) < 1100


@given(st.integers(1, 400), st.integers(16, 1024), st.integers(10_000, 10**8))
def test_a_code_is_the_widest_that_fits(code_bytes, dim, records):
    spec = choose_index("auto", records, dim, code_bytes=code_bytes)
    if spec.factory == "Flat":
        return
    used = -(-spec.pca * code_bits(spec) // 8)
    assert used <= code_bytes
    assert used == code_bytes or spec.pca == dim
    assert f"codes of {used} bytes" in describe(spec)


@given(st.integers(10_000, 10**8), st.integers(64, 1024), st.floats(8, 500))
def test_an_index_fits_in_the_ram_it_is_given(records, dim, each):
    ram = int(records * each)
    try:
        code_bytes = code_bytes_within(ram, records, dim)
    except OptionError as error:
        assert "too little" in str(error)
        code_bytes = 0
    for wider in (0, 1):
        if 1 <= code_bytes + wider <= min(dim, WIDEST_CODE):
            spec = choose_index("auto", records, dim, code_bytes=code_bytes + wider)
            code = -(-spec.pca * code_bits(spec) // 8) if spec.pca else 4 * dim
            least = records * (code + RECORD_BYTES) + 4 * list_count(spec) * (spec.pca or 0)
            assert least <= ram if not wider else index_bytes(spec, records, dim) > ram


def test_only_the_automatic_index_goes_by_bytes():
    with pytest.raises(OptionError, match="`bytes` is 32, but only `factory='auto'`"):
        choose_index("paper", 100_000, 576, code_bytes=32)
    with pytest.raises(OptionError, match="`bytes` is 0, expected at least 1"):
        choose_index("auto", 100_000, 576, code_bytes=0)


def test_the_automatic_index_scans_whitened_keys(store, queries, monkeypatch):
    monkeypatch.setattr(index_module, "_FEW", 0)
    described = build_index(store, "auto", name="auto", nprobe=1000, quiet=True)
    assert described.recall > 0.9 and described.distance_error < 0.05
    retriever = Retriever(store, "auto")
    keys, x = retriever.index.transform_keys(store.keys[:]), retriever.index.transform_keys(queries)
    d = ((x[:, None] - keys) ** 2).sum(-1)
    most = retriever.search(queries, 60)
    error = np.abs(most.distances / np.sort(d, axis=1)[:, :60] - 1)
    assert np.median(error) < 0.02 and np.mean(error < 0.1) > 0.98  # what lies far out is clipped
    np.testing.assert_array_equal(retriever.search(queries, 30).ids, most.ids[:, :30])
    unordered = retriever.search(queries, 60, ordered=False)
    np.testing.assert_array_equal(np.sort(unordered.ids), np.sort(most.ids))


@pytest.mark.parametrize(
    "factory",
    ["IVF99999999,SQ8", "IVF64M,SQ8", "PQ8x24", "IVF4,PQ8x24", "IMI2x12,Flat", "HNSW99999999", "PCA1000000,Flat"],
)
def test_absurd_numbers_are_refused_before_faiss_makes_room_for_them(factory, monkeypatch):
    monkeypatch.setattr(index_module.faiss, "index_factory", lambda *_: pytest.fail("FAISS was asked"))
    with pytest.raises(OptionError, match=f"`factory='{factory}'` asks for "):
        choose_index(factory, 10_000, 64)
