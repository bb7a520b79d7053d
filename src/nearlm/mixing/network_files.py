"""Trained networks on disk: whether a store has one that this version reads, and its weights."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import nn

from nearlm.base import StoreError, files


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


def load_weights(network: nn.Module, path: Path, remedy: str) -> None:
    """Read the weights of a network; refuse those that are not its own."""
    try:
        network.load_state_dict(load_tensors(path.read_bytes()))
    except (SafetensorError, RuntimeError, ValueError, KeyError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise StoreError(f"{path} is not as nearlm writes it ({why}); {remedy}") from None
