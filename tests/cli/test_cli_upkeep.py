"""doctor and cache, as a user types them."""

import json

from refusals import is_refusal

from nearlm import __version__


def test_the_cache_is_shown_and_cleared(nearlm, tmp_path, monkeypatch):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path))
    (tmp_path / "traces" / "lm-1").mkdir(parents=True)
    (tmp_path / "traces" / "lm-1" / "keys.npy").write_bytes(bytes(1500))
    code, out, _ = nearlm("cache")
    assert code == 0 and "traces" in out and "1.5 kB" in out
    code, out, _ = nearlm("cache", "--clear", "traces", "--json")
    said = json.loads(out)
    assert code == 0 and said["freed"] == 1500 and all(row["bytes"] == 0 for row in said["kept"])
    assert is_refusal(nearlm("cache", "--clear", "everything"))


def test_doctor_names_versions_and_extras(nearlm, tmp_path, monkeypatch):
    code, out, err = nearlm("doctor", "--json")
    said = json.loads(out)
    assert (code, err) == (0, "")
    assert said["nearlm"] == __version__ and said["kernels"] == "work" and said["extra_report"] == "installed"
    monkeypatch.setattr("nearlm.cli.upkeep._needed", lambda: iter([("serve", "no-such-package"), ("serve", "numpy")]))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "file"))
    code, out, _ = nearlm("doctor")
    assert code == 0 and "missing no-such-package: pip install 'nearlm[serve]'" in out
    assert "set NEARLM_CACHE to a folder you own" in out
