"""Indexes made on Ray."""

import pytest

from nearlm.cluster import ClusterError, ClusterOptions
from nearlm.cluster.indexing import fill_one, index_on_ray
from nearlm.search import build_index, index_building, parts


def test_the_files_are_those_of_an_index_made_here(indexed, ray_here, address, monkeypatch):
    for module in (parts, index_building):
        monkeypatch.setattr(module, "BLOCK", 1000)
    monkeypatch.setattr(parts, "PART", 2000)
    monkeypatch.setenv("NEARLM_VERIFY", "never")
    made = index_on_ray(indexed, "IVF16,SQ8", ClusterOptions(address), name="on-ray")
    monkeypatch.setattr(index_building, "BLOCK", 1 << 14)  # as workers have it
    here = build_index(indexed, "IVF16,SQ8", name="here")
    assert [file.sha256 for file in made.files.values()] == [file.sha256 for file in here.files.values()]


def test_a_worker_of_another_version_is_refused():
    with pytest.raises(ClusterError, match=r"nearlm is .* here and 0\.0 at the driver \(worker on"):
        fill_one(None, "0.0")
