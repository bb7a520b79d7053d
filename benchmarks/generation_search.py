"""What a memory costs while one sequence is generated, token by token: beside the LM alone and a plain kNN-LM.

    python benchmarks/generation_search.py STORE [--model FOLDER] [--prompt TEXT] [--new 128] [--rounds 5]
        [--records 852000] [--k 1024] [--nprobe 8] [--only parts|speeds]

Greedy decoding by transformers' `generate` from the same prompt, in turns: the LM alone; the store's own memory (a
mixture if it has one); one λ; and `Plain`, a kNN-LM as it is usually written: FAISS with the paper's index, and
exp(-d) added to a dense vector per step. Medians of the rounds. The second table says where a step's time goes: medians
of calls between which 64 MB are read, as an LM reads its weights. With --records the index is one of made-up keys near
the store's own, so that a small store stands for a large one: only times mean something then.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearlm.knnlm import attachment
from nearlm.knnlm.history import contexts_of, ends_of, read_history
from nearlm.mixing import Known, Memory
from nearlm.search import Retriever
from nearlm.search.index import read_parts, write_parts
from nearlm.search.kinds import choose_index
from nearlm.search.training import empty_index, train_index
from nearlm.store import Datastore, SearchSettings
from nearlm.store.layout import IndexData
from nearlm.store.model_files import load_lm

PROMPT = "Redistribution and use in source and binary forms, with or without modification, are permitted provided"
SAMPLE, BLOCK = 1 << 16, 1 << 16


class Plain:
    """A kNN-LM of a few lines: the reference."""

    def __init__(self, lm: Any, index: Any, values: Any, k: int, lam: float, temperature: float):
        self.index, self.values, self.k, self.lam, self.temperature = (
            index,
            torch.from_numpy(values),
            k,
            lam,
            temperature,
        )
        self.model, self.tap = lm.model, lm.tap.module

    def generate(self, **options: Any) -> Any:
        hook = self.tap.register_forward_pre_hook(self._remember)
        try:
            return self.model.generate(**options, logits_processor=[self._mix])
        finally:
            hook.remove()

    def _remember(self, _: Any, inputs: Any) -> None:
        self.query = inputs[0][:, -1]

    def _mix(self, _: Any, scores: Any) -> Any:
        distances, ids = self.index.search(self.query.float().numpy(), self.k)
        weights = torch.softmax(torch.from_numpy(-distances / self.temperature), -1)
        p_knn = torch.zeros_like(scores)
        p_knn.scatter_add_(1, self.values[torch.from_numpy(ids)].long(), weights)
        return torch.log(self.lam * p_knn + (1 - self.lam) * torch.softmax(scores, -1))


class MadeUp:
    """Indexes of as many keys as one likes, around those of a store."""

    def __init__(self, store: Datastore, records: int):
        self.dim, self.records = store.dim, records
        self.keys = store.keys[:].astype(np.float32)
        self.spread = self.keys.std(0) / 2
        self.values = np.resize(store.values[:], records).astype(np.int32)

    def index(self, factory: str, nprobe: int | None) -> Any:
        """Train and fill an index."""
        spec = choose_index(factory, self.records, self.dim, nprobe)
        index = empty_index(spec, self.dim)
        sample = np.random.default_rng(0)
        train_index(index, lambda ids: self._block(sample, len(ids)), SAMPLE)
        rng = np.random.default_rng(1)
        for begin in range(0, self.records, BLOCK):
            index.add(self._block(rng, min(BLOCK, self.records - begin)))
        if factory == "paper":
            return index
        folder = Path(tempfile.mkdtemp(prefix="nearlm-generation-")) / "index"
        write_parts(index, IndexData(folder))
        return read_parts(IndexData(folder), spec, self.dim)

    def _block(self, rng: Any, count: int) -> Any:
        noise = rng.standard_normal((count, self.dim), np.float32) * self.spread
        return self.keys[rng.integers(0, len(self.keys), count)] + noise


class Bench:
    """One LM, its store, and all that generates."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.store = Datastore.open(options.store)
        self.lm = load_lm(self.store, options.model)
        self.mixed = Memory.open(self.store)
        constant = SearchSettings(k=options.k, nprobe=options.nprobe, lam=0.3, knn_temperature=2.0)
        self.plain = Memory.open(self.store, constant)
        if options.records:
            made = MadeUp(self.store, options.records)
            index, paper, values = made.index("auto", options.nprobe), made.index("paper", None), made.values
            for memory in (self.mixed, self.plain):
                memory.retriever.index, memory.retriever._values = index, values
                memory.retriever.max_k = options.records
                object.__setattr__(
                    memory, "settings", memory.settings.__class__(**{**vars(memory.settings), "k": options.k})
                )
        else:
            retriever = Retriever(self.store, options.paper)
            paper, values = retriever.index, np.array(retriever._values)
        self.reference = Plain(self.lm, paper.faiss, values, options.k, 0.3, 2.0)
        ids = torch.tensor([self.lm.tokenizer(options.prompt, add_special_tokens=False)["input_ids"]])
        self.inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def ways(self) -> dict[str, Callable[[], Any]]:
        new = self.options.new
        how = {**self.inputs, "max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}

        def attached(memory: Memory) -> Any:
            with attachment.Attachment(self.lm, memory):
                return self.lm.model.generate(**how)

        return {
            "LM alone": lambda: self.lm.model.generate(**how),
            f"memory: {self.mixed.mixture or 'one λ'}": lambda: attached(self.mixed),
            "memory: one λ": lambda: attached(self.plain),
            "plain kNN-LM": lambda: self.reference.generate(**how),
        }

    def speeds(self) -> None:
        ways = self.ways()
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(self.options.rounds + 1):
            for name, way in ways.items():
                started = time.perf_counter()
                with torch.inference_mode():
                    way()
                if turn:
                    taken[name].append((time.perf_counter() - started) / self.options.new)
        alone = statistics.median(taken["LM alone"])
        print("| | tokens/s | of the LM alone | µs per token beside the LM |\n|---|---|---|---|")
        for name, times in taken.items():
            one = statistics.median(times)
            print(f"| {name} | {1 / one:.0f} | {alone / one:.0%} | {1e6 * (one - alone):.0f} |", flush=True)

    def parts(self) -> None:
        """Print where the time of a step goes."""
        vocabulary = self.lm.vocab_size
        logits = torch.randn(1, 1, vocabulary, generator=torch.Generator().manual_seed(0))
        keys = torch.from_numpy(self.store.keys[:512].astype(np.float32))
        history = torch.from_numpy(np.asarray(self.store.tokens[:600], np.int64))[None]
        arguments = {"attention_mask": torch.ones_like(history)}
        contexts = contexts_of(history, ends_of(history, 1))
        log_lm, statistics_ = attachment._read(logits[0])
        known = Known.of(statistics_, contexts, 1)
        near = self.mixed.search(keys[:1].numpy())
        prediction = self.mixed.predict(keys[:1].numpy(), known)
        steps = {
            "tokens read so far": lambda i: contexts_of(read_history(history, arguments), ends_of(history, 1)),
            "log p and statistics of the LM": lambda i: attachment._read(logits[0]),
            "∞-gram, text so far": lambda i: self.mixed.mixture.ask(known),
            "search": lambda i: self.mixed.search(keys[i : i + 1].numpy()),
            "neighbours, features, network": lambda i: self.mixed.mixture.weigh(known, {}, near, prediction.retrieved),
            "log p of the vocabulary": lambda i: prediction.log_p_vocabulary(log_lm),
            "all after the LM's pass": lambda i: attachment._mix(self.mixed, logits, keys[None, i : i + 1], contexts),
            "the same, one λ": lambda i: attachment._mix(self.plain, logits, keys[None, i : i + 1], None),
        }
        flushed = np.zeros(1 << 23)
        print("\n| step | µs, caches cold | µs, warm |\n|---|---|---|")
        with torch.inference_mode():
            for name, step in steps.items():
                times = {True: [], False: []}
                for cold, spent in times.items():
                    for at in range(300):
                        if cold:
                            flushed.sum()
                        started = time.perf_counter()
                        step(at if cold else 0)
                        spent.append(time.perf_counter() - started)
                cold, warm = (1e6 * statistics.median(times[which]) for which in (True, False))
                print(f"| {name} | {cold:.0f} | {warm:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--model")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--paper", default="paper", help="name of the index as in the paper")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--nprobe", type=int, default=8)
    parser.add_argument(
        "--only", choices=("parts", "speeds"), help="one table alone; `speeds` works with older checkouts"
    )
    options = parser.parse_args()
    bench = Bench(options)
    if options.only != "speeds":
        bench.parts()
    if options.only != "parts":
        bench.speeds()


if __name__ == "__main__":
    main()
