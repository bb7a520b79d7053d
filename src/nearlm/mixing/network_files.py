"""Trained networks on disk: whether a store has one that this version reads, and its weights."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import nn

from nearlm.base import StoreError, files

Network = TypeVar("Network", bound=nn.Module)


def check_described(
    store: Path, kind: str, name: str, known: list[str], description: Path, version: int, again: str
) -> None:
    """Refuse a gate or mixture that is not there, or of another version of its format."""
    if not description.exists():
        others = ", ".join(known) or "none"
        raise StoreError(f"{store} has no {kind} {name!r} (it has {others}); make one with: {again}")
    found = files.read_json(description).get("format")
    if found != version:
        raise StoreError(f"{kind} {name!r} has format {found}, this nearlm reads {version}; train again: {again}")


def load_network(make: Callable[[], Network], path: Path, remedy: str) -> Network:
    """Make a network with the weights of a file; refuse those that are not its own."""
    with torch.device("meta"):  # no weights are made up to be overwritten
        network = make()
    try:
        tensors = load_tensors(path.read_bytes())
        odd = {str(tensor.dtype) for tensor in tensors.values()} - {"torch.float32"}
        if odd:
            raise ValueError(f"numbers are {odd.pop()}, expected torch.float32")
        network.load_state_dict(tensors, assign=True)
    except (SafetensorError, RuntimeError, ValueError, KeyError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise StoreError(f"{path} is not as nearlm writes it ({why}); {remedy}") from None
    return network.eval()
