"""What a store must hold, from running the model itself, and everything that a store's folder holds."""

import contextlib
import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from nearlm.base import jobs
from nearlm.model.lm import LM
from nearlm.store.datastore import Datastore
from nearlm.text import tokens as tokenise

RECORDS = ("keys-*.npy", "values-*.npy", "origin-*.npy", "tokens-*.npy", "docs-*")


@dataclass
class Expected:
    """What a store of some documents must hold."""

    tokens: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    origin: np.ndarray


def frame(tokenizer, text: str, separator: tuple[int, ...] = (1,)) -> list[int]:
    """Tokenise a document as the design says: BOS, text, separator."""
    return [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"], *separator]


def feed_forward_inputs(model, ids: list[int]) -> np.ndarray:
    """Run the whole model over one unpadded row and return what its last layer's MLP was given."""
    seen: list[torch.Tensor] = []
    handle = model.model.layers[-1].mlp.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        with torch.no_grad():
            model(torch.tensor([ids]))
    finally:
        handle.remove()
    return seen[0][0].numpy()


def expected(model, documents: list[list[int]], window: int, stride: int, pack: bool = False) -> Expected:
    """Compute the records of framed documents, one window at a time.

    The j-th prediction of a document (j = 0, 1 ...) comes from its first window if j < window, else from
    the first of the windows at multiples of the stride that reaches it.
    """
    tokens = [token for document in documents for token in document]
    keys, values, origin, begin = [], [], [], 0
    run = functools.cache(lambda ids: feed_forward_inputs(model, list(ids)))
    for document in [tokens] if pack else documents:
        vectors: dict[int, np.ndarray] = {}
        for j in range(len(document) - 1):
            start = max(0, math.ceil((j - window + 1) / stride)) * stride
            if start not in vectors:
                vectors[start] = run(tuple(document[start : min(start + window, len(document) - 1)]))
            keys.append(vectors[start][j - start])
            values.append(document[j + 1])
            origin.append(begin + j + 1)
        begin += len(document)
    dim = model.config.hidden_size
    return Expected(
        np.array(tokens, np.int32), np.array(keys).reshape(-1, dim), np.array(values), np.array(origin, np.int64)
    )


def assert_holds(store: Datastore, want: Expected) -> None:
    """Compare a store with what it must hold, keys up to float16 rounding."""
    np.testing.assert_array_equal(store.tokens[:], want.tokens)
    np.testing.assert_array_equal(store.values[:], want.values)
    np.testing.assert_array_equal(store.origin[:], want.origin)
    assert len(store) == len(want.keys)
    loose = 1e-3 if store.keys.dtype == np.float16 else 1e-4
    np.testing.assert_allclose(store.keys[:].astype(np.float32), want.keys, rtol=loose, atol=1e-5)


def record_files(store: Path) -> dict[str, bytes]:
    """Read every file that holds records or their text."""
    return {path.name: path.read_bytes() for pattern in RECORDS for path in sorted(store.glob(pattern))}


def everything(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def texts_of(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.iterdir())]


def interrupt(monkeypatch, make, at: int = 2, **options) -> None:
    """Leave an unfinished build behind: it dies before its keys are all there."""
    calls = 0

    def keys(self, batch):
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        return real(self, batch)

    real = LM.keys
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LM, "keys", keys)
        patch.setattr(jobs, "CHECKPOINT_SECONDS", 0)
        patch.setattr(tokenise, "CHECKPOINT_SECONDS", 0)
        make(**{"batch_tokens": 64, **options})


def write_rows(path: Path, rows: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": row}, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


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


def check(store: Path, lm: LM) -> str | None:
    return Datastore.open(store).check_model(lm.fingerprint(), lm.probe(), lm.tokenizer_fingerprint(), lm.name)
