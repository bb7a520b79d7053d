"""A build's records against an oracle that runs the model itself, and everything that can go wrong around it."""

import copy
import errno
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_holds, everything, expected, frame, interrupt, record_files, texts_of

import nearlm
from calls import build
from nearlm.base import files, jobs
from nearlm.base.errors import ModelError, NearLMError, OptionError, StoreError, TextError
from nearlm.model.lm import LM
from nearlm.store import builder
from nearlm.store.datastore import Datastore
from tiny import make_llama, make_text, make_tokenizer


@pytest.mark.parametrize(
    "options",
    [
        {"window": 512},
        {"window": 32},
        {"window": 1},
        {"window": 32, "stride": 32, "batch_tokens": 1},
        {"window": 32, "stride": 7, "batch_tokens": 100},
        {"window": 24, "stride": 1},
        {"window": 16, "pack": True},
        {"window": 16, "stride": 5, "pack": True, "batch_tokens": 2000, "shard_records": 33},
        {"window": 50, "max_tokens": 777, "shard_records": 1},
        {"window": 50, "max_tokens": 2},
        {"window": 20, "separator": "none"},
        {"window": 20, "separator": "\n\n", "key_dtype": "float32"},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()),
)
def test_records_are_those_of_the_oracle(options, tmp_path, text_folder, tokenizer):
    model = make_llama(max_position_embeddings=512)
    store = build(LM(model, tokenizer, name="tiny"), str(text_folder), tmp_path / "store", quiet=True, **options)
    separator = {"eos": (1,), "none": ()}.get(options.get("separator", "eos"))
    if separator is None:
        separator = tuple(tokenizer(options["separator"], add_special_tokens=False)["input_ids"])
    documents = [frame(tokenizer, text, separator) for text in texts_of(text_folder)]
    left, cut = options.get("max_tokens", 10**9), []
    for document in documents:
        cut.append(document[:left])
        left -= len(cut[-1])
    want = expected(
        model,
        [document for document in cut if document],
        options["window"],
        options.get("stride", options["window"]),
        options.get("pack", False),
    )
    assert_holds(store, want)
    assert store.keys.dtype == options.get("key_dtype", "float16")
    assert store.keys.shape == (len(want.keys), 32)
    assert all(len(keys) <= max(options.get("shard_records", 1 << 18), 50) for keys in store.keys.shards)
    store.verify()


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.integers(1, 40),
    st.integers(1, 40),
    st.booleans(),
    st.integers(1, 200),
    st.integers(20, 200),
)
def test_records_are_those_of_the_oracle_for_any_options(
    tmp_path_factory, lm, tokenizer, words, window, stride, pack, batch_tokens, shard_records
):
    folder = tmp_path_factory.mktemp("any")
    rows = [make_text(count, seed) for seed, count in enumerate(words)] + ["the end"]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    store = build(
        lm,
        str(folder / "rows.jsonl"),
        folder / "store",
        quiet=True,
        window=window,
        stride=min(stride, window),
        pack=pack,
        batch_tokens=batch_tokens,
        shard_records=shard_records,
    )
    documents = [frame(tokenizer, row) for row in rows if row]
    assert_holds(store, expected(lm.model, documents, window, min(stride, window), pack))


def test_two_runs_give_the_same_bytes_in_every_file(make, tmp_path):
    make("one", batch_tokens=100, shard_records=200)
    make("two", batch_tokens=100, shard_records=200)
    assert everything(tmp_path / "one") == everything(tmp_path / "two")


def test_build_is_the_packages_own_function():
    assert nearlm.build is builder.build


def test_a_build_says_beforehand_what_it_needs(make, lm, text_folder, tmp_path, capsys):
    build(lm, str(text_folder), tmp_path / "loud", window=32, batch_tokens=100)
    said = capsys.readouterr().err
    store = Datastore.open(tmp_path / "loud")
    assert f"{len(store.tokens):,} tokens in 5 documents → {len(store):,} records" in said
    assert "of disk" in said
    assert "of RAM" in said
    assert "to go" in said
    make("quiet")
    assert capsys.readouterr() == ("", "")


