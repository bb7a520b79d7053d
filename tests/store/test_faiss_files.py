"""FAISS's files: read as they were written, refused when damaged, and never a way to other files."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from nearlm.base.errors import StoreError
from nearlm.store.faiss_files import read_faiss_index, read_linear

DIM = 8
RECORDS = 150
KEYS = np.random.default_rng(0).normal(size=(600, DIM)).astype(np.float32)
KINDS = [
    "Flat",
    "IVF4,SQ8",
    "IVF4,Flat",
    "IVF300,Flat",
    "IVF4,PQ2x4",
    "IVF4,PQ2x4fs",
    "HNSW4",
    "IVF4_HNSW4,SQ8",
]


def write(path: Path, kind: str) -> faiss.Index:
    index = faiss.index_factory(DIM, kind)
    index.train(KEYS[:400])
    index.add(KEYS[:RECORDS])  # fewer than 300 lists: these are kept sparse
    faiss.write_index(index, str(path))
    return index


def read(path: Path, flags: int = 0) -> faiss.Index:
    return read_faiss_index(path, flags, "index again")


@pytest.mark.parametrize("flags", [0, faiss.IO_FLAG_MMAP_IFC])
@pytest.mark.parametrize("kind", [*KINDS, "PCA4,IVF4,SQ8", "OPQ2,IVF4,PQ2x4fs,RFlat"])
def test_an_index_is_read_as_it_was_written(kind: str, flags: int, tmp_path: Path):
    written = write(tmp_path / "index.faiss", kind)
    found = read(tmp_path / "index.faiss", flags)
    assert found.ntotal == RECORDS and isinstance(found, type(written))
    np.testing.assert_array_equal(found.search(KEYS[:9], 5)[1], written.search(KEYS[:9], 5)[1])


@pytest.mark.parametrize("refined", [False, True])
def test_lists_in_another_file_are_refused_before_that_is_opened(refined: bool, tmp_path: Path):
    index = write(tmp_path / "index.faiss", "IVF4,Flat")
    lists = faiss.OnDiskInvertedLists(4, index.code_size, str(tmp_path / "victim"))
    lists.merge_from_1(index.invlists)
    index.replace_invlists(lists)
    if refined:
        index = faiss.IndexRefineFlat(index, faiss.swig_ptr(KEYS[:RECORDS]))
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    (tmp_path / "victim").unlink()  # FAISS would say so
    for flags in (0, faiss.IO_FLAG_MMAP_IFC):
        with pytest.raises(
            StoreError, match=r"index\.faiss is not as .*\(its lists lie in another file\); index again"
        ):
            read(tmp_path / "index.faiss", flags)


@pytest.mark.parametrize("kind", KINDS)
def test_any_changed_byte_of_the_structure_is_read_or_refused(kind: str, tmp_path: Path):
    path = tmp_path / "index.faiss"
    write(path, kind)
    data = path.read_bytes()
    limit = faiss.get_deserialization_vector_byte_limit()
    for where in (*range(120), *range(len(data) // 2, len(data) // 2 + 20), len(data) - 1):
        for flip in (0xFF, 0x40):
            path.write_bytes(data[:where] + bytes([data[where] ^ flip]) + data[where + 1 :])
            try:
                read(path)
            except StoreError as error:
                assert str(error).endswith("index again")
    assert faiss.get_deserialization_vector_byte_limit() == limit


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_or_empty_file_is_refused(kind: str, tmp_path: Path):
    path = tmp_path / "index.faiss"
    write(path, kind)
    data = path.read_bytes()
    for length in (0, 3, 4, 40, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(StoreError, match=r"index\.faiss is not as nearlm writes it"):
            read(path)


def test_indexes_in_each_other_without_end_are_refused(tmp_path: Path):
    index = faiss.IndexFlatL2(DIM)
    for _ in range(40):
        index = faiss.IndexIDMap(index)
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    with pytest.raises(StoreError, match="too many indexes in each other"):
        read(tmp_path / "index.faiss")


def test_graphs_that_are_not_looked_into_are_refused(tmp_path: Path):
    write(tmp_path / "index.faiss", "NSG8")
    with pytest.raises(StoreError, match="a graph of a kind that is not looked into; HNSW is"):
        read(tmp_path / "index.faiss")


def test_links_of_a_graph_are_not_taken_for_indexes(tmp_path: Path):
    index = faiss.index_factory(DIM, "HNSW4")
    index.hnsw.efSearch = index.hnsw.efConstruction = int.from_bytes(b"I\0\0\0", "little")
    for _ in range(14):
        index = faiss.IndexIDMap(index)
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    assert isinstance(read(tmp_path / "index.faiss"), faiss.IndexIDMap)


def test_a_transform_must_be_linear_and_of_its_size(tmp_path: Path):
    path = tmp_path / "transform.faiss"
    pca = faiss.PCAMatrix(DIM, 4)
    pca.train(KEYS)
    faiss.write_VectorTransform(pca, str(path))
    np.testing.assert_array_equal(read_linear(path, DIM, 4, "again").apply(KEYS[:5]), pca.apply(KEYS[:5]))
    for d_in, d_out in ((DIM, 5), (4, DIM)):
        with pytest.raises(StoreError, match=r"transform\.faiss is not as .*8 × 4, expected .*; again"):
            read_linear(path, d_in, d_out, "again")
    data = path.read_bytes()
    for damaged in (b"", b"nonsense", data[:50], data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"transform\.faiss is not as nearlm writes it"):
            read_linear(path, DIM, 4, "again")
    faiss.write_VectorTransform(faiss.RemapDimensionsTransform(DIM, 4, True), str(path))
    with pytest.raises(StoreError, match="RemapDimensionsTransform"):
        read_linear(path, DIM, 4, "again")
