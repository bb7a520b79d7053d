"""An LM over a corpus → a datastore, in a job that goes on where it stopped."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nearlm.base import ArrayFile, Job, Json, OptionError, Reporter, StoreError, TextError, files, size, store_folder
from nearlm.model import BUILT_IN, FFN, LM, PROBE_TOKENS, ModelSpec
from nearlm.store.datastore import (
    BUILD_JOB,
    FORMAT,
    MANIFEST,
    PROBE,
    TOKENIZER,
    Datastore,
    describe,
    write_manifest,
)
from nearlm.store.plan import BuildOptions, difference, identity, resolve
from nearlm.store.shards import Clock, ShardWriter
from nearlm.store.writing import portable_path, writing
from nearlm.text import (
    Corpus,
    Framing,
    Segment,
    Windows,
    check_not_empty,
    check_predictable,
    document_bounds,
    plan_shards,
    plan_windows,
    read_checksums,
    tokenise,
)


def build(
    model: str | ModelSpec | LM | None,
    texts: str | Sequence[str],
    out: str | Path,
    *,
    append: bool = False,
    restart: bool = False,
    field: str = "text",
    glob: str | None = None,
    strict: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Datastore:
    """Build a datastore from any causal LM and any text, or go on with one that was interrupted.

    `options` are those of `BuildOptions`. With `append` the text is added to a finished store,
    whose own model and options are the default.
    """
    corpus = Corpus([texts] if isinstance(texts, str) else texts, field=field, glob=glob, strict=strict)
    folder = store_folder(out)
    builder = _Builder(folder, corpus, BuildOptions(**options), Reporter(quiet), append)
    with writing(folder, BUILD_JOB):
        return builder.run(model, restart)


class _Builder:
    """One build or append: its folder, what goes in, and how."""

    def __init__(self, folder: Path, corpus: Corpus, options: BuildOptions, reporter: Reporter, append: bool):
        self.folder, self.corpus, self.options, self.reporter = folder, corpus, options, reporter
        self.append = append
        self.job = Job(folder, BUILD_JOB)

    def run(self, model: str | ModelSpec | LM | None, restart: bool) -> Datastore:
        """Build, append, go on, or find that all is done."""
        self.store = Datastore.open(self.folder) if (self.folder / MANIFEST).exists() else None
        self._check_state(restart)
        with self._threads():
            self.lm = self._load(model)
            self.plan = self._make_plan()
            if self._finished():
                self.reporter.say(f"{self.folder} is complete already: {len(self._open()):,} records")
                return self._open()
            self._begin()
            return self._work()

    def _check_state(self, restart: bool) -> None:
        if self.append and self.store is None:
            raise StoreError(f"{self.folder} is no finished store, so nothing can be appended; build it first")
        if self.store is not None and self.store.manifest["parent"]:
            parent = self.store.manifest["parent"]["name"]
            raise StoreError(
                f"{self.folder} was made from the store {parent!r}, so no text goes into it; "
                "append to that one and make this one again, or choose another --out"
            )
        if restart and self.store is not None and not self.append:
            raise StoreError(f"{self.folder} is a finished store; --restart throws away unfinished builds only")
        if restart:
            self._discard()

    def _discard(self) -> None:
        """Throw away what an unfinished build or append has left."""
        kept = set() if self.store is None else {MANIFEST, *self.store.manifest["files"]}
        files.remove(self.job.folder / "plan.json")  # its folder goes last: without it the rest would be a stranger's
        for pattern in (
            "keys-*.npy",
            "values-*.npy",
            "origin-*.npy",
            "tokens-*.npy",
            "docs-*",
            PROBE,
            TOKENIZER,
            "*.part",
        ):
            for path in self.folder.glob(pattern):
                if path.name not in kept and path.name != (TOKENIZER if kept else ""):
                    files.remove(path)
        self.job.close()

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        """Compute with as many threads as the unfinished build did, so that every byte comes out the same."""
        before = torch.get_num_threads()
        if self.job.started:
            torch.set_num_threads(self.job.plan()["threads"])
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _load(self, model: str | ModelSpec | LM | None) -> LM:
        tap = self.options.key_tap or (self.store.manifest["key_tap"] if self.store else FFN)
        if model is None:
            if self.store is None:
                raise OptionError("no model was given; name one with --model")
            model = ModelSpec(**self.store.model_options(), dtype=self.store.manifest["model"]["dtype"])
        lm = model if isinstance(model, LM) else LM.load(model, key_tap=tap)
        self.spec = lm.spec
        self.fingerprint, self.tokenizer_fingerprint, self.probe = (
            lm.fingerprint(),
            lm.tokenizer_fingerprint(),
            lm.probe(),
        )
        if self.store:
            warning = self.store.check_model(self.fingerprint, self.probe, self.tokenizer_fingerprint, lm.name)
            if warning:
                self.reporter.say(f"warning: {warning}")
        return lm

    def _make_plan(self) -> Json:
        """Say all that the records depend on, apart from the text itself."""
        options = resolve(self.options, self.lm, self.store.manifest if self.store and self.append else None)
        framing = Framing.of(self.lm.tokenizer, str(options["separator"]))
        return {
            "texts": self.corpus.labels,
            "field": self.corpus.field,
            "glob": self.corpus.glob,
            "options": options,
            "bos": list(framing.bos),
            "separator": list(framing.separator),
            "model": self.fingerprint,
            "probe": files.canonical_hash(self.probe.tolist()),
            "tokenizer": self.tokenizer_fingerprint,
            "key_tap": self.lm.tap.path,
            "dtype": self.lm.dtype,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }

    def _finished(self) -> bool:
        """Tell whether this very command has been carried out, also if it was killed right after."""
        if self.store is None:
            return False
        just_done = self.job.started and self.job.plan()["append_to"] != self.store.manifest["checksum"]
        if just_done or not self.job.started:
            self.job.close()
        same = [segment for segment in self.store.manifest["segments"] if segment["plan"] == identity(self.plan)]
        if self.append and (self.job.started or not same):
            return False
        if self.corpus.repeatable:
            if any(self._has_text_of(segment) for segment in same):
                return True
        elif same and (just_done or not self.append):  # what was piped in then cannot be compared with what is now
            return True
        if self.append:
            return False
        what = "finished, but its text has changed since" if same else "a finished store, made with other options"
        raise StoreError(f"{self.folder} is {what}; use another --out or --append")

    def _has_text_of(self, segment: Json) -> bool:
        """Tell whether a segment was made from the text as it is now."""
        cut = segment["tokens"] == self.plan["options"]["max_tokens"]
        return bool(read_checksums(self.corpus, segment["read"] if cut else 0) == segment["sha256"])

    def _begin(self) -> None:
        """Start the job, or make sure that the one that was started is this one."""
        plan = {**self.plan, "append_to": self.store.manifest["checksum"] if self.store else None}
        if not self.job.started:
            self._discard()
            self.job.begin(plan)
            return
        begun = self.job.plan()
        changed = [name for name in plan if plan[name] != begun.get(name)]
        if changed:
            old, new = difference(begun.get(changed[0]), plan[changed[0]])
            raise StoreError(
                f"the unfinished build in {self.folder} was begun with another {changed[0]} ({old}, now {new}); "
                "repeat the first command, or throw it away with --restart"
            )
        self.reporter.say(f"going on with the unfinished build in {self.folder}")

    def _work(self) -> Datastore:
        segment = Segment(self.folder, len(self.store.manifest["segments"]) if self.store else 0)
        framing = Framing(tuple(self.plan["bos"]), tuple(self.plan["separator"]))
        options = BuildOptions(**self.plan["options"])
        with self._nothing_left(unless=bool(self.job.state("tokens").get("done"))):
            text = tokenise(
                self.corpus, self.lm.tokenizer, framing, segment, self.job, options.max_tokens, self.reporter
            )
        with self._nothing_left():
            check_not_empty(text, self.corpus.texts)
        for problem, count in text["problems"].items():
            self.reporter.say(f"warning: {count:,} × {problem}, e.g. {text['examples'][problem]}")
        tokens = ArrayFile(segment.tokens, np.dtype("int32"), (text["tokens"],)).open()
        docs = ArrayFile(segment.docs, np.dtype("int64"), (text["documents"], 3)).open()
        bounds = document_bounds(docs, text["tokens"])
        assert options.window and options.stride
        windows = plan_windows(bounds, options.window, options.stride, bool(options.pack))
        with self._nothing_left():
            check_predictable(windows, self.corpus.texts)
        self._announce(text, windows)
        shards = self._extract(tokens, windows, options)
        return self._finish(segment, text, shards)

    @contextlib.contextmanager
    def _nothing_left(self, unless: bool = False) -> Iterator[None]:
        """Leave nothing behind of a text that is refused, unless keys have been computed from it."""
        try:
            yield
        except TextError:
            if not unless:
                self._discard()
            raise

    def _announce(self, text: Json, windows: Windows) -> None:
        """Say what the build will need, and refuse it if the disk cannot hold it."""
        records, width = windows.records, np.dtype(self.plan["options"]["key_dtype"]).itemsize
        disk = records * (self.lm.dim * width + 12) + 4 * text["tokens"]
        old = self.store.manifest["files"] if self.store else {}
        there = sum(path.stat().st_blocks * 512 for path in self.folder.glob("*.npy") if path.name not in old)
        free = shutil.disk_usage(self.folder).free
        ram = sum(value.nbytes for value in self.lm.model.state_dict().values())
        work = self.plan["options"]["batch_tokens"] * self.lm.dim * 4 * 40
        self.reporter.say(
            f"{text['tokens']:,} tokens in {text['documents']:,} documents → {records:,} records of {self.lm.dim} "
            f"{self.plan['options']['key_dtype']} (tap: {self.lm.tap.path})"
        )
        self.reporter.say(f"needs {size(disk)} of disk ({size(free)} free) and about {size(ram + work + 3e8)} of RAM")
        if disk > free + there:
            raise StoreError(
                f"{self.folder} needs {size(disk)}, its disk has {size(free)} free; free some, or --max-tokens"
            )

    def _extract(self, tokens: npt.NDArray[np.int32], windows: Windows, options: BuildOptions) -> list[Json]:
        """Run the LM over all windows and return what each shard became."""
        first_shard = len(self.store.manifest["shards"]) if self.store else 0
        base = self.store.manifest["tokens"] if self.store else 0
        runs = plan_shards(windows, options.shard_records)
        writers = [
            ShardWriter(self.folder, first_shard + i, self.lm, windows[run], tokens, base, options)
            for i, run in enumerate(runs)
        ]
        total, ahead = int(windows.inputs.sum()), sum(writer.done(self.job) for writer in writers)
        with self.reporter.bar("building", total, "tokens", ahead) as advance:
            clock = Clock(self.reporter, advance, total - ahead)
            return [writer.fill(self.job, clock) for writer in writers]

    def _finish(self, segment: Segment, text: Json, shards: list[Json]) -> Datastore:
        old: Json = self.store.manifest if self.store else {"segments": [], "shards": [], "files": self._save_model()}
        options = self.plan["options"]
        listed = dict(old["files"])
        for path in segment.files:
            listed[path.name] = describe(path)
        for shard in shards:
            listed.update(shard["files"])
        segments = [*old["segments"], self._describe_segment(text)]
        shards = [*old["shards"], *({"records": shard["records"]} for shard in shards)]
        write_manifest(
            self.folder,
            {
                "format": FORMAT,
                "model": old["model"] if self.store else self._describe_model(),
                "tokenizer": {"fingerprint": self.tokenizer_fingerprint},
                "key_tap": self.lm.tap.path,
                "dim": self.lm.dim,
                "key_dtype": options["key_dtype"],
                "window": options["window"],
                "stride": options["stride"],
                "pack": options["pack"],
                "bos": self.plan["bos"],
                "separator": self.plan["separator"],
                "separator_option": options["separator"],
                "tokens": sum(segment["tokens"] for segment in segments),
                "documents": sum(segment["documents"] for segment in segments),
                "records": sum(shard["records"] for shard in shards),
                "segments": segments,
                "shards": shards,
                "files": listed,
                "parent": None,
                "transforms": [],
            },
        )
        self.job.close()
        store = self._open()
        self.reporter.say(f"{self.folder}: {len(store):,} records, {size(store.bytes)}")
        return store

    def _save_model(self) -> Json:
        """Keep the tokenizer and the probe's keys with the records."""
        probe = ArrayFile(self.folder / PROBE, np.dtype("float32"), (PROBE_TOKENS, self.lm.dim))
        files.write_bytes(probe.path, probe.header + self.probe.tobytes())
        target = self.folder / TOKENIZER
        files.remove(target)
        with tempfile.TemporaryDirectory(dir=self.job.folder) as temporary:
            self.lm.tokenizer.save_pretrained(temporary)
            made = Path(temporary) / TOKENIZER
            made.mkdir()
            for path in sorted(Path(temporary).iterdir()):
                if path.is_file():
                    with open(path, "rb") as file:
                        files.sync(file)
                    path.replace(made / path.name)
            files.replace(made, target)
        listed = {f"{TOKENIZER}/{path.name}": describe(path) for path in sorted(target.iterdir())}
        return {PROBE: describe(probe.path), **listed}

    def _describe_segment(self, text: Json) -> Json:
        return {
            "texts": self.corpus.labels,
            "sha256": text["sha256"],
            "read": text["read"],
            "tokens": text["tokens"],
            "documents": text["documents"],
            "plan": identity(self.plan),
        }

    def _describe_model(self) -> Json:
        spec = asdict(self.spec)
        described = {name: spec[name] for name in ("revision", "trust_remote_code", "quantization")}
        for name in ("name", "adapter"):
            described[name], described[f"{name}_path"] = _portable(spec[name], self.folder)
        return {
            **described,
            "fingerprint": self.fingerprint,
            "probe_tokens": PROBE_TOKENS,
            "dtype": self.lm.dtype,
        }

    def _open(self) -> Datastore:
        return Datastore.open(self.folder)


def _portable(name: str | None, folder: Path) -> tuple[str | None, str | None]:
    """Split a model's name into one that can be shown and, for a local one, its path from the store."""
    if name is None or name in BUILT_IN or not Path(name).expanduser().exists():
        return name and (Path(name).name if Path(name).is_absolute() else name), None
    path = Path(name).expanduser()
    return path.resolve().name, portable_path(path, folder)