class TestRefused:
    """What a build refuses, and that it leaves everything as it was."""

    def test_a_folder_that_is_no_store(self, make, tmp_path):
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "me.jpg").write_bytes(b"jpg")
        for restart in (False, True):
            with pytest.raises(StoreError, match=r"photos is not a store but holds 'me.jpg'"):
                make("photos", restart=restart)
        assert everything(tmp_path / "photos") == {"me.jpg": b"jpg"}

    def test_a_file_for_a_folder(self, make, tmp_path):
        (tmp_path / "file").write_bytes(b"mine")
        with pytest.raises(StoreError, match="is a file, expected a folder"):
            make("file")
        with pytest.raises(StoreError, match="cannot write to"):
            make("file/store")
        assert (tmp_path / "file").read_bytes() == b"mine"

    def test_an_empty_folder_is_fine(self, make, tmp_path):
        (tmp_path / "empty").mkdir()
        assert len(make("empty"))

    def test_a_finished_store_with_other_options(self, make, tmp_path):
        make()
        before = everything(tmp_path / "store")
        with pytest.raises(StoreError, match="finished store, made with other options"):
            make(window=16)
        with pytest.raises(StoreError, match="finished store; `restart=True` throws away unfinished ones only"):
            make(restart=True)
        assert everything(tmp_path / "store") == before

    def test_a_finished_store_whose_text_has_changed(self, make, text_folder, tmp_path):
        make()
        before = everything(tmp_path / "store")
        (text_folder / "doc1.txt").write_text("something else")
        with pytest.raises(StoreError, match="finished, but its text has changed"):
            make()
        assert everything(tmp_path / "store") == before

    def test_a_finished_store_whose_text_has_grown(self, make, text_folder):
        make()
        (text_folder / "zzz.txt").write_text("one more file")
        with pytest.raises(StoreError, match="finished, but its text has changed"):
            make()

    @pytest.mark.parametrize(
        ("changed", "named"),
        [
            ({"window": 16}, "options (window=32, now window=16)"),
            ({"stride": 8}, "options (stride=32, now stride=8)"),
            ({"max_tokens": 100}, "options (max_tokens=None, now max_tokens=100)"),
            ({"batch_tokens": 65}, "options (batch_tokens=64, now batch_tokens=65)"),
            ({"key_dtype": "float32"}, "options (key_dtype=float16, now key_dtype=float32)"),
            ({"separator": "none"}, "options (separator=eos, now separator=none)"),
            ({"field": "body"}, "field (text, now body)"),
            ({"glob": "*.txt"}, "glob (None, now *.txt)"),
        ],
    )
    def test_other_options_on_resume(self, changed, named, make, monkeypatch, tmp_path):
        interrupt(monkeypatch, make)
        before = everything(tmp_path / "store")
        with pytest.raises(StoreError) as error:
            make(**{"batch_tokens": 64, **changed})
        assert f"was begun with another {named}" in str(error.value)
        assert "`restart=True`" in str(error.value)
        assert everything(tmp_path / "store") == before

    def test_another_text_model_or_torch_on_resume(self, make, monkeypatch, tmp_path, tokenizer):
        interrupt(monkeypatch, make)
        other = tmp_path / "others.txt"
        other.write_text("another text")
        with pytest.raises(StoreError, match=r"another texts \(\['texts'\], now \['others.txt'\]\)"):
            make(text=other, batch_tokens=64)
        with pytest.raises(StoreError, match="another probe"):
            make(model=LM(make_llama(seed=1), tokenizer, name="other"), batch_tokens=64)
        with pytest.raises(StoreError, match="another model"):
            make(model=LM(make_llama(intermediate_size=80), tokenizer, name="other"), batch_tokens=64)
        with monkeypatch.context() as patch, pytest.raises(StoreError, match=r"another torch \(.*, now 0\.0\)"):
            patch.setattr(torch, "__version__", "0.0")
            make(batch_tokens=64)

    def test_text_that_changed_before_the_resume(self, make, monkeypatch, text_folder, tmp_path):
        interrupt(monkeypatch, make)
        old = (text_folder / "doc0.txt").read_text()
        (text_folder / "doc0.txt").write_text(old.replace("the", "teh", 1))
        with pytest.raises(StoreError, match="text has changed since the build"):
            make(batch_tokens=64)
        (text_folder / "doc0.txt").write_text(old)
        make(batch_tokens=64)
        make("whole", batch_tokens=64)
        assert record_files(tmp_path / "store") == record_files(tmp_path / "whole")

    def test_a_second_build_in_the_same_folder(self, make, tmp_path):
        (tmp_path / "store").mkdir()
        with files.lock(tmp_path / "store"), pytest.raises(StoreError, match="another nearlm process is writing"):
            make()
        assert len(make())

    def test_a_read_only_folder(self, make, monkeypatch, tmp_path):
        def read_only(*_, **__):
            raise OSError(errno.EROFS, "Read-only file system")

        with monkeypatch.context() as patch, pytest.raises(StoreError, match="Read-only file system; choose another"):
            patch.setattr(Path, "mkdir", read_only)
            make()
        with monkeypatch.context() as patch, pytest.raises(StoreError, match=r"cannot write to .*Read-only"):
            patch.setattr(files, "lock", read_only)
            make()
        make()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"window": 0}, "`window` is 0, expected at least 1"),
            ({"window": -5}, "`window` is -5"),
            ({"window": 257}, "`window` is 257, but .* reads at most 256 tokens"),
            ({"window": 10**12}, "reads at most 256"),
            ({"stride": 0}, "`stride` is 0"),
            ({"stride": 33}, "`stride` is 33, expected 1 to the window's 32"),
            ({"max_tokens": 1}, "`max_tokens` is 1, expected at least 2"),
            ({"max_tokens": -1}, "`max_tokens` is -1"),
            ({"batch_tokens": 0}, "`batch_tokens` is 0"),
            ({"shard_records": 0}, "`shard_records` is 0"),
            ({"shard_records": -1}, "`shard_records` is -1"),
            ({"key_dtype": "int4"}, "`key_dtype` is 'int4', expected one of float16, float32, int8"),
            ({"separator": ""}, "`separator=''` gives no token"),
            ({"model": None}, "no model was given"),
        ],
    )
    def test_absurd_options(self, options, message, make, tmp_path):
        with pytest.raises(OptionError, match=message):
            make(**options)
        assert not list(tmp_path.glob("store/*.json"))
        assert len(make())

    @pytest.mark.parametrize(
        ("text", "options", "message"),
        [
            ("", {}, "holds 0 tokens in 0 documents .*empty document"),
            (" \n\n ", {}, "holds 0 tokens in 0 documents"),
        ],
    )
    def test_text_without_a_token(self, text, options, message, make, tmp_path):
        (tmp_path / "a.txt").write_text(text)
        with pytest.raises(TextError, match=message):
            make(text=tmp_path / "a.txt", **options)
        (tmp_path / "a.txt").write_text("a longer text")
        assert len(make(text=tmp_path / "a.txt", restart=True))

    def test_text_with_one_token(self, lm, tmp_path):
        bare = copy.copy(lm)
        bare.tokenizer = make_tokenizer(adds_bos=False)
        (tmp_path / "a.txt").write_text("a")
        with pytest.raises(TextError, match="holds 1 tokens in 1 documents; expected at least two"):
            build(bare, str(tmp_path / "a.txt"), tmp_path / "store", quiet=True, separator="none")
        rows = "".join(json.dumps({"text": "a"}) + "\n" for _ in range(3))
        (tmp_path / "a.jsonl").write_text(rows)
        with pytest.raises(TextError, match=r"no document of .* has two tokens"):
            build(bare, str(tmp_path / "a.jsonl"), tmp_path / "rows", quiet=True, separator="none")
        packed = build(bare, str(tmp_path / "a.jsonl"), tmp_path / "pack", quiet=True, separator="none", pack=True)
        assert len(packed) == 2

    def test_too_little_disk(self, make, monkeypatch, tmp_path):
        usage = shutil.disk_usage(tmp_path)
        with monkeypatch.context() as patch, pytest.raises(StoreError, match=r"needs .* has 0 B free"):
            patch.setattr(shutil, "disk_usage", lambda _: type(usage)(usage.total, usage.total, 0))
            make()
        assert len(make())

    def test_unknown_options(self, make):
        with pytest.raises(TypeError, match="windwo"):
            make(windwo=3)


