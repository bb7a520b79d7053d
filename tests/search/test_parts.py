"""An index that is filled in parts has the files of one that is filled in one go."""

import numpy as np
import pytest

from nearlm.search import build_index, index_building, parts, training
from synthetic import make_store


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(parts, "BLOCK", 256)
    monkeypatch.setattr(index_building, "BLOCK", 256)
    monkeypatch.setattr(parts, "PART", 512)
    monkeypatch.setattr(training, "GROUPED_LISTS", 30)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    rng = np.random.default_rng(0)
    keys = (rng.normal(0, 1, (3000, 12)) * np.geomspace(2, 0.1, 12)).astype(np.float16)
    return make_store(tmp_path_factory.mktemp("parts") / "store", keys, rng.integers(0, 9, 3000), shard=1000)


def backwards(planned, advance):
    """Fill parts in another order than they are in."""
    for part in reversed(planned):
        part.fill(advance)


def hashes(info):
    return {name.split("/")[1]: file.sha256 for name, file in info.files.items()}


@pytest.mark.parametrize("factory", ["auto", "IVF16_HNSW8,SQ4", "IVF40,SQ4", "IVF8,PQ4x4", "flat"])
def test_files_are_those_of_an_index_filled_in_one_go(made, factory):
    name = factory.replace(",", "-")
    whole = build_index(made, factory, name=name)
    apart = build_index(made, factory, name=f"{name}-parts", fill_parts=backwards)
    assert hashes(apart) == hashes(whole)
    assert (apart.records, apart.recall, apart.bytes_per_record) == (3000, whole.recall, whole.bytes_per_record)
    assert not made.layout.index(f"{name}-parts").folder.joinpath("index.job").exists()


@pytest.mark.parametrize("resumed", [None, backwards])
def test_what_was_filled_before_an_interruption_is_not_filled_again(made, resumed):
    filled = []

    def fails(planned, advance):
        planned[1].fill()
        planned[4].fill()
        raise KeyboardInterrupt

    def counts(planned, advance):
        filled.extend(part.first for part in planned)
        backwards(planned, advance)

    name = f"again-{resumed is None}"
    with pytest.raises(KeyboardInterrupt):
        build_index(made, "IVF16,SQ8", name=name, fill_parts=fails)
    info = build_index(made, "IVF16,SQ8", name=name, fill_parts=resumed and counts)
    assert filled == ([] if resumed is None else [0, 1024, 1536, 2560])
    assert hashes(info) == hashes(build_index(made, "IVF16,SQ8", name="whole"))


def test_parts_are_whole_blocks_and_not_too_many(made, monkeypatch):
    monkeypatch.setattr(parts, "_MOST_PARTS", 4)
    planned = parts.plan_parts(made, made.layout.index("x").data("data-0"), None, 100, made.path)
    assert [(part.first, part.stop) for part in planned] == [(100, 868), (868, 1636), (1636, 2404), (2404, 3000)]
