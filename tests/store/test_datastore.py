"""The format: what was written reads back exactly, any damage is found, and a record leads back to its text."""

import contextlib
import getpass
import itertools
import json
import os
import re
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_build import assert_holds, everything, expected, frame

from calls import build
from conftest import make_llama, make_text, make_tokenizer
from nearlm.base import files
from nearlm.base.errors import ModelError, StoreError
from nearlm.model.lm import LM
from nearlm.model.pretrained import ModelSpec
from nearlm.store.datastore import Datastore


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.os, "fsync", lambda _: None)
        patch.setattr(files.os, "fdatasync", lambda _: None)
        yield


def write_rows(path: Path, rows: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": row}, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def kept(lm, tmp_path_factory) -> Path:
    """A store of two segments and several shards, for tests that copy it before they change it."""
    folder = tmp_path_factory.mktemp("kept")
    texts = folder / "texts"
    texts.mkdir()
    for number, words in enumerate((70, 3, 40)):
        (texts / f"doc{number}.txt").write_text(make_text(words, seed=number))
    rows = write_rows(folder / "rows.jsonl", [make_text(30, 7), "", "naïve café — 東京 🙂", make_text(20, 8)])
    build(lm, str(texts), folder / "store", quiet=True, window=16, shard_records=100)
    build(lm, rows, folder / "store", quiet=True, append=True, shard_records=16)
    return folder / "store"


@pytest.fixture
def store(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "store"))


# What was written reads back.

ROWS = st.lists(
    st.one_of(
        st.builds(make_text, st.integers(1, 40), st.integers(0, 9)),
        st.sampled_from(["a", "", "naïve 東京 🙂", "\n\n\n", "x" * 50]),
    ),
    min_size=1,
    max_size=3,
).filter(lambda rows: any(row.strip() for row in rows))


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(ROWS, st.booleans(), st.integers(1, 60)), min_size=1, max_size=4),
    st.integers(1, 20),
    st.sampled_from(["float16", "float32"]),
)
def test_any_sequence_of_appends_and_reopenings_reads_back(tmp_path_factory, lm, steps, window, key_dtype):
    folder = tmp_path_factory.mktemp("sequence")
    documents: list[list[int]] = []
    for number, (rows, reopen, shard_records) in enumerate(steps):
        text = write_rows(folder / f"rows{number}.jsonl", rows)
        made = build(
            lm,
            text,
            folder / "store",
            append=number > 0,
            quiet=True,
            window=window,
            key_dtype=key_dtype,
            shard_records=shard_records,
        )
        documents += [frame(lm.tokenizer, row) for row in rows if row.strip()]
        opened = Datastore.open(folder / "store") if reopen else made
        assert_holds(opened, expected(lm.model, documents, window, window))
        assert len(opened.manifest.segments) == number + 1
        assert opened.manifest.documents == len(documents)
    opened.verify()
    check_reading(opened)


def check_reading(store: Datastore) -> None:
    """Compare every way of reading a store with its files, loaded by numpy."""
    for name in ("keys", "values", "origin"):
        paths = sorted(store.path.glob(f"{name}-*.npy"))
        whole = np.concatenate([np.load(path, allow_pickle=False) for path in paths])
        array = getattr(store, name)
        np.testing.assert_array_equal(array[:], whole)
        ids = np.random.default_rng(0).integers(-len(whole), len(whole), (3, 7))
        np.testing.assert_array_equal(array.take(ids), whole[ids])
        np.testing.assert_array_equal(np.concatenate([getattr(s, name) for s in store.iter_shards()]), whole)
    assert [shard.first for shard in store.iter_shards()] == [
        0,
        *itertools.accumulate(len(shard.keys) for shard in store.iter_shards()),
    ][:-1]
    np.testing.assert_array_equal(store.weights[:], np.ones(len(store), np.int32))
    np.testing.assert_array_equal(store.tokens.take(store.origin[:]), store.values[:])
    assert (np.diff(store.origin[:]) > 0).all()
    assert store.values.dtype == store.weights.dtype == store.tokens.dtype == np.int32
    assert store.origin.dtype == np.int64


