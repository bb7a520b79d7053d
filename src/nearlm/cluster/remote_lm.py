"""An LM that is loaded on workers only: what a build must know of it, as the first worker tells."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearlm.base import Floats, canonical_hash
from nearlm.cluster.session import ClusterError
from nearlm.model import ModelSpec
from nearlm.model.lm import LM
from nearlm.model.pretrained import load_tokenizer, quiet_transformers
from nearlm.model.tap import Tap
from nearlm.text import Batch


@dataclass(frozen=True)
class Described:
    """What a worker tells of its model, and on what it computes."""

    worker: str
    fingerprint: str
    tokenizer: str
    probe: Floats
    key_tap: str
    dim: int
    dtype: str
    device: str
    limit: int | None
    torch: str

    @classmethod
    def of(cls, lm: LM, worker: str) -> "Described":
        """Describe a loaded model."""
        return cls(
            worker=worker,
            fingerprint=lm.fingerprint(),
            tokenizer=lm.tokenizer_fingerprint(),
            probe=lm.probe(),
            key_tap=lm.tap.path,
            dim=lm.dim,
            dtype=lm.dtype,
            device=lm.device.type,
            limit=lm.limit,
            torch=str(torch.__version__),
        )

    def check_same(self, other: "Described") -> None:
        """Refuse another worker whose keys would differ, be it in a last bit."""
        for name in ("fingerprint", "tokenizer", "key_tap", "dtype", "device", "torch"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise ClusterError(
                    f"the workers on {self.worker} and {other.worker} have another {name} ({ours}, {theirs}); "
                    "use machines of one kind, with the same versions and model"
                )
        if canonical_hash(self.probe.tolist()) != canonical_hash(other.probe.tolist()):
            raise ClusterError(
                f"the workers on {self.worker} and {other.worker} compute slightly other keys, so the records would "
                "depend on who made them; use machines of one kind (CPU or GPU model)"
            )


class RemoteLM(LM):
    """Stands for an LM that workers have loaded; only its tokenizer is here."""

    def __init__(self, spec: ModelSpec, described: Described, compute: Callable[[Batch], Tensor]):
        self.compute = compute
        self.spec = spec
        self.name = str(spec.model)
        self.model = nn.Module()
        self.described = described
        self.dim = described.dim
        self.tap = Tap(described.key_tap, self.model, described.dim)
        with quiet_transformers():
            self.tokenizer = load_tokenizer(spec)

    @property
    def device(self) -> torch.device:
        """What the workers compute on."""
        return torch.device(self.described.device)

    @property
    def dtype(self) -> str:
        """What the workers compute in."""
        return self.described.dtype

    @property
    def limit(self) -> int | None:
        """The longest window that the model can read, if it says so."""
        return self.described.limit

    def fingerprint(self) -> str:
        """Return the hash of the workers' model."""
        return self.described.fingerprint

    @property
    def place(self) -> str:
        """In which type, and where, workers compute."""
        return f"{self.described.dtype} on {self.described.device}"

    def keys(self, batch: Batch) -> Tensor:
        """Return the context vectors that a worker computes."""
        return self.compute(batch)

    def probe(self) -> Floats:
        """Return the keys that the first worker gives for a fixed sequence of tokens."""
        return self.described.probe


def findable(spec: ModelSpec) -> ModelSpec:
    """Return the same with whole paths, which a worker finds from wherever it runs."""
    places = {name: getattr(spec, name) for name in ("model", "adapter")}
    whole: Any = {name: str(Path(place).expanduser().resolve()) for name, place in places.items() if _is_local(place)}
    return dataclasses.replace(spec, **whole)


def _is_local(place: str | None) -> bool:
    return place is not None and Path(place).expanduser().exists()
