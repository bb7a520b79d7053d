"""An LM over a corpus → a datastore, in a job that resumes where it stopped."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from nearlm.base import (
    QUIET,
    Ints,
    Json,
    OptionError,
    Reporter,
    StoreError,
    TextError,
    files,
    store_folder,
)
from nearlm.model import FFN, ModelSpec
from nearlm.model.lm import LM
from nearlm.store.datastore import Datastore
from nearlm.store.growth import Shards, add_segment, add_shards
from nearlm.store.layout import Layout
from nearlm.store.manifest import Manifest, SegmentInfo, TokenizerInfo, format_of, next_number, stamped
from nearlm.store.model_files import describe_model, save_model
from nearlm.store.plan import BuildOptions, BuildPlan, difference
from nearlm.store.shards import Fill, Run, estimate_time, fill_here, plan_writers, ready_codec, threads_of
from nearlm.store.tombstones import forgotten_segments
from nearlm.store.writing import announce_needs, begin_or_resume, finish, throw_away, writing
from nearlm.text import (
    Framing,
    Texts,
    TextSource,
    Windows,
    check_not_empty,
    check_predictable,
    document_bounds,
    finished_stream,
    plan_windows,
    read_checksums,
    tokenise,
)

Prepare = Callable[[Datastore], None]


def build(
    model: str | ModelSpec | LM | None,
    text: Texts,
    out: str | Path,
    options: BuildOptions = BuildOptions(),
    *,
    append: bool = False,
    restart: bool = False,
    prepare: "Prepare | None" = None,
    threads: int | None = None,
    fill: Fill = fill_here,
    reporter: Reporter = QUIET,
) -> Datastore:
    """Run a model over a text and keep a (context vector, next token) record for every token.

    Args:
        model: A hub id, a model folder, a GGUF file or `smollm2-135m`; a `ModelSpec`; or an `LM`. May be None with
            `append`: the store's own.
        text: Names of files, folders, globs and corpora, or a `TextSource`.
        out: Folder of the store to make, or `cache:NAME`.
        options: How the text becomes records; with `append` as the store's own. A store that was built with
            `keys="none"` gets its keys by the same call without that, and can be used meanwhile.
        append: Add the text to a finished store.
        restart: Throw an unfinished build away first. Without it, the same call resumes where it stopped.
        prepare: What is called with the store as it will be, before it becomes so for others.
        threads: Threads that compute; keys may differ in a last bit with another number. By default torch's own.
        fill: Who computes the shards: this process, or others, as `nearlm.cluster` has it.
        reporter: Whom to tell of the progress.

    Example:
        >>> store = nearlm.build("smollm2-135m", "docs/", "excerpt", nearlm.BuildOptions(window=128))
        >>> len(store) == len(store.values)
        True
    """
    folder = store_folder(out)
    builder = _Builder(folder, TextSource.of(text), options, append, threads, fill, reporter, prepare)
    with writing(folder, builder.job):
        return builder.run(model, restart)


class _Builder:
    """One build or append: its folder, what goes in, and how."""

    def __init__(
        self,
        folder: Path,
        source: TextSource,
        options: BuildOptions,
        append: bool,
        threads: int | None,
        fill: Fill,
        reporter: Reporter,
        prepare: Prepare | None = None,
    ):
        self.folder = folder
        self.layout = Layout(folder)
        self.job = self.layout.build_job
        self.source = source
        self.corpus = source.open()
        self.options = options
        self.append = append
        self.threads = threads
        self.fill = fill
        self.reporter = reporter
        self.prepare = prepare

    def run(self, model: str | ModelSpec | LM | None, restart: bool) -> Datastore:
        """Build, append, resume, or find that all is done."""
        self.store = Datastore.open(self.folder) if self.layout.is_store else None
        self.old = self.store.manifest if self.store else None
        self._check_state(restart)
        with threads_of(self.job, self.threads):
            self.lm = self._load(model)
            self.plan = self._make_plan()
            if self.store is not None and self._is_finished(self.store):
                self.reporter.say(f"{self.folder} is complete already: {self.store.contents}")
                return self.store
            begin_or_resume(self.job, "build", self.plan.to_json(), self._left(), self._change, self.reporter)
            if self.store is not None and not self.append:
                return self._add_keys(self.store)
            return self._work()

    def _check_state(self, restart: bool) -> None:
        if self.append and self.old is None:
            raise StoreError(f"{self.folder} is not a finished store, so nothing can be appended; build it first")
        if self.old and self.old.parent:
            raise StoreError(
                f"{self.folder} was made from the store {self.old.parent.name!r}, so no text can be appended to it; "
                "append to that one and make this one again, or choose another `out`"
            )
        if restart:
            unfinished = self.old is None or self.append or self._lacks_keys(self.old)
            throw_away(self.job, self._left(), finished=not unfinished)

    def _lacks_keys(self, manifest: Manifest) -> bool:
        """Tell whether keys are wanted that a store of text alone does not have."""
        return self.options.wants_keys and not self.append and not manifest.records

    def _left(self) -> list[Path]:
        """List what an unfinished build or append has left."""
        kept = {name.split("/")[0] for name in self.old.files} if self.old else set()
        return [path for path in self.layout.of_a_build() if path.name not in kept]

    def _load(self, model: str | ModelSpec | LM | None) -> LM:
        tap = self.options.key_tap or (self.old.key_tap if self.old else FFN)
        if model is None:
            if self.store is None:
                raise OptionError("no model was given; name one with `model`")
            model = replace(self.store.model_spec(), dtype=self.store.manifest.model.dtype)
        if not isinstance(model, str | ModelSpec | LM):
            kind = type(model).__name__
            raise OptionError(f"`model` is a {kind}; give its name, or nearlm.LM(model, tokenizer) for a loaded one")
        lm = model if isinstance(model, LM) else LM.load(model, key_tap=tap)
        self.fingerprint = lm.fingerprint()
        self.tokenizer_fingerprint = lm.tokenizer_fingerprint()
        self.probe = lm.probe()
        seen = (self.fingerprint, self.probe, self.tokenizer_fingerprint, lm.name)
        if self.store and (warning := self.store.check_model(*seen)):
            self.reporter.say(f"warning: {warning}")
        return lm

    def _make_plan(self) -> BuildPlan:
        """Say all that the records depend on, apart from the text itself."""
        options = self.options.resolve_options(self.lm, self.old if self.append else None)
        if self.append and self.store and self.old:
            self.store.refuse_slim()
            framing = Framing(tuple(self.old.bos), tuple(self.old.separator))
        else:
            framing = Framing.of(self.lm.tokenizer, str(options.separator), options.bos)
        return BuildPlan(
            texts=self.corpus.labels,
            field=self.source.field,
            glob=self.source.glob,
            max_tokens=self.source.max_tokens,
            options=options,
            bos=list(framing.bos),
            separator=list(framing.separator),
            model=self.fingerprint,
            probe=files.canonical_hash(self.probe.tolist()),
            tokenizer=self.tokenizer_fingerprint,
            key_tap=self.lm.tap.path,
            dtype=self.lm.dtype,
            torch=str(torch.__version__),
            threads=torch.get_num_threads(),
            append_to=self.store.held if self.store else None,
        )

    def _is_finished(self, store: Datastore) -> bool:
        """Tell whether this very command has been carried out, also if it was killed right after."""
        just_done = self.job.started and self.job.plan().get("append_to") != store.held
        if just_done or not self.job.started:
            self.job.close()
        gone = forgotten_segments(store) if self.append else set()
        segments = (segment for number, segment in enumerate(store.manifest.segments) if number not in gone)
        same = [segment for segment in segments if segment.plan == self.plan.identity]
        if self.append and (self.job.started or not same):
            return False
        if self.corpus.repeatable:
            if any(self._has_text_of(segment) for segment in same):
                return not self._lacks_keys(store.manifest)
        elif same and (just_done or not self.append):  # what was piped in then cannot be compared with what is now
            return not self._lacks_keys(store.manifest)
        if self.append:
            return False
        what = "finished, but its text has changed since" if same else "a finished store, made with other options"
        raise StoreError(f"{self.folder} is {what}; use another `out` or `append=True`")

    def _has_text_of(self, segment: SegmentInfo) -> bool:
        """Tell whether a segment was made from the text as it is now."""
        cut = segment.tokens == self.plan.max_tokens
        return read_checksums(self.corpus, segment.read if cut else 0) == segment.sha256

    def _change(self, begun: Json) -> str | None:
        """Say what differs in the plan of the unfinished build, if anything does."""
        for name, value in self.plan.to_json().items():
            if value != begun.get(name):
                old, new = difference(begun.get(name), value)
                return f"another {name} ({old}, now {new})"
        return None

    def _work(self) -> Datastore:
        segment = self.layout.segment(next_number(self.old.segment_numbers) if self.old else 0)
        framing = Framing(tuple(self.plan.bos), tuple(self.plan.separator))
        with self._nothing_left(unless=finished_stream(self.job) is not None):
            stream = tokenise(
                self.corpus, self.lm.tokenizer, framing, segment, self.job, self.plan.max_tokens, self.reporter
            )
        with self._nothing_left():
            check_not_empty(stream, self.corpus.texts)
        stream.warn(self.reporter)
        tokens, docs = segment.arrays(stream.tokens, stream.documents)
        windows = self._windows(document_bounds(docs.open(), stream.tokens))
        with self._nothing_left():
            check_predictable(windows, self.corpus.texts)
        shards: Shards = []
        if self.plan.options.wants_keys:
            run = Run(tokens.open(), windows, self.old.tokens if self.old else 0)
            shards = self._extract([run], stream.documents)
        texts = self.corpus.labels
        grown = add_segment(self.old or self._empty_manifest(), self.layout, stream, texts, self.plan.identity)
        return self._finish(grown, shards)

    def _add_keys(self, store: Datastore) -> Datastore:
        """Make the records of a store of text alone, which stays as it is until all are there."""
        store.refuse_forgotten("which would get keys")
        bounds = store.document_bounds
        runs = []
        for base, tokens in store.tokens.parts():
            inside = bounds[np.searchsorted(bounds, base) : np.searchsorted(bounds, base + len(tokens)) + 1]
            runs.append(Run(tokens, self._windows(inside - base), base))
        return self._finish(store.manifest, self._extract(runs, store.manifest.documents))

    def _windows(self, bounds: Ints) -> Windows:
        options = self.plan.options
        assert options.window and options.stride
        return plan_windows(bounds, options.window, options.stride, bool(options.pack))

    @contextlib.contextmanager
    def _nothing_left(self, unless: bool = False) -> Iterator[None]:
        """Leave nothing behind of a text that is refused, unless keys have been computed from it."""
        try:
            yield
        except TextError:
            if not unless:
                self.job.discard(self._left())
            raise

    def _announce(self, runs: list[Run], documents: int) -> None:
        """Say what the build will need, and refuse it if the disk cannot hold it."""
        options = self.plan.options
        width = np.dtype(options.key_dtype).itemsize
        tokens = sum(len(run.tokens) for run in runs)
        records = sum(run.windows.records for run in runs)
        disk = records * (self.lm.dim * width + 12) + 4 * tokens
        weights = sum(value.nbytes for value in self.lm.model.state_dict().values())
        work = int(options.batch_tokens or 1) * self.lm.dim * 4 * 40
        old = self.old.files if self.old else {}
        self.reporter.say(
            f"{tokens:,} tokens in {documents:,} documents → {records:,} records of "
            f"{self.lm.dim} {options.key_dtype} (tap: {self.lm.tap.path})"
        )
        made = [path for path in self.folder.glob("*.npy") if path.name not in old]
        announce_needs(made, disk, weights + work + 3e8, self.reporter, self.folder, "free some or lower `max_tokens`")

    def _extract(self, runs: list[Run], documents: int) -> Shards:
        """Run the LM over all windows and return each shard's files and what it holds."""
        self._announce(runs, documents)
        first = next_number(self.old.shard_numbers) if self.old else 0
        codec = ready_codec(self.layout, self.lm, runs[0], self.plan.options)
        writers = plan_writers(self.layout, first, self.lm, runs, self.plan.options, codec)
        total = sum(int(run.windows.inputs.sum()) for run in runs)
        ahead = sum(writer.count_done(self.job) for writer in writers)
        with self.reporter.bar("building", total, "tokens", ahead) as advance:
            tick = estimate_time(self.reporter, advance, total - ahead)
            made = self.fill(writers, self.job, tick)
        return [(files, writer.info) for files, writer in zip(made, writers, strict=True)]

    def _finish(self, manifest: Manifest, shards: Shards) -> Datastore:
        """Add shards to what a store holds, and make it the store."""
        whole = stamped(add_shards(manifest, shards))
        if self.prepare is not None:
            self.prepare(Datastore(self.folder, whole))
        return finish(self.folder, whole, self.job, self.reporter)

    def _empty_manifest(self) -> Manifest:
        options = self.plan.options
        assert options.key_dtype and options.window and options.stride and options.separator is not None
        return Manifest(
            format=format_of(options.key_dtype, with_keys=options.wants_keys),
            model=describe_model(self.lm, self.fingerprint, self.folder),
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
            tokens=0,
            documents=0,
            records=0,
            segments=[],
            shards=[],
            files=save_model(self.layout, self.job, self.lm, self.probe),
        )