def test_all_arrays_are_plain_npy_files_with_128_bytes_of_header(kept: Path):
    for path in kept.glob("*.npy"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        assert path.stat().st_size == 128 + array.nbytes


def test_summary_is_what_the_store_holds(kept: Path):
    store = Datastore.open(str(kept))
    summary = store.summary()
    assert summary["records"] == len(store)
    assert summary["documents"] == 6
    assert summary["tokens"] == len(store.tokens)
    assert summary["texts"] == ["texts", "rows.jsonl"]
    assert summary["bytes"] == sum((kept / name).stat().st_size for name in store.manifest.files)
    assert not summary["unfinished_append"]
    json.dumps(summary)


# Any damage is found.

FILES = st.integers(0, 10**6)


def stored_files(store: Path) -> list[Path]:
    return [path for path in sorted(store.rglob("*")) if path.is_file() and path.name != ".lock"]


@contextlib.contextmanager
def changed(path: Path, data: bytes):
    """Hold other bytes in a file for a while."""
    before = path.read_bytes()
    overwrite(path, data)
    try:
        yield
    finally:
        overwrite(path, before)


def overwrite(path: Path, data: bytes) -> None:
    """Replace a file's bytes without emptying it first, for which ext4 would wait for the disk."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()


def matters(path: Path, byte: int) -> bool:
    """Whether `open` itself has to find a damaged byte: in the manifest and in headers."""
    return path.name == "manifest.json" or (path.suffix == ".npy" and byte < 128)


@settings(max_examples=200)
@given(FILES, st.integers(0, 10**9), st.integers(1, 255))
def test_any_flipped_byte_is_found(kept: Path, which: int, where: int, flip: int):
    paths = stored_files(kept)
    path = paths[which % len(paths)]
    data = bytearray(path.read_bytes())
    data[where % len(data)] ^= flip
    opened = Datastore.open(kept)
    with changed(path, bytes(data)):
        if matters(path, where % len(data)):
            with pytest.raises(StoreError, match=re.escape(str(kept))) as error:
                Datastore.open(kept)
            assert path.name in str(error.value) or "format" in str(error.value)
        else:
            Datastore.open(kept)
        with pytest.raises(StoreError, match=rf"{re.escape(path.name)}|has format"):
            opened.verify()
    opened.verify()


def test_even_white_space_of_the_manifest_counts(kept: Path):
    path = kept / "manifest.json"
    data = path.read_bytes()
    for where in range(0, len(data), 3):
        flipped = data[:where] + bytes([data[where] ^ (0x2A if data[where] in b" \n" else 1)]) + data[where + 1 :]
        with changed(path, flipped), pytest.raises(StoreError, match=r"manifest\.json|has format"):
            Datastore.open(kept)


@settings(max_examples=100)
@given(FILES, st.integers(0, 10**9))
def test_any_cut_tail_is_found_already_by_open(kept: Path, which: int, length: int):
    paths = stored_files(kept)
    path = paths[which % len(paths)]
    data = path.read_bytes()
    opened = Datastore.open(kept)
    with changed(path, data[: length % len(data)]):
        with pytest.raises(StoreError, match=re.escape(path.name)):
            Datastore.open(kept)
        with pytest.raises(StoreError, match=re.escape(path.name)):
            opened.verify()


@settings(max_examples=30)
@given(FILES, st.binary(min_size=1, max_size=9))
def test_any_longer_file_is_found_already_by_open(kept: Path, which: int, tail: bytes):
    paths = stored_files(kept)
    path = paths[which % len(paths)]
    with changed(path, path.read_bytes() + tail), pytest.raises(StoreError, match=re.escape(path.name)):
        Datastore.open(kept)


def test_any_missing_file_is_found_and_named(kept: Path, tmp_path: Path):
    names = [path.relative_to(kept) for path in stored_files(kept)]
    opened = Datastore.open(kept)
    assert set(map(str, names)) == {"manifest.json", *opened.manifest.files}
    for name in names:
        (kept / name).rename(tmp_path / "away")
        try:
            with pytest.raises(StoreError, match=re.escape(name.name)):
                Datastore.open(kept)
            with pytest.raises(StoreError, match=re.escape(name.name)):
                opened.verify()
        finally:
            (tmp_path / "away").rename(kept / name)


def test_files_exchanged_between_shards_are_found(store: Path):
    sizes: dict[int, list[Path]] = {}
    for path in sorted(store.glob("values-*.npy")):
        sizes.setdefault(path.stat().st_size, []).append(path)
    one, two = next(paths for paths in sizes.values() if len(paths) > 1)[:2]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with pytest.raises(StoreError, match=one.name):
        Datastore.open(store).verify()


def test_verify_reports_how_far_it_is(kept: Path):
    opened, read = Datastore.open(kept), []
    opened.verify(read.append)
    assert sum(read) == opened.bytes


def test_a_manifest_from_a_newer_format_asks_for_an_upgrade(store: Path):
    manifest = files.read_json(store / "manifest.json")
    files.write_stamped(store / "manifest.json", {**manifest, "format": 2, "something": "new"})
    with pytest.raises(StoreError, match=r"has format 2, this nearlm reads up to 1; upgrade nearlm"):
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
    with pytest.raises(StoreError, match=r"has no manifest\.json, so it is no store"):
        Datastore.open(tmp_path)


# A record leads back to its text.


def test_every_record_is_traced_to_document_position_and_text(kept: Path, lm):
    texts = kept.parent / "texts"
    documents = [(f"texts/{path.name}", path.read_text()) for path in sorted(texts.iterdir())]
    lines = (kept.parent / "rows.jsonl").read_text().splitlines()
    rows = [(f"rows.jsonl:{number}", json.loads(line)["text"]) for number, line in enumerate(lines, start=1)]
    store, record = Datastore.open(kept), 0
    for name, text in [*documents, *((name, text) for name, text in rows if text)]:
        tokens = frame(lm.tokenizer, text)
        for position in range(1, len(tokens)):
            context = store.context_of(record, before=9)
            assert (context.document, context.position) == (name, position)
            assert context.text == lm.tokenizer.decode(tokens[max(0, position - 9) : position])
            assert context.target == lm.tokenizer.decode([tokens[position]])
            record += 1
        whole = store.context_of(record - 1, before=10**6)
        assert whole.text == f"<s>{text}"
        assert whole.target == "</s>"
    assert record == len(store)


def test_a_context_says_as_much_as_it_is_asked_for(kept: Path):
    store = Datastore.open(kept)
    last = store.context_of(-1)
    assert last == store.context_of(len(store) - 1)
    assert store.context_of(5, before=0).text == ""
    assert store.trace(5)["text"] == store.context_of(5).text
    assert store.trace(5)["token"] == store.values[5]
    json.dumps(store.trace(5))


@pytest.mark.parametrize("record", [10**9, -(10**9)])
def test_a_record_that_does_not_exist_is_refused(record: int, kept: Path):
    store = Datastore.open(kept)
    with pytest.raises(StoreError, match=rf"record {record} does not exist; .* 0 to {len(store) - 1}"):
        store.context_of(record)


def test_positions_outside_the_text_have_no_document(kept: Path):
    store = Datastore.open(kept)
    assert store.document_of(0) == ("texts/doc0.txt", 0)
    for position in (-1, len(store.tokens)):
        with pytest.raises(IndexError, match="outside the token stream"):
            store.document_of(position)


def test_records_of_packed_windows_know_their_own_document(lm, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", ["the licence", "free of charge", "any person"])
    store = build(lm, rows, tmp_path / "store", quiet=True, window=64, pack=True)
    begins = [store.document_of(int(position)) for position in store.origin[:]]
    stream = [frame(lm.tokenizer, row) for row in ("the licence", "free of charge", "any person")]
    want, begin = [], 0
    for number, tokens in enumerate(stream, start=1):
        want += [(f"rows.jsonl:{number}", begin)] * len(tokens)
        begin += len(tokens)
    assert begins == want[1:]
    boundary = store.context_of(len(stream[0]) - 1)
    assert (boundary.document, boundary.position, boundary.text) == ("rows.jsonl:2", 0, "")
    assert boundary.target == "<s>"


def test_the_stored_tokenizer_is_that_of_the_model(kept: Path, lm):
    from nearlm.model.lm import tokenizer_fingerprint

    assert tokenizer_fingerprint(Datastore.open(kept).tokenizer) == lm.tokenizer_fingerprint()


# The model must be the one that made the store.


def check(store: Path, lm: LM) -> str | None:
    return Datastore.open(store).check_model(lm.fingerprint(), lm.probe(), lm.tokenizer_fingerprint(), lm.name)


def test_the_same_model_is_accepted(kept: Path, lm, model_folder: Path):
    assert check(kept, lm) is None
    assert check(kept, LM.load(str(model_folder))) is None


@pytest.mark.parametrize("config", [{"num_hidden_layers": 3}, {"intermediate_size": 80}, {"hidden_size": 64}])
def test_another_size_is_refused_with_both_names(config, kept: Path, tokenizer):
    with pytest.raises(ModelError, match=r"built with tiny-llama, bigger is another architecture or size"):
        check(kept, LM(make_llama(**config), tokenizer, name="bigger"))


def test_other_weights_are_refused_with_both_names(kept: Path, tokenizer):
    with pytest.raises(ModelError, match=r"built with .*tiny-llama, cousin has other weights \(median cosine"):
        check(kept, LM(make_llama(seed=1), tokenizer, name="cousin"))


def test_another_tokenizer_is_refused_with_both_names(kept: Path):
    other = make_tokenizer(vocab_size=290)
    with pytest.raises(ModelError, match=r"the tokenizer of .*tiny-llama, that of cousin differs"):
        check(kept, LM(make_llama(), other, name="cousin"))


def test_keys_that_are_not_finite_are_refused(kept: Path, lm):
    with pytest.raises(ModelError, match="median cosine of probe keys nan"):
        Datastore.open(kept).check_model(
            lm.fingerprint(), np.full_like(lm.probe(), np.nan), lm.tokenizer_fingerprint(), "broken"
        )


def test_another_dtype_is_a_warning(kept: Path, model_folder: Path, tmp_path: Path, capsys):
    half = LM.load(ModelSpec(str(model_folder), dtype="bfloat16"))
    assert half.dtype == "bfloat16"
    warning = check(kept, half)
    assert warning is not None
    assert "slightly other keys" in warning
    shutil.copytree(kept, tmp_path / "store")
    (tmp_path / "more.txt").write_text("the licence grants rights")
    build(half, str(tmp_path / "more.txt"), tmp_path / "store", append=True)
    assert "warning: " in capsys.readouterr().err


# A store can be moved, and tells nothing about the machine that made it.


def test_no_file_knows_the_machine_or_the_time(store: Path, kept: Path, tmp_path: Path):
    names = (str(tmp_path), str(kept.parent), str(Path.home()), socket.gethostname(), "/tmp/", "/root")
    user = getpass.getuser() if os.environ.get("USER") else ""
    for path in [*store.glob("*.json"), *store.glob("tokenizer/*")]:
        text = path.read_text()
        assert not [name for name in (*names, user) if len(name) > 3 and name in text], path
        assert not re.search(r"\b20\d\d-\d\d-\d\d|\b1[7-9]\d{8}\b", text), path


def test_a_build_at_another_time_and_place_gives_the_same_manifest(kept: Path, lm, tmp_path: Path, monkeypatch):
    import time

    monkeypatch.setattr(time, "time", lambda: 12345.0)
    shutil.copytree(kept.parent / "texts", tmp_path / "deep" / "texts")
    shutil.copy(kept.parent / "rows.jsonl", tmp_path / "deep")
    shutil.copytree(lm.name, tmp_path / lm.name.rsplit("/", 1)[-1])
    place = tmp_path / "deep" / "elsewhere"
    build(lm, str(tmp_path / "deep" / "texts"), place, quiet=True, window=16, shard_records=100)
    monkeypatch.chdir(tmp_path / "deep")
    build(lm, "rows.jsonl", "elsewhere", quiet=True, append=True, shard_records=16)
    mine, theirs = everything(place), everything(kept)
    manifests = [json.loads(files_.pop("manifest.json")) for files_ in (mine, theirs)]
    assert mine == theirs
    for manifest in manifests:
        del manifest["checksum"], manifest["model"]["name_path"]
    assert manifests[0] == manifests[1]


def test_a_local_model_is_found_again_also_after_both_were_moved(model_folder: Path, tmp_path: Path, monkeypatch):
    home = tmp_path / "home"
    shutil.copytree(model_folder, home / "models" / "tiny")
    (home / "a.txt").write_text(make_text(30))
    monkeypatch.chdir(home)
    build("models/tiny", "a.txt", "stores/mine", quiet=True, window=16)
    options = vars(Datastore.open("stores/mine").model_spec())
    assert Path(options["model"]) == home / "models" / "tiny"
    monkeypatch.chdir(tmp_path)
    home.rename(tmp_path / "elsewhere")
    moved = Datastore.open(tmp_path / "elsewhere" / "stores" / "mine")
    found = moved.model_spec()
    assert Path(found.model) == tmp_path / "elsewhere" / "models" / "tiny"
    assert check(moved.path, LM.load(found)) is None
    assert not any(str(tmp_path) in text for text in (moved.path / "manifest.json").read_text().splitlines())


def test_a_model_that_is_no_folder_keeps_its_name(lm, tokenizer, tmp_path: Path):
    (tmp_path / "a.txt").write_text("the licence")
    for name, shown in (("org/model", "org/model"), ("/gone/away/model", "model")):
        store = build(LM(make_llama(), tokenizer, name=name), str(tmp_path / "a.txt"), tmp_path / shown, quiet=True)
        assert store.model_spec().model == shown


def test_reading_a_store_changes_nothing_in_it(store: Path):
    before = everything(store)
    opened = Datastore.open(store)
    opened.verify()
    opened.context_of(3)
    torch.from_numpy(opened.keys[:10])
    opened.summary()
    assert everything(store) == before