class TestGoingOn:
    """The same command again."""

    def test_after_an_interrupt_gives_the_same_bytes(self, make, monkeypatch, tmp_path):
        make("whole", batch_tokens=64, shard_records=200)
        for at in (1, 3, 6, 11, 17):
            out = f"store{at}"
            interrupt(monkeypatch, make, at, out=out, shard_records=200)
            with pytest.raises(StoreError, match="unfinished build; finish it by repeating"):
                Datastore.open(tmp_path / out)
            make(out, batch_tokens=64, shard_records=200)
            assert everything(tmp_path / out) == everything(tmp_path / "whole")

    def test_computes_no_batch_twice(self, make, monkeypatch):
        interrupt(monkeypatch, make, at=9)
        calls, real = [], LM.keys
        monkeypatch.setattr(LM, "keys", lambda self, batch: calls.append(1) or real(self, batch))
        store = make(batch_tokens=64)
        resumed = len(calls)
        calls.clear()
        make("whole", batch_tokens=64)
        assert len(calls) == resumed + 8
        store.verify()

    def test_with_as_many_threads_as_before(self, make, monkeypatch):
        before = torch.get_num_threads()
        interrupt(monkeypatch, make)
        used, real = [], LM.keys
        monkeypatch.setattr(LM, "keys", lambda self, batch: used.append(torch.get_num_threads()) or real(self, batch))
        try:
            torch.set_num_threads(before + 1)
            make(batch_tokens=64)
            assert torch.get_num_threads() == before + 1
        finally:
            torch.set_num_threads(before)
        assert set(used) == {before}

    def test_on_a_finished_store_does_nothing(self, make, monkeypatch, tmp_path):
        make()
        before = everything(tmp_path / "store")
        monkeypatch.setattr(LM, "keys", None)
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(threads + 1)  # another machine changes nothing about what was asked for
            assert len(make()) == len(Datastore.open(tmp_path / "store"))
        finally:
            torch.set_num_threads(threads)
        assert everything(tmp_path / "store") == before

    def test_with_restart_begins_again(self, make, monkeypatch, text_folder, tmp_path):
        interrupt(monkeypatch, make, shard_records=100)
        (text_folder / "doc0.txt").write_text("another text than before")
        make(window=16, restart=True)
        make("whole", window=16)
        assert everything(tmp_path / "store") == everything(tmp_path / "whole")

    def test_after_a_kill_in_the_middle_of_a_restart(self, make, monkeypatch, tmp_path):
        interrupt(monkeypatch, make, at=12, shard_records=100)
        make("whole")
        for stop in range(1, 40):
            real, calls = files.remove, []

            def remove(path, real=real, calls=calls, stop=stop):
                calls.append(path)
                if len(calls) == stop:
                    raise KeyboardInterrupt
                real(path)

            shutil.copytree(tmp_path / "store", tmp_path / f"copy{stop}")
            with monkeypatch.context() as patch:
                patch.setattr(files, "remove", remove)
                try:
                    make(f"copy{stop}", restart=True)
                    break
                except KeyboardInterrupt:
                    pass
            thrown_away = not jobs.Job(tmp_path / f"copy{stop}", "build").started
            make(f"copy{stop}", restart=not thrown_away and stop == 1)
            assert everything(tmp_path / f"copy{stop}") == everything(tmp_path / "whole")
        assert stop > 15

    def test_from_stdin_once_it_was_read(self, lm, monkeypatch, tmp_path, text_folder):
        def pipe(data: bytes, **options):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
            return build(lm, "-", tmp_path / "store", quiet=True, window=32, batch_tokens=64, **options)

        text = (text_folder / "doc0.txt").read_bytes()
        interrupt(monkeypatch, lambda **_: pipe(text), at=3)
        store = pipe(b"")
        assert store.context_of(0).document == "stdin"
        np.testing.assert_array_equal(store.tokens[:], frame(lm.tokenizer, text.decode()))
        assert len(pipe(b"something else", append=True)) > len(store)


