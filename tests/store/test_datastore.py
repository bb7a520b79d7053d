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
from oracle import assert_holds, changed, check, everything, expected, frame, write_rows

from calls import build
from nearlm.base import FileInfo, files
from nearlm.base.errors import ModelError, StoreError
from nearlm.model.lm import LM
from nearlm.model.pretrained import ModelSpec
from nearlm.store.datastore import Datastore
from tiny import make_llama, make_text, make_tokenizer

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
        np.testing.assert_array_equal(np.concatenate([shard for _, shard in array.parts()]), whole)
        lengths = [len(shard) for _, shard in array.parts()]
        assert [first for first, _ in array.parts()] == [0, *itertools.accumulate(lengths)][:-1]
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


FILES = st.integers(0, 10**6)


def stored_files(store: Path) -> list[Path]:
    return [path for path in sorted(store.rglob("*")) if path.is_file() and path.name != ".lock"]


def matters(path: Path, byte: int) -> bool:
    """Whether `open` has to find a damaged byte even if it may read none: in the manifest and in headers."""
    return path.name == "manifest.json" or (path.suffix == ".npy" and byte < 128)


@settings(max_examples=100)
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
            with pytest.raises(StoreError, match=rf"{re.escape(path.name)} is damaged"):
                _ = Datastore.open(kept).keys
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("NEARLM_VERIFY", "never")
                _ = Datastore.open(kept).keys
        with pytest.raises(StoreError, match=rf"{re.escape(path.name)}|has format"):
            opened.verify()
    opened.verify()


@settings(max_examples=60)
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


def test_verify_reads_how_a_store_was_chosen(kept: Path, tmp_path):
    store = Path(shutil.copytree(kept, tmp_path / "store"))
    files.write_stamped(store / "optimize.json", {"plan": {"store": "a"}})
    files.write_stamped(store / "defaults.json", {"index": "default"})
    Datastore.open(store).verify()
    (store / "optimize.json").write_text((store / "optimize.json").read_text().replace('"a"', '"b"'))
    with pytest.raises(StoreError, match=r"optimize\.json"):
        Datastore.open(store).verify()


def test_verify_reports_how_far_it_is(kept: Path):
    opened, read = Datastore.open(kept), []
    opened.verify(read.append)
    assert sum(read) == opened.bytes


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


def test_reading_a_store_changes_nothing_in_it(store: Path):
    before = everything(store)
    opened = Datastore.open(store)
    opened.verify()
    opened.context_of(3)
    torch.from_numpy(opened.keys[:10])
    opened.summary()
    assert everything(store) == before


def test_code_that_comes_with_a_tokenizer_is_never_run(store: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')\nfrom transformers import PreTrainedTokenizerFast as Evil\n"
    (store / "tokenizer" / "evil.py").write_text(code)
    config = store / "tokenizer" / "tokenizer_config.json"
    classes = {"AutoTokenizer": [None, "evil.Evil"]}
    for kind in ("Unknown", "PreTrainedTokenizerFast"):
        said = {**json.loads(config.read_text()), "auto_map": classes, "tokenizer_class": kind}
        config.write_text(json.dumps(said))
        listed = files.read_json(store / "manifest.json")
        listed["files"]["tokenizer/tokenizer_config.json"] = vars(FileInfo.of(config))
        files.write_stamped(store / "manifest.json", listed)
        with contextlib.suppress(StoreError):
            _ = Datastore.open(store).tokenizer
        assert not ran.exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", "nonsense", '{"model": {"type": "BPE"}}', "[" * 100_000])
def test_a_broken_tokenizer_is_one_of_our_errors(content: str, store: Path):
    path = store / "tokenizer" / "tokenizer.json"
    path.write_text(content)
    listed = files.read_json(store / "manifest.json")
    listed["files"]["tokenizer/tokenizer.json"] = vars(FileInfo.of(path))
    files.write_stamped(store / "manifest.json", listed)
    with pytest.raises(StoreError, match=r"tokenizer cannot be loaded \(.*\); restore it, or build the store again"):
        Datastore.open(store).context_of(0)


@pytest.mark.parametrize("content", [{}, {"a": 1}, *({"sources": value} for value in ("", 5, True, [], {}, [None]))])
def test_names_of_sources_that_cannot_be_read_are_one_of_our_errors(content: dict, store: Path):
    files.write_json(store / "docs-00000.json", content)
    listed = files.read_json(store / "manifest.json")
    listed["files"]["docs-00000.json"] = vars(FileInfo.of(store / "docs-00000.json"))
    files.write_stamped(store / "manifest.json", listed)
    with pytest.raises(StoreError, match=r"docs-00000\.(npy|json) .*(restore it|make it again)"):
        Datastore.open(store).context_of(0)


def test_a_store_without_keys_is_open_but_empty(make, tmp_path: Path):
    store = make(keys="none")
    assert store and len(store) == 0 and store.keys.shape == (0, 32) and store.keys.dtype == np.float16
    assert store.values.shape == store.origin.shape == store.weights.shape == (0,)
    assert store.record_at(1) == -1 and len(store.tokens) == store.manifest.tokens > 0
    assert store.summary()["bytes_per_record"] is None and "without keys" in repr(store)
    store.verify()
    with pytest.raises(StoreError, match=r"store has no keys, only its text; add them with: nearlm build "):
        store.trace(0)
    with pytest.raises(StoreError, match="has no keys"):
        store.need_keys()
    make("whole").need_keys()
