"""From any text to a memory that is ready to use: hold documents out, build, index, choose, learn, measure.

A fit works in a folder beside the store, `STORE.fit`, where each step is noted, so that it resumes after a kill. What
it must know the next time (which documents are held out) and what it found are kept in the store.
"""

import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from nearlm.base import (
    QUIET,
    ArrayFile,
    Job,
    Json,
    OptionError,
    Reporter,
    StoreError,
    TextError,
    canonical_hash,
    files,
    store_folder,
)
from nearlm.knnlm import KNNLM, score_tokens
from nearlm.mixing import build_text_first, cache_text
from nearlm.model import FFN, ModelSpec
from nearlm.model.adaptation import Adapted
from nearlm.model.lm import LM
from nearlm.optimizer.continuations import Continuation, continue_unseen
from nearlm.optimizer.fit_adapter import adapter_folder, reading_of, say_adapted, spec_of, train_adapter, with_adapter
from nearlm.optimizer.fit_choice import Chosen, bring_up_to_date, make_memory, say_tried
from nearlm.optimizer.fit_plan import (
    TEST_TOKENS,
    VALID_TOKENS,
    Amounts,
    FitOptions,
    Speed,
    forecast,
    measure_speed,
    plan_amounts,
)
from nearlm.optimizer.fit_record import Fit, read_fit, write_fit
from nearlm.optimizer.holding_out import HeldOut, hold_out, text_hash
from nearlm.optimizer.unseen import Unseen
from nearlm.store import BuildOptions, Datastore, Layout, begin_or_resume, refuse_foreign
from nearlm.store.builder import build
from nearlm.store.model_files import load_lm
from nearlm.text import ASIDE, TEST, TRAIN, VALID, Selection, Split, Texts, TextSource, TokenText


@dataclass(frozen=True)
class _Measured:
    """What the last step found."""

    unseen: Unseen
    continuation: Continuation | None


def fit(
    model: str | ModelSpec | LM | None,
    text: Texts,
    out: str | Path,
    options: FitOptions = FitOptions(),
    build_options: BuildOptions = BuildOptions(),
    *,
    valid: Texts | None = None,
    test: Texts | None = None,
    restart: bool = False,
    reporter: Reporter = QUIET,
) -> Fit:
    """Make a memory of a text, ready to use: hold documents out, build, index, choose, learn, and measure it.

    Called again with more text, it adds what is new; documents that were held out stay so.

    Args:
        model: As for `build`; None: the store's own.
        text: Names of files, folders, globs and corpora, or a `TextSource`, whose `max_tokens` limits what is stored.
        out: Folder of the store to make or to extend, or `cache:NAME`.
        options: How long it may take, and what the memory may cost.
        build_options: How the text becomes records.
        valid: A text of one's own to tune on; by default whole documents are held out, with their near duplicates.
        test: A text of one's own to measure on.
        restart: Throw an unfinished fit away first. Without it, the same call resumes where it stopped.
        reporter: Whom to tell of the progress.

    Example:
        >>> found = nearlm.fit("smollm2-135m", "docs/", "ready", nearlm.FitOptions(overhead=0.5))
        >>> knnlm = nearlm.KNNLM.load("ready")
    """
    own = {name: TextSource.of(given) for name, given in ((VALID, valid), (TEST, test)) if given is not None}
    return _Fitting(store_folder(out), TextSource.of(text), own, options, build_options, reporter).run(model, restart)


