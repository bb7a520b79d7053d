"""Results on disk."""

import pytest

from nearlm.base import files
from nearlm.paper.results import Results


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
