"""The paper's experiments from a setting: build, tune, shrink, measure, part after part, and a page of it all.

What has been measured stands in the folder as plain files; a run goes on with what is missing.
"""

import contextlib
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from nearlm.base import Json, Reporter, StoreError, TextError, cache_dir, files, store_folder
from nearlm.knnlm import KNNLM, load_lm
from nearlm.model import LM
from nearlm.optimizer import PAPER, Choice, optimize
from nearlm.paper.ablation import ablate
from nearlm.paper.main_table import Memories, Texts, baseline, main_table
from nearlm.paper.results import FINETUNED, NLM, MainTable, Results, Row
from nearlm.paper.settings import TRAINED, Setting
from nearlm.paper.sweep import sweep
from nearlm.shrink import METHODS
from nearlm.store import Datastore
from nearlm.store.build import build

BUDGET = 0.1
DEMO_PARTS = ("choice", "main", "continuation")
ALL_PARTS = ("choice", "main", "baseline", "adaptive", "pruning", "pca", "k", "continuation")
_NEW_TOKENS, _PENALTY = 48, 1.1  # without one a small LM soon repeats itself
_VERSIONS = ("nearlm", "torch", "transformers", "faiss-cpu", "numba")


class Reproduction:
    """One setting in one folder."""

    def __init__(
        self, setting: Setting, out: Path, reporter: Reporter, *, command: str = "", finetune_tokens: int | None = None
    ):
        self.setting, self.out, self.reporter, self.command = setting, out, reporter, command
        self.finetune_tokens = finetune_tokens
        self.results = Results(out)

    def run(self, parts: Sequence[str]) -> Results:
        """Measure the parts that are missing."""
        self._check_wishes()
        self.out.mkdir(parents=True, exist_ok=True)
        with files.lock(self.out):
            self._check_folder()
            for number, part in enumerate(parts, 1):
                if self.results.load(part) is None:
                    self.reporter.say(f"— {part} ({number} of {len(parts)}) —")
                    with self._timed():
                        found, rows = getattr(self, f"_{part}")()
                        self.results.save(part, found, rows)
            if self.finetune_tokens:
                with self._timed():
                    self._finetune(self.finetune_tokens)
        return self.results

    @cached_property
    def store(self) -> Datastore:
        """The store of the training text, built if need be."""
        place = self.setting.store if self.setting.max_tokens is None else None
        folder = store_folder(place or self.out / "store")
        if (folder / "manifest.json").exists():
            return Datastore.open(folder)
        model = self._trained() if self.setting.model == TRAINED else self.setting.model
        options: dict[str, Any] = {"max_tokens": self.setting.max_tokens, "quiet": self.reporter.quiet}
        options |= {"pack": True} if self.setting.pack else {}
        return build(model, list(self.setting.train), folder, **options)

    @cached_property
    def lm(self) -> LM:
        """The store's LM."""
        return load_lm(self.store)

    @cached_property
    def memories(self) -> Memories:
        """All that is measured on the test text."""
        setting = self.setting
        texts = Texts(setting.valid, setting.test, setting.valid_tokens, setting.test_tokens, setting.timed_tokens)
        return Memories(self.lm, self.store, texts, self.out, self.reporter)

    @property
    def best(self) -> Path:
        """Where the optimized store is."""
        return self.out / "fast"

    def _trained(self) -> str:
        from nearlm.paper.lm_training import train_lm

        place = cache_dir() / "models" if self.setting.store else self.out
        folder = place / f"{self.setting.name}-lm"
        return str(train_lm(list(self.setting.train), folder, reporter=self.reporter))

    def _check_wishes(self) -> None:
        """Refuse before the work what would fail in the midst of it."""
        if "-" in (*self.setting.train, *self.setting.valid, *self.setting.test):
            raise TextError("- (stdin) can be read only once, and an experiment reads its texts again; use a file")
        if self.finetune_tokens is not None:
            from nearlm.paper.lm_training import check_training

            check_training(self.finetune_tokens)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Note how long a part took."""
        started = time.monotonic()
        yield
        self._about(time.monotonic() - started)

    def _check_folder(self) -> None:
        """Refuse a folder that holds results of something else."""
        plan = {"setting": self.setting.name, "plan": files.canonical_hash(asdict(self.setting))}
        path = self.out / "setting.json"
        if path.exists() and files.read_json(path) != plan:
            raise StoreError(f"{self.out} holds results of another setting or other sizes; choose another --out")
        files.write_json(path, plan)

    def _about(self, seconds: float) -> None:
        store, setting = self.store, self.setting
        known = self.results.load("about") or {}
        about = {
            "setting": setting.name,
            "title": setting.title,
            "text": setting.text,
            "model": setting.model.replace("-", " ") if setting.model == TRAINED else setting.model,
            "records": len(store),
            "dim": store.dim,
            "store_bytes": store.bytes,
            "valid_tokens": len(self.memories.valid),
            "test_tokens": len(self.memories.test),
            "cores": os.cpu_count(),
            "machine": f"{platform.machine()}, {self.lm.device.type}",
            "versions": {name: version(name) for name in _VERSIONS},
            "command": self.command,
            "seconds": known.get("seconds", 0.0) + seconds,
            "paper": setting.paper_rows(),
        }
        self.results.save("about", about)

    def _choice(self) -> tuple[Json, list[Json]]:
        setting = self.setting
        options: dict[str, Any] = {"max_tokens": setting.valid_tokens, "reporter": self.reporter}
        choice: Choice = optimize(self.lm, self.store, list(setting.valid), self.best, budget=BUDGET, **options)
        return choice.to_json(), [asdict(point) for point in (choice.vanilla, *choice.points)]

    def _main(self) -> tuple[Json, list[Json]]:
        table = main_table(self.memories, Datastore.open(self.best), budget=BUDGET, rounds=self.setting.rounds)
        return _rows(table)

    def _baseline(self) -> tuple[Json, list[Json]]:
        return _rows(baseline(self.memories, 1 / self._lm_speed()))

    def _lm_speed(self) -> float:
        return self._table("main").row(NLM).tokens_per_second

    def _table(self, part: str) -> MainTable:
        found = self.results.load(part)
        assert found is not None
        return MainTable.from_json(found)

    def _finetune(self, tokens: int) -> None:
        """Train the LM itself on the store's text and add what it does on the test to the baselines."""
        from nearlm.mixing import Reading, perplexity, trace_lm
        from nearlm.paper.lm_training import finetune

        name, known = f"{FINETUNED} on {tokens:,}", self._table("baseline")
        if any(row.name == name for row in known.rows):
            return
        options: dict[str, Any] = {"tokens": tokens, "reporter": self.reporter}
        folder = finetune(self.lm.spec, list(self.setting.train), self.out / "finetuned" / str(tokens), **options)
        reading = Reading.of_store(self.store.manifest)
        traced = trace_lm(LM.load(str(folder)), self.memories.test.text, reading, self.reporter)
        row = Row(name, perplexity(np.asarray(traced.logp, np.float64)), self._lm_speed())
        self.results.save("baseline", *_rows(MainTable(known.tokens, [*known.rows, row])))

    def _adaptive(self) -> tuple[Json, list[Json]]:
        memories, setting = self.memories, self.setting
        gate = memories.adapted(memories.tuned(self.store, PAPER), BUDGET).gate
        assert gate is not None
        options: dict[str, Any] = {"valid_tokens": setting.valid_tokens, "max_tokens": setting.test_tokens}
        options |= {"valid": setting.valid, "adaptor": gate.adaptor.name, "reporter": self.reporter}
        found = ablate(self.lm, self.store, list(setting.test), **options)
        curves = {**found.curves, **found.objectives}
        rows = [{"skipped": share} for share in found.shares]
        for number, row in enumerate(rows):
            row |= {name: values[number] for name, values in curves.items()}
        return found.to_json(), rows

    def _pruning(self) -> tuple[Json, list[Json]]:
        found = {method: self._swept("keep", self.setting.keeps, method=method) for method in METHODS}
        return found, [{"method": name, **point} for name, one in found.items() for point in one["points"]]

    def _pca(self) -> tuple[Json, list[Json]]:
        dims = [dim for dim in self.setting.dims if dim <= self.store.dim]
        found = self._swept("dim", dims, factory="IVF1024,SQ8", nprobe=8)
        return found, found["points"]

    def _k(self) -> tuple[Json, list[Json]]:
        found = self._swept("k", self.setting.ks, factory=PAPER)
        return found, found["points"]

    def _swept(self, over: str, values: Sequence[float], **options: Any) -> Json:
        """Sweep, or find that it has been done: a part may have several sweeps."""
        noted = self.out / "sweep" / f"{options.get('method', over)}.json"
        if not noted.exists():
            options |= {"max_tokens": self.setting.sweep_tokens, "reporter": self.reporter, "out": noted.parent}
            found = sweep(self.lm, self.store, over, values, list(self.setting.valid), **options)
            files.write_json(noted, found.to_json())
        return files.read_json(noted)

    def _continuation(self) -> tuple[Json, list[Json]]:
        knnlm, prompt = KNNLM.load(self.best, self.lm), self.setting.prompt
        options: dict[str, Any] = {"max_new_tokens": _NEW_TOKENS, "do_sample": False, "repetition_penalty": _PENALTY}
        without = KNNLM.load(self.best, self.lm, knn=False).generate(prompt, **options)
        start, new = knnlm.generate_ids([prompt], **options)[0]
        tokens = []
        for one in knnlm.explain([*start, *new], first=len(start)):
            near = [
                {"text": context.text, "token": context.target, "source": context.document, "distance": distance}
                for distance, context in one.nearest
            ]
            tokens.append({"token": one.token, "p_lm": one.p_lm, "p_knn": one.p_knn, "p": one.p, "lam": one.lam})
            tokens[-1]["nearest"] = near
        text = self.lm.tokenizer.decode(new, skip_special_tokens=True)
        return {"prompt": prompt, "without": without, "with": text, "tokens": tokens}, []


def _rows(table: MainTable) -> tuple[Json, list[Json]]:
    found = table.to_json()
    return found, found["rows"]
