"""An LM over a corpus → a datastore, in a job that resumes where it stopped."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from nearlm.base import (
    QUIET,
    FileInfo,
    OptionError,
    Reporter,
    StoreError,
    TextError,
    canonical_hash,
    files,
    size,
    store_folder,
)
from nearlm.model import FFN, ModelSpec
from nearlm.model.lm import LM
from nearlm.store.datastore import Datastore
from nearlm.store.layout import Layout
from nearlm.store.manifest import (
    FORMAT,
    Manifest,
    SegmentInfo,
    ShardInfo,
    TokenizerInfo,
    write_manifest,
)
from nearlm.store.model_files import describe_model, save_model
from nearlm.store.plan import BuildOptions, BuildPlan, difference
from nearlm.store.shards import Clock, ShardWriter
from nearlm.store.writing import announce_needs, writing
from nearlm.text import (
    Framing,
    Segment,
    Texts,
    TextSource,
    TokenStream,
    Windows,
    check_not_empty,
    check_predictable,
    document_bounds,
    finished,
    plan_shards,
    plan_windows,
    read_checksums,
    tokenise,
)


def build(
    model: str | ModelSpec | LM | None,
    text: Texts,
    out: str | Path,
    options: BuildOptions = BuildOptions(),
    *,
    append: bool = False,
    restart: bool = False,
    reporter: Reporter = QUIET,
) -> Datastore:
    """Build a datastore from any causal LM and any text, or resume one that was interrupted.

    With `append` the text is added to a finished store, whose own model and options are the default.
    """
    folder = store_folder(out)
    builder = _Builder(folder, TextSource.of(text), options, append, reporter)
    with writing(folder, builder.job):
        return builder.run(model, restart)


class _Builder:
    """One build or append: its folder, what goes in, and how."""

    def __init__(self, folder: Path, source: TextSource, options: BuildOptions, append: bool, reporter: Reporter):
        self.folder = folder
        self.layout = Layout(folder)
        self.job = self.layout.build_job
        self.source = source
        self.corpus = source.open()
        self.options = options
        self.append = append
        self.reporter = reporter

    def run(self, model: str | ModelSpec | LM | None, restart: bool) -> Datastore:
        """Build, append, resume, or find that all is done."""
        self.store = Datastore.open(self.folder) if self.layout.is_store else None
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
        if self.store is not None and self.store.manifest.parent:
            parent = self.store.manifest.parent.name
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
        kept = {name.split("/")[0] for name in self.store.manifest.files} if self.store else set()
        self.job.forget_plan()  # its folder goes last: without it the rest would be a stranger's
        for path in self.layout.of_a_build():
            if path.name not in kept:
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
        tap = self.options.key_tap or (self.store.manifest.key_tap if self.store else FFN)
        if model is None:
            if self.store is None:
                raise OptionError("no model was given; name one with --model")
            model = replace(self.store.model_spec(), dtype=self.store.manifest.model.dtype)
        lm = model if isinstance(model, LM) else LM.load(model, key_tap=tap)
        self.fingerprint = lm.fingerprint()
        self.tokenizer_fingerprint = lm.tokenizer_fingerprint()
        self.probe = lm.probe()
        if self.store:
            warning = self.store.check_model(self.fingerprint, self.probe, self.tokenizer_fingerprint, lm.name)
            if warning:
                self.reporter.say(f"warning: {warning}")
        return lm

    def _make_plan(self) -> BuildPlan:
        """Say all that the records depend on, apart from the text itself."""
        options = self.options.resolved(self.lm, self.store.manifest if self.store and self.append else None)
        framing = Framing.of(self.lm.tokenizer, str(options.separator))
        return BuildPlan(
            texts=self.corpus.labels,
            field=self.source.field,
            glob=self.source.glob,
            max_tokens=self.source.max_tokens,
            options=options,
            bos=list(framing.bos),
            separator=list(framing.separator),
            model=self.fingerprint,
            probe=canonical_hash(self.probe.tolist()),
            tokenizer=self.tokenizer_fingerprint,
            key_tap=self.lm.tap.path,
            dtype=self.lm.dtype,
            torch=str(torch.__version__),
            threads=torch.get_num_threads(),
            append_to=self.store.checksum if self.store else None,
        )

    def _finished(self) -> bool:
        """Tell whether this very command has been carried out, also if it was killed right after."""
        if self.store is None:
            return False
        just_done = self.job.started and self.job.plan()["append_to"] != self.store.checksum
        if just_done or not self.job.started:
            self.job.close()
        same = [segment for segment in self.store.manifest.segments if segment.plan == self.plan.identity]
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

    def _has_text_of(self, segment: SegmentInfo) -> bool:
        """Tell whether a segment was made from the text as it is now."""
        cut = segment.tokens == self.plan.max_tokens
        return read_checksums(self.corpus, segment.read if cut else 0) == segment.sha256

    def _begin(self) -> None:
        """Start the job, or make sure that the one that was started is this one."""
        plan = self.plan.to_json()
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
        segment = self.layout.segment(len(self.store.manifest.segments) if self.store else 0)
        framing = Framing(tuple(self.plan.bos), tuple(self.plan.separator))
        with self._nothing_left(unless=finished(self.job) is not None):
            stream = tokenise(
                self.corpus, self.lm.tokenizer, framing, segment, self.job, self.plan.max_tokens, self.reporter
            )
        with self._nothing_left():
            check_not_empty(stream, self.corpus.texts)
        stream.warn(self.reporter)
        tokens, docs = segment.arrays(stream.tokens, stream.documents)
        options = self.plan.options
        assert options.window and options.stride
        bounds = document_bounds(docs.open(), stream.tokens)
        windows = plan_windows(bounds, options.window, options.stride, bool(options.pack))
        with self._nothing_left():
            check_predictable(windows, self.corpus.texts)
        self._announce(stream, windows)
        return self._finish(segment, stream, self._extract(tokens.open(), windows))

    @contextlib.contextmanager
    def _nothing_left(self, unless: bool = False) -> Iterator[None]:
        """Leave nothing behind of a text that is refused, unless keys have been computed from it."""
        try:
            yield
        except TextError:
            if not unless:
                self._discard()
            raise

    def _announce(self, stream: TokenStream, windows: Windows) -> None:
        """Say what the build will need, and refuse it if the disk cannot hold it."""
        options = self.plan.options
        width = np.dtype(options.key_dtype).itemsize
        disk = windows.records * (self.lm.dim * width + 12) + 4 * stream.tokens
        weights = sum(value.nbytes for value in self.lm.model.state_dict().values())
        work = int(options.batch_tokens or 1) * self.lm.dim * 4 * 40
        old = self.store.manifest.files if self.store else {}
        self.reporter.say(
            f"{stream.tokens:,} tokens in {stream.documents:,} documents → {windows.records:,} records of "
            f"{self.lm.dim} {options.key_dtype} (tap: {self.lm.tap.path})"
        )
        made = [path for path in self.folder.glob("*.npy") if path.name not in old]
        announce_needs(
            self.folder, disk, weights + work + 3e8, made, self.reporter, remedy="free some, or --max-tokens"
        )

    def _extract(self, tokens: npt.NDArray[np.int32], windows: Windows) -> list[tuple[int, dict[str, FileInfo]]]:
        """Run the LM over all windows and return each shard's records and files."""
        old = self.store.manifest if self.store else None
        first = len(old.shards) if old else 0
        base = old.tokens if old else 0
        writers = [
            ShardWriter(self.layout, first + i, self.lm, windows[run], tokens, base, self.plan.options)
            for i, run in enumerate(plan_shards(windows, self.plan.options.shard_records))
        ]
        total = int(windows.inputs.sum())
        ahead = sum(writer.done(self.job) for writer in writers)
        with self.reporter.bar("building", total, "tokens", ahead) as advance:
            clock = Clock(self.reporter, advance, total - ahead)
            return [(writer.windows.records, writer.fill(self.job, clock)) for writer in writers]

    def _finish(
        self, segment: Segment, stream: TokenStream, shards: list[tuple[int, dict[str, FileInfo]]]
    ) -> Datastore:
        old = self.store.manifest if self.store else None
        listed = dict(old.files) if old else save_model(self.layout, self.job, self.lm, self.probe)
        listed |= {path.name: FileInfo.of(path) for path in segment.files}
        for _, made in shards:
            listed |= made
        segments = [*(old.segments if old else []), self._describe_segment(stream)]
        shard_infos = [*(old.shards if old else []), *(ShardInfo(records) for records, _ in shards)]
        options = self.plan.options
        assert options.key_dtype and options.window and options.stride and options.separator is not None
        manifest = Manifest(
            format=FORMAT,
            model=old.model if old else describe_model(self.lm, self.fingerprint, self.folder),
            tokenizer=TokenizerInfo(self.tokenizer_fingerprint),
            key_tap=self.lm.tap.path,
            dim=self.lm.dim,
            key_dtype=options.key_dtype,
            window=options.window,
            stride=options.stride,
            pack=bool(options.pack),
            bos=self.plan.bos,
            separator=self.plan.separator,
            separator_option=options.separator,
            tokens=sum(each.tokens for each in segments),
            documents=sum(each.documents for each in segments),
            records=sum(each.records for each in shard_infos),
            segments=segments,
            shards=shard_infos,
            files=listed,
        )
        write_manifest(self.folder, manifest)
        self.job.close()
        store = self._open()
        self.reporter.say(f"{self.folder}: {len(store):,} records, {size(store.bytes)}")
        return store

    def _describe_segment(self, stream: TokenStream) -> SegmentInfo:
        return SegmentInfo(
            texts=self.corpus.labels,
            sha256=stream.sha256,
            read=stream.read,
            tokens=stream.tokens,
            documents=stream.documents,
            plan=self.plan.identity,
        )

    def _open(self) -> Datastore:
        return Datastore.open(self.folder)
