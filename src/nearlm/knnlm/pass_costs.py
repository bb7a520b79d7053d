"""What a pass of a model over a few tokens takes, measured once on each device and kept in the cache folder."""

import contextlib
import os
import platform
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nearlm.base import Doubles, FetchError, Json, OptionError, StoreError, cache_dir, cache_lock, canonical_hash
from nearlm.base.records import read_if_there, write_record
from nearlm.mixing import Memory
from nearlm.model.lm import LM

_SIZES = (1, 2, 3, 4, 6, 8, 12, 17)  # tokens of a pass
_OF_BATCHES = (*_SIZES, 24, 32, 48, 64)
_READ = 128  # tokens in the cache meanwhile
_ROUNDS = 5
_ENOUGH = 2.0  # seconds of measuring


@dataclass(frozen=True)
class PassCosts:
    """Seconds of passes over some numbers of tokens."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes, seconds = np.array(self.sizes, float), np.array(self.seconds, float)
        sound = len(sizes) and sizes.shape == seconds.shape and (np.diff(sizes) > 0).all() and sizes[0] >= 1
        if not sound or not np.isfinite(seconds).all() or seconds.min() <= 0:
            raise OptionError(f"passes over {self.sizes} tokens in {self.seconds} s, expected times of ascending sizes")

    def by_tokens(self, most: int) -> Doubles:
        """Return the seconds of passes over 1 to `most` tokens, as far as measured; more tokens never take less."""
        rising = np.maximum.accumulate(self.seconds)
        return np.interp(np.arange(1, min(most, self.sizes[-1]) + 1), self.sizes, rising)


def pass_costs(lm: LM, memory: Memory | None, rows: int = 1) -> PassCosts:
    """Return what passes take with the memory that is attached to the model; measure it if nobody has done so.

    Those over so many tokens that only several rows have together are measured for several rows.
    """
    sizes = _SIZES if rows == 1 else _OF_BATCHES
    folder = cache_dir() / "passes"
    path = folder / f"{canonical_hash({**describe(lm, memory), 'sizes': sizes})}.json"
    kept = _read(path)
    if kept is not None:
        return kept
    measured = measure(lm.model, lm.vocab_size, sizes)
    with contextlib.suppress(FetchError, OSError), cache_lock(folder):  # a cache that cannot be written is no hindrance
        write_record(path, measured)
    return measured


def describe(lm: LM, memory: Memory | None) -> Json:
    """Say all that a pass's time depends on: model, dtype, layers' kinds, device, threads, and the memory."""
    device = lm.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    found: Json = {
        "model": lm.fingerprint(),
        "layers": sorted(Counter(_kinds(lm.model)).items()),
        "weights": lm.packing.weights,
        "device": [device.type, name, os.cpu_count()],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    if memory is not None:
        tables = [part.bytes for part in (memory.gate, memory.mixture) if part is not None]
        found |= {"store": memory.store.checksum, "search": memory.settings.values, "tables": tables}
        if memory.parts:
            found["parts"] = [[one.store.checksum, one.settings.values] for one in memory.parts]
    return found


def measure(model: Any, vocab_size: int, sizes: tuple[int, ...] = _SIZES) -> PassCosts:
    """Time passes over tokens after some that the cache holds: the shortest of a few rounds."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (1, _READ + max(sizes)), generator=draw).to(model.device)
    best = dict.fromkeys(sizes, float("inf"))
    with torch.no_grad():
        cache = model(input_ids=ids[:, :_READ], use_cache=True).past_key_values
        started = time.perf_counter()
        for number in range(_ROUNDS + 1):
            for size in sizes:
                seconds = _time(model, ids[:, _READ : _READ + size], cache)
                if number:  # the first of its size also prepares kernels
                    best[size] = min(best[size], seconds)
            if number and time.perf_counter() - started > _ENOUGH:
                break
    return PassCosts(tuple(best), tuple(best.values()))


def _time(model: Any, ids: torch.Tensor, cache: Any) -> float:
    started = time.perf_counter()
    model(input_ids=ids, past_key_values=cache, use_cache=True)
    if ids.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    cache.crop(-ids.shape[1])
    return seconds


def _kinds(model: nn.Module) -> list[str]:
    """Name the kinds of layers and of their weights: packed or quantised ones take another time."""
    modules = [f"{type(module).__name__}{' replaced' * ('forward' in vars(module))}" for module in model.modules()]
    return modules + [f"{weight.dtype} {weight.layout}" for weight in (*model.parameters(), *model.buffers())]


def _read(path: Path) -> PassCosts | None:
    """Read what was measured; what cannot be read is measured again."""
    try:
        return read_if_there(PassCosts, path)
    except (StoreError, OSError):
        return None