class TestAppend:
    """Text added to a finished store."""

    @pytest.fixture
    def more(self, tmp_path: Path) -> Path:
        folder = tmp_path / "more"
        folder.mkdir()
        for number, words in enumerate((40, 90)):
            (folder / f"more{number}.txt").write_text(make_text(words, seed=50 + number))
        return folder

    def test_adds_records_and_keeps_the_old_ones(self, make, more, text_folder, lm, tmp_path):
        old = make(shard_records=300, stride=16)
        before = everything(tmp_path / "store")
        new = make(text=more, append=True, window=None, shard_records=100)
        documents = [frame(lm.tokenizer, text) for text in texts_of(text_folder) + texts_of(more)]
        assert_holds(new, expected(lm.model, documents, 32, 16))
        new.verify()
        after = everything(tmp_path / "store")
        changed = [name for name, data in before.items() if after[name] != data]
        assert changed == ["manifest.json"]
        np.testing.assert_array_equal(old.keys[:], new.keys[: len(old)])
        assert [segment.texts for segment in new.manifest.segments] == [["texts"], ["more"]]
        assert new.manifest.records == len(new) == sum(shard.records for shard in new.manifest.shards)

    def test_takes_the_model_from_the_store(self, model_folder, more, text_folder, tmp_path):
        build(str(model_folder), str(text_folder), tmp_path / "store", quiet=True, window=32)
        build(None, str(more), tmp_path / "store", append=True, quiet=True)
        build(str(model_folder), str(text_folder), tmp_path / "other", quiet=True, window=32)
        build(str(model_folder), str(more), tmp_path / "other", append=True, quiet=True)
        assert everything(tmp_path / "store") == everything(tmp_path / "other")

    def test_twice_is_once(self, make, more, tmp_path):
        make()
        make(text=more, append=True)
        before = everything(tmp_path / "store")
        make(text=more, append=True)
        make()
        assert everything(tmp_path / "store") == before

    def test_of_an_earlier_text_is_nothing_new(self, make, more, tmp_path):
        make()
        make(text=more / "more0.txt", append=True)
        make(text=more / "more1.txt", append=True)
        before = everything(tmp_path / "store")
        make(text=more / "more0.txt", append=True)
        assert everything(tmp_path / "store") == before

    def test_of_a_text_that_has_grown_adds_it(self, make, more):
        make()
        once = len(make(text=more, append=True))
        (more / "zzz.txt").write_text(make_text(10, seed=9))
        assert len(make(text=more, append=True)) > once

    def test_of_a_changed_text_goes_on_after_an_interrupt(self, make, more, monkeypatch, tmp_path):
        make()
        make(text=more, append=True)
        (more / "more0.txt").write_text(make_text(77, seed=77))
        shutil.copytree(tmp_path / "store", tmp_path / "whole")
        make("whole", text=more, append=True, batch_tokens=64)
        interrupt(monkeypatch, make, at=4, text=more, append=True)
        noted = jobs.Job(tmp_path / "store", "build").state("shard-00002")
        assert noted["batches"] == 3
        calls, real = [], LM.keys
        monkeypatch.setattr(LM, "keys", lambda self, batch: calls.append(1) or real(self, batch))
        make(text=more, append=True, batch_tokens=64)
        assert everything(tmp_path / "store") == everything(tmp_path / "whole")
        assert calls

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"window": 16}, "`window` is 16, but the store was built with 32; leave it out"),
            ({"stride": 16}, "`stride` is 16, but the store was built with 32"),
            ({"pack": True}, "`pack` is True, but the store was built with False"),
            ({"key_dtype": "float32"}, "`key_dtype` is float32, but the store was built with float16"),
            ({"separator": "none"}, "`separator` is none, but the store was built with eos"),
        ],
    )
    def test_refuses_conflicting_options(self, options, message, make, more, tmp_path):
        make()
        before = everything(tmp_path / "store")
        with pytest.raises(OptionError, match=message):
            make(text=more, append=True, **options)
        assert everything(tmp_path / "store") == before

    def test_refuses_another_model(self, make, more, tokenizer):
        make()
        with pytest.raises(ModelError, match=r"tiny-llama, stranger has other weights"):
            make(text=more, append=True, model=LM(make_llama(seed=3), tokenizer, name="stranger"))

    def test_needs_a_finished_store(self, make, more, monkeypatch, tmp_path):
        with pytest.raises(StoreError, match="not a finished store, so nothing can be appended"):
            make(append=True)
        interrupt(monkeypatch, make, out="half")
        before = everything(tmp_path / "half")
        with pytest.raises(StoreError, match="not a finished store, so nothing can be appended"):
            make("half", text=more, append=True)
        assert everything(tmp_path / "half") == before

    def test_unfinished_leaves_the_store_readable_and_others_refused(self, make, more, monkeypatch, tmp_path):
        old = make()
        interrupt(monkeypatch, make, text=more, append=True)
        store = Datastore.open(tmp_path / "store")
        store.verify()
        assert len(store) == len(old)
        assert store.summary()["unfinished_append"]
        with pytest.raises(StoreError, match="was begun with another texts"):
            make(text=more / "more0.txt", append=True, batch_tokens=64)
        assert len(make()) == len(old)  # the first command is still carried out
        restarted = make(text=more / "more0.txt", append=True, restart=True)
        assert not restarted.summary()["unfinished_append"]
        restarted.verify()

    def test_that_fails_leaves_the_store_as_it_was(self, make, tmp_path):
        old = make()
        (tmp_path / "empty.txt").write_text("")
        with pytest.raises(TextError, match="holds 0 tokens"):
            make(text=tmp_path / "empty.txt", append=True)
        store = Datastore.open(tmp_path / "store")
        store.verify()
        assert len(store) == len(old)


