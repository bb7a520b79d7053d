"""What `auto`, `paper`, `flat` and factory strings stand for."""

import itertools
import re

import numpy as np
import pytest

from calls import build_index
from nearlm.base.errors import OptionError
from nearlm.search import kinds as index_module
from nearlm.search.kinds import IndexSpec, choose_index, paper_code_bytes, paper_nlist
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


def test_fewer_records_mean_shorter_lists():
    def nlist(records):
        return int(re.search(r"IVF(\d+)", choose_index("auto", records, 576).factory)[1])

    assert nlist(852_105) == 1024
    per_list = [n / nlist(n) for n in range(20_000, 10**7, 50_000)]
    assert all(later > 0.95 * earlier for earlier, later in itertools.pairwise(per_list))


def test_the_automatic_index_scans_whitened_keys(store, queries, monkeypatch):
    monkeypatch.setattr(index_module, "_SMALL", 0)
    described = build_index(store, "auto", name="auto", nprobe=1000, quiet=True)
    assert described.recall > 0.97 and described.distance_error < 0.01
    retriever = Retriever(store, "auto")
    keys, x = retriever.index.transform_keys(store.keys[:]), retriever.index.transform_keys(queries)
    d = ((x[:, None] - keys) ** 2).sum(-1)
    most = retriever.search(queries, 60)
    np.testing.assert_allclose(most.distances, np.sort(d, axis=1)[:, :60], rtol=0.05)
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