class _Fitting:
    """One fit: its folder, its texts, and what was asked for."""

    def __init__(
        self,
        folder: Path,
        source: TextSource,
        own: dict[str, TextSource],
        options: FitOptions,
        build_options: BuildOptions,
        reporter: Reporter,
    ):
        self.folder = folder
        self.source = source
        self.own = own
        self.options = options
        self.build_options = build_options
        self.reporter = reporter
        self.started = time.monotonic()
        self.layout = Layout(folder)
        self.adapter = adapter_folder(folder)
        self.adapted: Adapted | None = None
        self.work = folder.absolute().with_name(f"{folder.absolute().name}.fit")
        self.job = Job(self.work, "fit")

    @cached_property
    def request(self) -> Json:
        """All that was asked for, apart from the text itself."""
        texts = {"text": self.source, **self.own}
        return {
            "texts": {name: [one.open().labels, one.field, one.glob, one.max_tokens] for name, one in texts.items()},
            **self.options.rule.values,
            "minutes": self.options.minutes,
            "all": self.options.all,
            **({} if self.options.lora is None else {"lora": self.options.lora}),
            "options": asdict(self.build_options),
        }

    def run(self, model: str | ModelSpec | LM | None, restart: bool) -> Fit:
        """Fit, resume, extend, or find that there is nothing new."""
        self._check(restart)
        kept = None if self.job.started else read_fit(self.layout.fit)
        known = kept[1] if kept else Split()
        if kept and kept[0].request == canonical_hash(self.request) and kept[0].text == self._text(known):
            self.reporter.say(f"{self.folder} is complete already: this was asked for, and the text is the same")
            return kept[0].fit
        self.work.mkdir(parents=True, exist_ok=True)
        with files.lock(self.work):
            begin_or_resume(self.job, "fit", self.request, (), self._change, self.reporter)
            found = self._fit(model, self._load(model), known)
            self.job.remove_folder()
        return found

    def _check(self, restart: bool) -> None:
        """Refuse, before the work, texts and places that will not do."""
        if not self.build_options.wants_keys:
            raise OptionError("`keys` is none, but a fit makes keys; leave it out, or use `nearlm build`")
        for one in (self.source, *self.own.values()):
            if not one.open().repeatable:
                raise TextError("a text that can be read only once, such as - (stdin), cannot be fitted; use a file")
        self.job.check_folder()
        if restart:
            self._throw_away()
        if not self.job.started:
            refuse_foreign(self.folder, self.layout.build_job)
            if self.layout.is_store and not self.layout.fit.description.exists():
                raise StoreError(f"{self.folder} is a store that was not made by `nearlm fit`; choose another `out`")

    def _throw_away(self) -> None:
        """Forget an unfinished fit, with a store that it has begun; one that was finished before stays."""
        if not self.job.folder.is_dir():
            return
        with files.lock(self.work):
            if not self.layout.fit.description.exists():
                files.remove(self.folder)
                files.remove(self.adapter)
        self.job.remove_folder()

    def _text(self, known: Split) -> str:
        """Return the hash of the text as it is now."""
        return text_hash(passage.key for passage in known.passages(self.source.open()))

    def _change(self, begun: Json) -> str | None:
        """Say what differs from the fit that was begun, if anything does."""
        for name, value in self.request.items():
            if value != begun.get(name):
                return f"another {name} ({begun.get(name)}, now {value})"
        return None

    def _load(self, model: str | ModelSpec | LM | None) -> LM:
        if self.layout.is_store:
            return load_lm(Datastore.open(self.folder), with_adapter(model, self.adapter))
        if model is None:
            raise OptionError("no model was given; name one with `model`")
        return model if isinstance(model, LM) else LM.load(model, key_tap=self.build_options.key_tap or FFN)

    def _fit(self, model: str | ModelSpec | LM | None, lm: LM, known: Split) -> Fit:
        window = self.build_options.resolve_options(lm, None).window or 1
        speed = self.job.once("speed", Speed, lambda: measure_speed(lm, self.source.open(), window))
        held, split = self._hold_out(lm, known, speed)
        lm = self._adapt(model, lm, held, split)
        store = self._build(lm, held)
        valid = self._read(lm, store, held, split, VALID)
        chosen = self.job.once("chosen", Chosen, lambda: self._choose(store, valid, lm, held, speed))
        measured = self._measure(lm, self._read(lm, store, held, split, TEST))
        if self.options.all:
            split = self._store_all(lm, held, split)
        found = self._sum_up(held, valid, chosen, measured)
        write_fit(self.layout.fit, canonical_hash(self.request), held.text, split, found)
        return found

    def _hold_out(self, lm: LM, known: Split, speed: Speed) -> tuple[HeldOut, Split]:
        """Say which documents go where, once and for all."""

        def table(rows: int) -> ArrayFile:
            return ArrayFile(self.work / "documents.npy", np.dtype("int64"), (rows, 4))

        def decide() -> HeldOut:
            corpus = self.source.open()
            held, split = hold_out(corpus, known, lambda count: self._amounts(speed, count), self.own.keys())
            held.warn(corpus, self.reporter)
            table(held.rows).write(split.to_array())
            return held

        held = self.job.once("documents", HeldOut, decide)
        self._announce(lm, held, speed)
        return held, Split.from_array(table(held.rows).open(), held.block)

    def _adapt(self, model: str | ModelSpec | LM | None, lm: LM, held: HeldOut, split: Split) -> LM:
        """Train an adapter for a new store, if one was asked for, and load it with its model; a store keeps its own."""
        if self.options.lora is None or self.job.once("grows", bool, lambda: self.layout.is_store):
            return lm
        texts = (Selection.of_text(self.source, held.new, held.block), self._source(held, split, VALID))
        reading = reading_of(self.build_options.resolve_options(lm, None), lm.tokenizer)
        how = (reading, 60 * self.options.lora, self.adapter, self.job, self.reporter)
        self.adapted = train_adapter(spec_of(model), texts, *how)
        return LM.load(with_adapter(model, self.adapter), key_tap=self.build_options.key_tap or FFN)

    def _amounts(self, speed: Speed, characters: int) -> Amounts:
        minutes = self.options.memory_minutes
        seconds = None if minutes is None else 60 * minutes - (time.monotonic() - self.started)
        most = self.source.max_tokens
        planned = plan_amounts(speed, characters, seconds, most)
        if most is None or planned.store is None or not self.layout.is_store:
            return planned
        room = most - Datastore.open(self.folder).manifest.tokens
        return replace(planned, store=max(0, min(planned.store, room)))

    def _announce(self, lm: LM, held: HeldOut, speed: Speed) -> None:
        """Say beforehand what will be done and what that takes."""
        counts = held.counts
        tokens = {part: int(held.characters.get(part, 0) / speed.characters) for part in (TRAIN, VALID, TEST)}
        parts = [f"{counts.get(TRAIN, 0):,} documents (about {tokens[TRAIN]:,} tokens) to be stored"]
        for part, why in ((VALID, "to tune on"), (TEST, "to measure on")):
            if part in self.own:
                tokens[part] = self._most(held, part)
                parts.append(f"your own text {why}")
            else:
                parts.append(f"{counts.get(part, 0):,} (about {tokens[part]:,}) held out {why}")
        if held.left:
            parts.append(f"{held.left:,} left out for the time or size that was asked for")
        weights = sum(value.nbytes for value in lm.model.state_dict().values())
        self.reporter.say(f"{'; '.join(parts)}; {say_tried(tokens[VALID], held.amounts.ways)}")
        both = (tokens[VALID], tokens[TEST])
        self.reporter.say(forecast(speed, tokens[TRAIN], both, held.amounts.ways, lm.dim, weights))

    def _build(self, lm: LM, held: HeldOut) -> Datastore:
        """Build the store of the documents that are new, or add them."""
        grows = self.job.once("grows", bool, lambda: self.layout.is_store)

        def add() -> bool:
            text = Selection.of_text(self.source, held.new, held.block)
            options = BuildOptions() if grows else self.build_options
            if grows:
                build(lm, text, self.folder, options, append=True, reporter=self.reporter)
            else:
                build_text_first(lm, text, self.folder, options, reporter=self.reporter)
            return True

        if held.new or not grows:
            self.job.once("built", bool, add)
        return Datastore.open(self.folder)

    def _most(self, held: HeldOut, part: str) -> int:
        """Return how many tokens of a text of the user's own are read: what its source says, or what is worth it."""
        usual = {VALID: VALID_TOKENS, TEST: TEST_TOKENS}[part]
        planned = usual if self.options.minutes is None else max(2, getattr(held.amounts, part))
        return self.own[part].max_tokens or planned

    def _read(self, lm: LM, store: Datastore, held: HeldOut, split: Split, part: str) -> TokenText | None:
        """Tokenise a held-out text, if there is one with anything to predict."""
        source = self._source(held, split, part)
        return None if source is None else cache_text(source, lm.tokenizer, store.reading(), self.reporter)

    def _source(self, held: HeldOut, split: Split, part: str) -> TextSource | None:
        """Return a held-out text, if there is one."""
        source = self.own.get(part)
        if source is not None:
            return replace(source, max_tokens=self._most(held, part))
        if not held.counts.get(part):
            return None
        return Selection.of_text(self.source, split.select(part), held.block, gaps=True)  # type: ignore[no-any-return]

    def _choose(self, store: Datastore, valid: TokenText | None, lm: LM, held: HeldOut, speed: Speed) -> Chosen:
        ways = held.amounts.ways
        return make_memory(store, valid, lm, self.job, self.options.rule, ways, speed.seconds, self.reporter)

    def _measure(self, lm: LM, text: TokenText | None) -> _Measured | None:
        """Score the unseen text and continue a passage of it."""
        if text is None:
            return None

        def measure() -> _Measured:
            knnlm = KNNLM.load(self.folder, lm)
            scored = score_tokens(knnlm, text, reporter=self.reporter)
            return _Measured(Unseen.of(text, scored), continue_unseen(knnlm, text, scored))

        return self.job.once("measured", _Measured, measure)

    def _store_all(self, lm: LM, held: HeldOut, split: Split) -> Split:
        """Add what was held out to the store, which then mixes as before."""
        keys = split.select(VALID) | split.select(TEST) | split.select(ASIDE)
        if keys:
            text = Selection.of_text(self.source, keys, held.block)
            store = build(lm, text, self.folder, append=True, reporter=self.reporter)
            bring_up_to_date(store, self.reporter)
        for part in (VALID, TEST, ASIDE):
            split = split.move(part, TRAIN)
        return split

    def _sum_up(self, held: HeldOut, valid: TokenText | None, chosen: Chosen, measured: _Measured | None) -> Fit:
        store = Datastore.open(self.folder)
        notes = [*held.notes, *chosen.notes]
        if self.adapted is not None:
            notes.append(say_adapted(self.adapted))
        if measured is None:
            notes.append("nothing could be measured: there is too little text to hold some out")
        if self.options.all:
            notes.append("what was held out has been added since it was measured")
        made = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        return Fit(
            model=store.manifest.model.name,
            records=len(store),
            documents=store.manifest.documents,
            bytes=made,
            valid_documents=len(set(valid.documents.tolist())) if valid else 0,
            valid_tokens=len(valid.targets) if valid else 0,
            test_documents=measured.unseen.documents if measured else 0,
            left_documents=held.left,
            chosen=chosen.label,
            notes=tuple(notes),
            unseen=measured.unseen if measured else None,
            continuation=measured.continuation if measured else None,
        )
