"""Trained networks on disk: whether a store has one that this version reads, its description, and its weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from nearlm.base import FileInfo, StoreError, check_files, check_names, files, read_record, write_record
from nearlm.store import Datastore, NetworkFiles


class _Described(Protocol):
    @property
    def files(self) -> dict[str, FileInfo]: ...


Info = TypeVar("Info", bound=_Described)
Network = TypeVar("Network", bound=nn.Module)


def check_described(store: Datastore, place: NetworkFiles, version: int, again: str) -> None:
    """Refuse a gate or mixture that is not there, or of another version of its format."""
    what = f"{place.kind} {place.folder.name!r}"
    if not place.description.exists():
        others = ", ".join(store.layout.names(place.kind)) or "none"
        raise StoreError(f"{store.path} has no {what} (it has {others}); make one with: {again}")
    found = files.read_json(place.description).get("format")
    if found != version:
        raise StoreError(f"{what} has format {found}, this nearlm reads {version}; train again: {again}")


def save_trained(place: NetworkFiles, network: nn.Module, info: Any) -> None:
    """Write a network's weights and its description, that last and with their checksum."""
    place.folder.mkdir(parents=True, exist_ok=True)
    files.remove(place.description)
    files.write_bytes(place.weights, save_tensors(network.state_dict()))
    write_record(place.description, replace(info, files=FileInfo.by_name([place.weights])))


def read_trained(kind: type[Info], place: NetworkFiles, remedy: str) -> Info:
    """Return a network's description; refuse it if the weights are not as they were written."""
    info = read_record(kind, place.description)
    check_names(place.description, {*info.files, place.weights.name}, info.files.keys() & {place.weights.name})
    check_files(place.folder, info.files, remedy, every_byte=True)
    return info


class _Unset(nn.Linear):
    """A layer for which no weights are made up, to be overwritten; on torch's meta device that takes even longer."""

    def reset_parameters(self) -> None:
        """Leave the weights as they are."""


def load_network(make: Callable[[type[nn.Linear]], Network], path: Path, remedy: str) -> Network:
    """Make a network of a kind of linear layers, with the weights of a file; refuse those that are not its own."""
    network = make(_Unset)
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
