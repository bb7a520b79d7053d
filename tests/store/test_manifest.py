"""The manifest: refused when it was edited, cut, or written by a newer version; read when an older one wrote it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from oracle import changed

from calls import build, reduce_store
from nearlm.base import files
from nearlm.base.errors import StoreError
from nearlm.store import Step
from nearlm.store.datastore import Datastore
from nearlm.store.manifest import extends


def test_a_manifest_from_a_newer_format_asks_for_an_upgrade(store: Path):
    manifest = files.read_json(store / "manifest.json")
    files.write_stamped(store / "manifest.json", {**manifest, "format": 5, "something": "new"})
    with pytest.raises(StoreError, match=r"has format 5, this nearlm reads up to 4; upgrade nearlm"):
        Datastore.open(store)
    (store / "manifest.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(StoreError, match=r"has format 99"):
        Datastore.open(store)


@pytest.mark.parametrize(
    ("name", "value"), [("window", 17), ("dim", 64), ("records", 1), ("shards", []), ("parent", "x")]
)
def test_an_edited_manifest_is_refused(name, value, store: Path):
    manifest = files.read_json(store / "manifest.json")
    files.write_json(store / "manifest.json", {**manifest, name: value})
    with pytest.raises(StoreError, match=r"manifest\.json does not match its own checksum"):
        Datastore.open(store)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"nonsense", b'{"format": "1"}', b'{"format": 1}', b"\xff\xfe"])
def test_what_is_no_manifest_is_refused(content: bytes, store: Path):
    (store / "manifest.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"manifest\.json"):
        Datastore.open(store)


def test_what_is_no_store_is_refused(tmp_path: Path):
    with pytest.raises(StoreError, match=r"absent does not exist; make a store with: nearlm build"):
        Datastore.open(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is a file, expected the folder of a store"):
        Datastore.open(tmp_path / "file")
    with pytest.raises(StoreError, match=r"has no manifest\.json, so it is not a store"):
        Datastore.open(tmp_path)


def test_even_white_space_of_the_manifest_counts(kept: Path):
    path = kept / "manifest.json"
    data = path.read_bytes()
    for where in range(0, len(data), 3):
        flipped = data[:where] + bytes([data[where] ^ (0x2A if data[where] in b" \n" else 1)]) + data[where + 1 :]
        with changed(path, flipped), pytest.raises(StoreError, match=r"manifest\.json|has format"):
            Datastore.open(kept)


def test_a_manifest_of_before_the_optional_fields_is_still_read(store: Path):
    manifest = files.read_json(store / "manifest.json")
    for name in ("query_dim", "weighted", "parent", "transforms", "checksum"):
        manifest.pop(name)
    files.write_stamped(store / "manifest.json", manifest)
    opened = Datastore.open(store)
    assert opened.query_dim == opened.dim == 32 and not opened.weighted
    assert opened.manifest.parent is None and opened.manifest.transforms == []
    opened.verify()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"dim": "32"}, "dim"),
        ({"dim": None}, "dim"),
        ({"shards": [{"records": "many"}]}, "shards"),
        ({"segments": [{}]}, "segments"),
        ({"model": {"name": 3}}, "model"),
        ({"files": {"probe.npy": 12}}, "files"),
        ({"bos": "<s>"}, "bos"),
        ({"weighted": 1}, "weighted"),
        ({"parent": "x"}, "parent"),
    ],
)
def test_a_wrong_type_is_one_line_that_names_it(store: Path, changed, named):
    manifest = files.read_json(store / "manifest.json")
    files.write_stamped(store / "manifest.json", {**manifest, **changed})
    with pytest.raises(StoreError, match=rf"manifest\.json is not as this nearlm writes it \(.*{named}") as refused:
        Datastore.open(store)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["model", "tokens", "records", "files", "window"])
def test_a_field_that_every_manifest_has_may_not_be_missing(store: Path, name):
    manifest = files.read_json(store / "manifest.json")
    del manifest[name]
    files.write_stamped(store / "manifest.json", manifest)
    with pytest.raises(StoreError, match=rf"manifest\.json is not as .*{name}"):
        Datastore.open(store)


def test_a_step_is_written_as_its_command_line():
    step = Step("prune", {"method": "rank", "keep": 0.5, "count_self": True, "seed": None, "restart": False}, {"n": 1})
    assert str(step) == "prune --method rank --keep 0.5 --count-self"
    assert step == Step("prune", dict(step.options)) and step != Step("reduce", step.options)
    assert step != Step("prune", {**step.options, "keep": 0.4})


OUTSIDE = [
    "../.bashrc",
    "/etc/hosts",
    "tokenizer/../../x",
    "tokenizer/a\\b",
    "tokenizer/.x",
    "tokenizer/",
    "extra.npy",
    "",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_files_that_a_store_cannot_have_are_refused_and_never_taken_over(name: str, store: Path, tmp_path: Path):
    (tmp_path / ".bashrc").write_text("mine")
    manifest = files.read_json(store / "manifest.json")
    stated = {"bytes": 4, "sha256": files.checksum(tmp_path / ".bashrc")}
    files.write_stamped(store / "manifest.json", {**manifest, "files": {**manifest["files"], name: stated}})
    with pytest.raises(StoreError, match=r"manifest\.json names a file .*, which it cannot have; restore it"):
        Datastore.open(store)
    with pytest.raises(StoreError, match="cannot have"):
        reduce_store(store, 4, tmp_path / "out", quiet=True)
    assert (tmp_path / ".bashrc").read_text() == "mine" and not (tmp_path / "out").exists()


def test_every_file_of_a_store_must_be_listed(store: Path):
    manifest = files.read_json(store / "manifest.json")
    for name in ("keys-00000.npy", "docs-00001.json", "probe.npy"):
        listed = {other: stated for other, stated in manifest["files"].items() if other != name}
        files.write_stamped(store / "manifest.json", {**manifest, "files": listed})
        with pytest.raises(StoreError, match=f"names a file '{name}'|{name}"):
            Datastore.open(store)


@pytest.mark.parametrize(
    "change", [{"records": 1}, {"tokens": 5}, {"shards": []}, {"key_dtype": "object"}, {"dim": 0}, {"stride": -1}]
)
def test_counts_that_cannot_be_are_refused(change, store: Path):
    files.write_stamped(store / "manifest.json", {**files.read_json(store / "manifest.json"), **change})
    with pytest.raises(StoreError, match=r"manifest\.json"):
        Datastore.open(store)


@pytest.mark.parametrize(
    "place", ["manifest.json", "index", "ngrams", "suffixes", "tokenizer", "keys-00000.npy", ".lock"]
)
def test_links_out_of_a_store_are_not_followed(place: str, store: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    path = store / place
    if path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.mkdir()
    path.symlink_to(elsewhere)
    with pytest.raises(StoreError, match=f"{place} is a link that leads out of"):
        Datastore.open(store)


def test_no_shards_are_those_of_a_store_without_keys_alone(store: Path):
    manifest = files.read_json(store / "manifest.json")
    kept = {name: file for name, file in manifest["files"].items() if not name.startswith(("keys", "values", "origin"))}
    bare = {**manifest, "format": 2, "records": 0, "shards": [], "files": kept}
    files.write_stamped(store / "manifest.json", bare)
    assert len(Datastore.open(store)) == 0
    for wrong in ({"format": 1}, {"records": 5}, {"shards": [{"records": 0}]}, {"tokens": 1}):
        files.write_stamped(store / "manifest.json", {**bare, **wrong})
        with pytest.raises(StoreError, match="do not add up"):
            Datastore.open(store)


def test_an_append_extends_a_state_and_nothing_else_does(store: Path, tmp_path, lm):
    opened = Datastore.open(store)
    state = opened.state
    assert extends(opened.manifest, state) and opened.continues("other", state) and not opened.continues("other", None)
    (tmp_path / "more.txt").write_text("some more text, which nobody has read")
    grown = build(lm, str(tmp_path / "more.txt"), store, append=True, quiet=True)
    assert grown.continues(opened.checksum, state) and not opened.continues(grown.checksum, grown.state)
    assert state.tokens == len(opened.tokens) < grown.state.tokens and state.records == len(opened) < len(grown)
    assert (state.segments, grown.state.segments) == (2, 3) and state.lineage != grown.state.lineage
    manifest = grown.manifest
    first = manifest.segments[0]
    for other in (
        replace(manifest, window=manifest.window + 1),
        replace(manifest, model=replace(manifest.model, fingerprint="other")),
        replace(manifest, transforms=[Step("reduce", {})]),
        replace(manifest, segments=[replace(first, sha256=["other"]), *manifest.segments[1:]]),
        replace(manifest, segments=manifest.segments[::-1]),
        replace(manifest, files={**manifest.files, "tokens-00000.npy": manifest.files["tokens-00002.npy"]}),
        replace(manifest, files={**manifest.files, "docs-00000.npy": manifest.files["docs-00002.npy"]}),
        replace(manifest, files={**manifest.files, "probe.npy": manifest.files["docs-00002.npy"]}),
        replace(manifest, records=1),
    ):
        assert not extends(other, state)
    for odd in (0, -1, 1, 4, 1 << 62):
        assert not extends(manifest, replace(state, segments=odd))
