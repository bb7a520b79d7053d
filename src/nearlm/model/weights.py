"""The sha256 of a model's weights, computed once: it tells models apart of which only the head differs."""

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearlm.base import Json, StoreError, cache_dir, cache_lock, canonical_hash, files, from_json
from nearlm.model.pretrained import place_of
from nearlm.model.spec import ModelSpec

_SAMPLE = 8  # values of a tensor: some changes (`.data`, fused optimizers) do not count as a version
State = list[tuple[Any, ...]]


def hash_weights(model: nn.Module) -> str:
    """Return the sha256 of a model's weights as they are, with their names."""
    digest = hashlib.sha256()
    for name, weight in sorted(_tensors(model).items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def describe_commit(spec: ModelSpec, model: nn.Module) -> Json | None:
    """Describe a model of the hub by its commit, if transformers tells it; what is there never changes."""
    commit = getattr(model.config, "_commit_hash", None)
    if commit is None or spec.adapter:
        return None
    versions = [torch.__version__, version("transformers")]
    return {"model": spec.model, "commit": commit, "quantization": spec.quantization, "versions": versions}


def describe_origin(spec: ModelSpec) -> Json | None:
    """Describe the local files that a model's weights are read from, before they are; None for those of the hub."""
    place, options = place_of(spec)
    folder = Path(place)
    adapter = Path(spec.adapter).expanduser() if spec.adapter else folder
    if not folder.is_dir() or not adapter.is_dir():
        return None
    found = [folder / options["gguf_file"]] if "gguf_file" in options else [*folder.iterdir()]
    return {
        "files": sorted(_describe(path) for path in {*found, *adapter.iterdir()} if path.is_file()),
        "quantization": spec.quantization,
        "versions": [torch.__version__, version("transformers")],
    }


class WeightsHash:
    """The hash of one model's weights, kept until they change and, of weights from files, for later processes."""

    def __init__(self, origin: Json | None, model: nn.Module):
        self._origin = origin
        self._state = _state(model)
        self._known: str | None = None

    def of(self, model: nn.Module) -> str:
        """Return the hash of the weights as they are now."""
        state = _state(model)
        if state != self._state:
            self._origin = None  # they are no longer those of the files
            self._state = state
            self._known = None
        if self._known is None:
            self._known = hash_weights(model) if self._origin is None else _hash_once(self._origin, model)
        return self._known


def _hash_once(origin: Json, model: nn.Module) -> str:
    """Hash weights that came from files, or find that it has been done."""
    dtypes = sorted({str(weight.dtype) for weight in model.parameters()})
    path = cache_dir() / "weights" / f"{canonical_hash({**origin, 'dtypes': dtypes})[:24]}.json"
    try:
        return from_json(str, files.read_stamped(path).get("sha256"), path)
    except (FileNotFoundError, StoreError):  # never made, or damaged
        found = hash_weights(model)
    with cache_lock(path.parent):
        files.write_stamped(path, {"sha256": found})
    return found


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    if not any(tensor.is_meta for tensor in tensors.values()):
        return tensors
    from accelerate.utils.modeling import get_state_dict_offloaded_model  # it has put them elsewhere

    return get_state_dict_offloaded_model(model)  # type: ignore[no-any-return]


def _state(model: nn.Module) -> State:
    """Return what changes with the weights: the place, version and some values of each."""
    tensors = (*model.parameters(), *model.buffers())
    floats = [each for each in tensors if each.is_floating_point()]  # nobody changes codes, but they are packed again
    return [state_of(each) for each in floats]


def state_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return what changes with a tensor's numbers: its place, version and some of them."""
    return tensor.data_ptr(), tensor.dtype, _version(tensor), _sample(tensor)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _sample(tensor: Tensor) -> list[Any]:
    if tensor.is_meta:
        return []
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, len(flat) // _SAMPLE)].tolist()


def _describe(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return str(path.resolve()), found.st_mtime_ns, found.st_size
