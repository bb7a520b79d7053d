"""Results on disk."""

import pytest

import measured
from nearlm.base import StoreError, files
from nearlm.paper.results import VANILLA, MainTable, Results


def test_a_part_is_done_when_its_table_is_written_too(tmp_path, monkeypatch):
    results, real = Results(tmp_path), files.write_bytes

    def killed(path, data):
        real(path, data)
        if path.suffix == ".csv":
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        results.save("k", {"points": []}, [{"k": 1}])
    assert results.load("k") is None


def test_a_row_that_is_missing_is_named():
    table = MainTable(1, measured.main_table().rows[:1])
    assert table.row("NLM").name == "NLM"
    with pytest.raises(StoreError, match="no row 'kNN-LM', only 'NLM'"):
        table.speedup(table.rows[0], VANILLA)
