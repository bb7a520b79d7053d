"""The paper's experiments from a setting: build, tune, shrink, measure, part after part, and a page of it all.

What has been measured stands in the folder as plain files; a run resumes with what is missing.
"""

import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from nearlm.base import Reporter, StoreError, TextError, cache_dir, canonical_hash, files, store_folder
from nearlm.base.records import from_json, to_json
from nearlm.knnlm import KNNLM
from nearlm.mixing import perplexity, trace_lm, trace_text
from nearlm.model.lm import LM
from nearlm.model.pretrained import choose_device
from nearlm.optimizer import WRITING, Bench, Fit, fit, optimize
from nearlm.paper.ablation import ablate
from nearlm.paper.comparison import Comparer, check_methods
from nearlm.paper.main_table import Memories, TestTexts, baseline, main_table
from nearlm.paper.mixture_ablation import TEST, UNRELATED, VALID, ablate_mixture
from nearlm.paper.results import ALL, FINETUNED, NLM, WITHIN, About, Continuation, MainTable, Results, Row, Sweep
from nearlm.paper.settings import TRAINED, Setting
from nearlm.paper.sweep import SweepOptions, sweep
from nearlm.search import AUTO, PAPER
from nearlm.shrink import TAKES
from nearlm.store import BuildOptions, Datastore, Layout
from nearlm.store.builder import build
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource

BUDGET = 0.1
COMPARED_PARTS = ("comparison",)
DEMO_PARTS = ("fit", "main", "continuation")
ALL_PARTS = ("choice", "within", "main", "baseline", "mixture", "adaptive", "pruning", "pca", "k", "continuation")
_NEW_TOKENS = 48
_PROMPT_TOKENS = 20
_VERSIONS = ("nearlm", "torch", "transformers", "faiss-cpu", "numba")

PartAndRows = tuple[Any, Sequence[Any]]  # a part, and its rows