def test_every_refusal_is_one_of_ours():
    assert all(issubclass(kind, NearLMError) for kind in (ModelError, OptionError, StoreError, TextError))


def test_a_tokenizer_without_eos_ends_documents_with_nothing(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.eos_token = None
    (tmp_path / "a.txt").write_text("the licence")
    store = build(LM(make_llama(), tokenizer, name="x"), str(tmp_path / "a.txt"), tmp_path / "store", quiet=True)
    np.testing.assert_array_equal(store.tokens[:], frame(tokenizer, "the licence", ()))


def test_a_mistake_in_the_text_does_not_block_the_corrected_command(tmp_path, lm):
    (tmp_path / "rows.jsonl").write_text('{"body": "the licence grants rights"}\n')
    with pytest.raises(TextError, match="`field`"):
        build(lm, str(tmp_path / "rows.jsonl"), tmp_path / "store", quiet=True)
    assert len(build(lm, str(tmp_path / "rows.jsonl"), tmp_path / "store", field="body", quiet=True))


def test_documents_begin_as_the_tokenizer_begins_a_text_and_old_stores_stay_as_they_are(model_folder, tmp_path):
    plain = make_tokenizer(adds_bos=False)
    lm = LM(make_llama(), plain)
    (tmp_path / "a.txt").write_text("the licence grants rights")
    (tmp_path / "b.txt").write_text("to any person")
    first = str(tmp_path / "a.txt")
    without = build(lm, first, tmp_path / "without", quiet=True)
    assert without.manifest.bos == []
    assert without.tokens[:].tolist() == [*plain("the licence grants rights")["input_ids"], 1]
    old = build(lm, first, tmp_path / "old", quiet=True, bos=True)  # as all stores were before there was a choice
    assert old.manifest.bos == [0] and old.tokens[0] == 0
    more = build(lm, str(tmp_path / "b.txt"), tmp_path / "old", quiet=True, append=True)
    assert more.tokens[len(old.tokens)] == 0
    with pytest.raises(OptionError, match="`bos` is False, but the store was built with True"):
        build(lm, first, tmp_path / "old", quiet=True, append=True, bos=False)
    with pytest.raises(StoreError, match="made with other options"):
        build(lm, first, tmp_path / "without", quiet=True, bos=True)


def test_without_keys_a_build_keeps_the_text_alone(make, tmp_path, capsys):
    bare = make("bare", keys="none")
    whole = make("whole", keys="all")
    assert (bare.manifest.format, whole.manifest.format) == (2, 1)
    assert not list((tmp_path / "bare").glob("keys-*")) and len(bare) == 0
    np.testing.assert_array_equal(bare.tokens[:], whole.tokens[:])
    np.testing.assert_array_equal(bare.document_bounds, whole.document_bounds)
    before = everything(tmp_path / "bare")
    make("bare", keys="none")
    make("whole", keys="none")  # it has keys already, and keeps them
    assert everything(tmp_path / "bare") == before and len(Datastore.open(tmp_path / "whole")) == len(whole)


def test_keys_are_added_later_to_every_segment_to_the_same_bytes(make, lm, tmp_path, text_folder):
    more = tmp_path / "more.txt"
    more.write_text(make_text(90, seed=31))
    how = {"shard_records": 100, "batch_tokens": 64, "stride": 20}
    for out, first in (("bare", {"keys": "none"}), ("whole", {})):
        make(out, **how, **first)
        build(lm, str(more), tmp_path / out, quiet=True, append=True, shard_records=100, batch_tokens=64)
    assert len(Datastore.open(tmp_path / "bare")) == 0
    bare = Datastore.open(tmp_path / "bare")
    filled = make("bare", **how)
    whole = Datastore.open(tmp_path / "whole")
    assert len(whole.manifest.shards) > 3 and len(whole.manifest.segments) == 2
    assert record_files(tmp_path / "bare") == record_files(tmp_path / "whole")
    assert filled.checksum == whole.checksum != bare.checksum  # the manifests say the same
    assert len(make("bare", **how)) == len(filled)
    again = build(lm, str(more), tmp_path / "bare", quiet=True, append=True, shard_records=100, batch_tokens=64)
    assert again.checksum == filled.checksum  # this append has been carried out


def test_text_that_was_piped_in_gets_its_keys_without_being_read_again(lm, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(make_text(50).encode())))
    build(lm, "-", tmp_path / "bare", quiet=True, window=32, keys="none")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    filled = build(lm, "-", tmp_path / "bare", quiet=True, window=32)
    assert len(filled) == len(filled.tokens) - 1


def test_keys_are_added_by_the_command_that_made_the_text(make, lm, tmp_path, text_folder, monkeypatch):
    make("bare", keys="none")
    with pytest.raises(StoreError, match="made with other options"):
        make("bare", window=16)
    with pytest.raises(OptionError, match="`keys` is all, but the store was built with none; leave it out"):
        make("bare", append=True, keys="all")
    with pytest.raises(OptionError, match="`keys` is none, but the store was built with all; leave it out"):
        make("whole") and make("whole", append=True, keys="none")
    (text_folder / "new.txt").write_text("the licence grants rights")
    with pytest.raises(StoreError, match="its text has changed since"):
        make("bare")


def test_an_unfinished_adding_of_keys_keeps_others_out_and_can_be_thrown_away(make, tmp_path, monkeypatch):
    bare = make(keys="none", batch_tokens=64)
    interrupt(monkeypatch, make)
    assert Datastore.open(tmp_path / "store").checksum == bare.checksum and bare.summary()["unfinished_append"]
    make(keys="none", batch_tokens=64)  # complete already
    with pytest.raises(StoreError, match=r"the unfinished build in .* was begun with another options"):
        make(append=True, batch_tokens=64)
    with pytest.raises(StoreError, match="throws away unfinished ones only"):
        make(keys="none", batch_tokens=64, restart=True)
    filled = make(batch_tokens=64, restart=True)
    whole = make("whole", batch_tokens=64)
    assert record_files(tmp_path / "store") == record_files(tmp_path / "whole") and len(filled) == len(whole)