class Reproduction:
    """One setting in one folder."""

    def __init__(
        self,
        setting: Setting,
        out: Path,
        reporter: Reporter,
        *,
        command: str = "",
        finetune_tokens: int | None = None,
        methods: Sequence[str] = (),
    ):
        self.setting = setting
        self.out = out
        self.reporter = reporter
        self.command = command
        self.finetune_tokens = finetune_tokens
        self.methods = methods
        self.results = Results(out)
        self.fast = out / "fast"  # the fastest within a budget
        self.best = out / "best"  # the best within an overhead
        self.memory = out / "memory"  # what `fit` makes

    def run(self, parts: Sequence[str]) -> Results:
        """Measure the parts that are missing."""
        self._check_wishes()
        self.out.mkdir(parents=True, exist_ok=True)
        with files.lock(self.out):
            self._check_folder()
            for number, part in enumerate(parts, 1):
                if part in COMPARED_PARTS:
                    self._compare()
                elif not self.results.has(part):
                    self.reporter.say(f"— {part} ({number} of {len(parts)}) —")
                    self._save(part)
            if self.finetune_tokens:
                self._finetune(self.finetune_tokens)
        return self.results

    def _save(self, part: str) -> None:
        """Measure a part, save it, and note how long it took."""
        started = time.monotonic()
        found, rows = getattr(self, f"_{part}")()
        self.results.save(part, found, rows)
        self._about(time.monotonic() - started)

    @cached_property
    def store(self) -> Datastore:
        """The store of the training text, built if need be."""
        if self.results.has("fit"):
            return Datastore.open(self.memory)
        place = self.setting.store if self.setting.max_tokens is None else None
        folder = store_folder(place or self.out / "store")
        if Layout(folder).is_store and len(found := Datastore.open(folder)):  # else a build with keys is unfinished
            return found
        model = self._train() if self.setting.model == TRAINED else self.setting.model
        options = BuildOptions(pack=self.setting.pack or None)
        source = TextSource(self.setting.train, max_tokens=self.setting.max_tokens)
        return build(model, source, folder, options, reporter=self.reporter)

    @cached_property
    def lm(self) -> LM:
        """The store's LM."""
        return load_lm(self.store)

    @cached_property
    def memories(self) -> Memories:
        """All that is measured on the test text."""
        texts = TestTexts(self.setting.valid_source, self.setting.test_source, self.setting.timed_tokens)
        return Memories(self.lm, self.store, texts, self.out, self.reporter)

    def _train(self) -> str:
        from nearlm.paper.lm_training import train_lm

        place = cache_dir() / "models" if self.setting.store or self.setting.lm else self.out
        folder = place / f"{self.setting.lm or self.setting.name}-lm"
        return str(train_lm(self.setting.train, folder, reporter=self.reporter))

    def _check_wishes(self) -> None:
        """Refuse before the work what would fail in the midst of it."""
        if "-" in (*self.setting.train, *self.setting.valid, *self.setting.test):
            raise TextError("- (stdin) can be read only once, and an experiment reads its texts again; use a file")
        if self.setting.budgets:
            check_methods(self.methods)
        if self.finetune_tokens is not None:
            from nearlm.paper.lm_training import check_training

            check_training(self.finetune_tokens)

    def _check_folder(self) -> None:
        """Refuse a folder that holds results of something else."""
        plan = {"setting": self.setting.name, "plan": canonical_hash(asdict(replace(self.setting, budgets=())))}
        path = self.out / "setting.json"
        if path.exists() and files.read_json(path) != plan:
            raise StoreError(f"{self.out} holds results of another setting or other sizes; choose another `out`")
        files.write_json(path, plan)

    def _compare(self) -> None:
        """Measure the rows of a comparison that are missing; the table is kept after each of them."""
        model = self._train() if self.setting.model == TRAINED else self.setting.model
        comparer = Comparer(self.setting, model, self.out, self.reporter)
        started = time.monotonic()
        for found in comparer.run(self.methods):
            if found == self.results.load("comparison"):  # nothing new was measured
                continue
            self.results.save("comparison", found, [row.flat() for row in found.rows])
            files.write_bytes(self.out / "comparison.md", found.markdown().encode())
            tokens = found.rows[0].test_tokens
            now = time.monotonic()
            self._note(now - started, valid_tokens=self.setting.valid_tokens or 0, test_tokens=tokens)
            started = now

    def _about(self, seconds: float) -> None:
        store = self.store
        self._note(
            seconds,
            records=len(store),
            dim=store.dim,
            store_bytes=store.bytes,
            valid_tokens=len(self.memories.valid.traced),
            test_tokens=len(self.memories.test.traced),
            device=self.lm.device.type,
        )

    def _note(self, seconds: float, *, device: str = "", **counts: int) -> None:
        """Say what was measured, with what, where, and how long it took."""
        setting = self.setting
        known: About | None = self.results.load("about")
        device = device or choose_device("auto").type
        about = About(
            setting=setting.name,
            title=setting.title,
            text=setting.text,
            model=setting.model.replace("-", " ") if setting.model == TRAINED else setting.model,
            **{"records": 0, "dim": 0, "store_bytes": 0, **counts},
            cores=os.cpu_count() or 1,
            machine=f"{platform.machine()}, {device}",
            versions={name: version(name) for name in _VERSIONS},
            command=self.command,
            seconds=seconds + (known.seconds if known else 0.0),
            paper=list(setting.paper),
        )
        self.results.save("about", about)

    def _fit(self) -> PartAndRows:
        setting = self.setting
        text = TextSource(setting.train, max_tokens=setting.max_tokens)
        texts: Any = {"valid": setting.valid_source, "test": setting.test_source}
        return fit(setting.model, text, self.memory, **texts, reporter=self.reporter), []

    def _choice(self) -> PartAndRows:
        valid = self.setting.valid_source
        choice = optimize(self.store, valid, self.fast, self.lm, budget=BUDGET, reporter=self.reporter)
        return choice, [choice.vanilla, *choice.points]

    def _within(self) -> PartAndRows:
        choice = optimize(self.store, self.setting.valid_source, self.best, self.lm, reporter=self.reporter)
        return choice, [choice.vanilla, *choice.points]

    def _main(self) -> PartAndRows:
        made = {"choice": (ALL, self.fast), "within": (WITHIN, self.best), "fit": (WITHIN, self.memory)}
        optimized = {name: Datastore.open(folder) for part, (name, folder) in made.items() if self.results.has(part)}
        return _with_rows(main_table(self.memories, optimized, budget=BUDGET, rounds=self.setting.rounds))

    def _baseline(self) -> PartAndRows:
        return _with_rows(baseline(self.memories, 1 / self._lm_speed()))

    def _lm_speed(self) -> float:
        table: MainTable = self.results.load("main")
        return table.row(NLM).tokens_per_second

    def _finetune(self, tokens: int) -> None:
        """Train the LM itself on the store's text and add what it does on the test to the baselines."""
        from nearlm.paper.lm_training import finetune

        started = time.monotonic()
        name = f"{FINETUNED} on {tokens:,}"
        known: MainTable = self.results.load("baseline")
        if any(row.name == name for row in known.rows):
            return
        source = TextSource(self.setting.train, max_tokens=tokens)
        folder = finetune(self.lm.spec, source, self.out / "finetuned" / str(tokens), reporter=self.reporter)
        text = self.memories.test.traced.text
        traced = trace_lm(LM.load(str(folder)), text, self.store.reading(), self.reporter)
        row = Row(name, perplexity(traced.log_lm), self._lm_speed())
        self.results.save("baseline", *_with_rows(replace(known, rows=[*known.rows, row])))
        self._about(time.monotonic() - started)

    def _mixture(self) -> PartAndRows:
        memories = self.memories
        benches = {VALID: memories.valid, TEST: memories.test}
        if self.setting.unrelated:
            traced = trace_text(self.lm, self.store, self.setting.unrelated_source, self.reporter)
            benches[UNRELATED] = Bench(self.store, traced, self.reporter)
        retriever = memories.valid.open(self.store, AUTO)
        found = ablate_mixture(benches, retriever, self.out, reporter=self.reporter)
        rows = [*found.sources, *found.features]
        return found, [{**to_json(row), "sources": ",".join(row.sources)} for row in rows]

    def _adaptive(self) -> PartAndRows:
        gate = self.memories.gate(self.memories.tune(self.store, PAPER), BUDGET).gate
        assert gate is not None
        setting = self.setting
        name = gate.name
        found = ablate(
            self.lm, self.store, setting.test_source, gate=name, valid=setting.valid_source, reporter=self.reporter
        )
        rows = [
            {"skipped": share, **{name: values[number] for name, values in found.all_curves.items()}}
            for number, share in enumerate(found.shares)
        ]
        return found, rows

    def _pruning(self) -> PartAndRows:
        found = {method: self._sweep_once(self.setting.keeps, SweepOptions("keep", method)) for method in TAKES}
        return found, [{"method": name, **to_json(point)} for name, one in found.items() for point in one.points]

    def _pca(self) -> PartAndRows:
        dims = [dim for dim in self.setting.dims if dim <= self.store.dim]
        lists = min(1024, max(1, len(self.store) // 40))  # of a small text fewer: each needs records to be trained
        found = self._sweep_once(dims, SweepOptions("dim", factory=f"IVF{lists},SQ8", nprobe=min(8, lists)))
        return found, found.points

    def _k(self) -> PartAndRows:
        found = self._sweep_once(self.setting.ks, SweepOptions("k", factory=PAPER))
        return found, found.points

    def _sweep_once(self, values: Sequence[float], options: SweepOptions) -> Sweep:
        """Sweep, or find that it has been done: a part may have several sweeps."""
        noted = self.out / "sweep" / f"{options.method or options.over}.json"
        if not noted.exists():
            source = replace(self.setting.valid_source, max_tokens=self.setting.sweep_tokens)
            found = sweep(self.lm, self.store, values, source, options, noted.parent, reporter=self.reporter)
            files.write_json(noted, to_json(found))
        return from_json(Sweep, files.read_json(noted), noted)

    def _continuation(self) -> PartAndRows:
        fitted: Fit | None = self.results.load("fit")
        shown = fitted and fitted.continuation
        store = self.memory if fitted else self.fast
        knnlm = KNNLM.load(store, self.lm)
        prompt = shown.prompt if shown else self.setting.prompt or self._opening()
        options: Any = {**WRITING, "max_new_tokens": _NEW_TOKENS}
        without = shown.alone if shown else KNNLM.load(store, self.lm, knn=False).generate(prompt, **options)
        start, new = knnlm.generate_ids([prompt], **(WRITING if shown else options))[0]
        tokens = list(knnlm.explain([*start, *new], first=len(start)))
        written = self.lm.tokenizer.decode(new, skip_special_tokens=True)
        return Continuation(prompt, without, written, tokens, shown.truth if shown else ""), []

    def _opening(self) -> str:
        """Return how the longest document of the test text begins, up to the end of a word."""
        text = self.memories.test.traced.text
        start = text.bounds[np.argmax(np.diff(text.bounds))]
        opening = self.lm.tokenizer.decode(text.tokens[start : start + _PROMPT_TOKENS], skip_special_tokens=True)
        return re.sub(r"\s+\S*$", "", opening.strip().rstrip("\ufffd"))


def _with_rows(table: MainTable) -> PartAndRows:
    rows = [
        {**to_json(row), "speedup": table.speedup(row), "share_of_nlm": table.speedup(row, NLM)} for row in table.rows
    ]
    return table, rows
