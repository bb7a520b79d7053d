"""Where a model's context vectors come from: the input of the last decoder layer's feed-forward network.

The place is found by watching one tiny forward pass, without a table of architectures: among the
parts of the last decoder layer that hold weight matrices, attention mixes positions and the
feed-forward network does not.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nearlm.base import ModelError
from nearlm.model.spec import FFN

LAST_HIDDEN = "last_hidden"
_NO_FFN = "it has no feed-forward network with an input of its own in its last layer"


@dataclass(frozen=True)
class Tap:
    """A module whose input is the context vector, its path in the model, and the vector's width if known."""

    path: str
    module: nn.Module
    dim: int | None = None


class _Stop(Exception):
    """Ends a forward pass as soon as nothing more of it is needed; holds what the last module gave."""

    def __init__(self, output: Any = None):
        super().__init__()
        self.output = output


@contextlib.contextmanager
def capture(tap: Tap, *, stop: bool) -> Iterator[list[Tensor]]:
    """Collect the tap's vectors during a forward pass, which ends there if `stop`."""
    found: list[Tensor] = []

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        vector = _hidden(args, kwargs, tap.dim)
        if vector is not None:
            found.append(vector)
            if stop:
                raise _Stop

    with tap.module.register_forward_pre_hook(hook, with_kwargs=True), contextlib.suppress(_Stop):
        yield found


@contextlib.contextmanager
def ended_before(module: nn.Module | None) -> Iterator[None]:
    """End a forward pass where `module` would be called."""

    def hook(*_: Any) -> None:
        raise _Stop

    with contextlib.ExitStack() as hooks, contextlib.suppress(_Stop):
        if module is not None:
            hooks.enter_context(module.register_forward_pre_hook(hook))
        yield


def output_of(module: nn.Module, model: nn.Module, ids: Tensor) -> Any:
    """Run the model until `module` has done its part, and return what that gave."""

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        raise _Stop(output)

    with module.register_forward_hook(hook):
        try:
            model(input_ids=ids, use_cache=False)
        except _Stop as stop:
            return stop.output
    raise ModelError(f"{type(module).__name__} was not reached in the forward pass of {type(model).__name__}")


def find_body(model: nn.Module, ids: Tensor) -> nn.Module | None:
    """Find what a model runs before its head: the outermost module around the decoder layers that is called."""
    layers = _layers(model)
    names = layers[0].split(".")[:-1] if layers else []
    around = [model.get_submodule(".".join(names[: i + 1])) for i in range(len(names))]
    called: list[nn.Module] = []
    with torch.inference_mode(), contextlib.ExitStack() as hooks:
        for module in around:
            hooks.enter_context(module.register_forward_pre_hook(lambda module, _: called.append(module)))
        model(input_ids=ids, use_cache=False)
    return called[0] if called else None


def find_tap(model: nn.Module, wish: str, ids: Tensor, dim: int) -> Tap:
    """Find the tap that was asked for: `ffn`, `last_hidden`, or the path of a module."""
    if wish == LAST_HIDDEN:
        return _last_hidden(model)
    if wish != FFN:
        return Tap(wish, _module_at(model, wish))
    layers = _layers(model)
    if layers is None:
        raise _no_ffn(model)
    path = f"{layers[0]}.{len(layers[1]) - 1}"
    layer = layers[1][-1]
    parts = _watch(model, layer, ids, dim)
    attention = max((i for i, (_, pointwise) in enumerate(parts) if not pointwise), default=-1)
    after = [name for name, pointwise in parts[attention + 1 :] if pointwise]
    before = [name for name, pointwise in parts[:attention] if pointwise]
    if not after and not before:
        raise _no_ffn(model, f" ({path})")
    name = (after or before)[0]
    return Tap(f"{path}.{name}", layer.get_submodule(name), dim)


def find_head(model: nn.Module) -> nn.Module | None:
    """Return the module that turns the last hidden state into logits, if the model says which."""
    find: Any = getattr(model, "get_output_embeddings", None)
    return find() if find is not None else None


def _last_hidden(model: nn.Module) -> Tap:
    head = find_head(model)
    if head is None:
        raise ModelError(f"{type(model).__name__} has no output embedding to tap; name a module with `key_tap`")
    return Tap(next(path for path, module in model.named_modules() if module is head), head)


def _module_at(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        last = _layers(model)
        example = f", e.g. {last[0]}.{len(last[1]) - 1}" if last else ""
        raise ModelError(
            f"`key_tap={path!r}` is no module of {type(model).__name__}; "
            f"expected {FFN}, {LAST_HIDDEN} or a module path{example}"
        ) from None


def _layers(model: nn.Module) -> tuple[str, nn.ModuleList] | None:
    """Find the decoder layers: the heaviest list of modules that is not inside another such list."""
    lists = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    outer = [item for item in lists if len(item[1]) and not any(item[0].startswith(f"{p}.") for p, _ in lists)]
    return max(outer, key=lambda item: sum(p.numel() for p in item[1].parameters()), default=None)


def _no_ffn(model: nn.Module, where: str = "") -> ModelError:
    return ModelError(
        f"no key tap was found in {type(model).__name__}: {_NO_FFN}{where}; "
        f"use `key_tap={LAST_HIDDEN!r}`, or name a module whose input is the context vector"
    )


def _watch(model: nn.Module, layer: nn.Module, ids: Tensor, dim: int) -> list[tuple[str, bool]]:
    """List the layer's parts that hold matrices and see the hidden state, in the order of their calls.

    Each comes with whether it is pointwise: its output at a position depends on that position alone.
    """
    calls: list[tuple[str, bool]] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if _hidden(args, kwargs, dim) is not None and name not in dict(calls):
                calls.append((name, _drift(module, args, kwargs, output, ids.shape) <= tolerance(model)))

        return hook

    with torch.inference_mode(), contextlib.ExitStack() as hooks:
        for name, part in layer.named_children():
            if _has_matrix(part):
                hooks.enter_context(part.register_forward_hook(watch(name), with_kwargs=True))
        model(input_ids=ids, use_cache=False)
    return calls


def _has_matrix(module: nn.Module) -> bool:
    tensors = [*module.parameters(), *module.buffers()]
    return any(tensor.ndim >= 2 and min(tensor.shape[-2:]) >= 1 and tensor.numel() > 1 for tensor in tensors)


def _drift(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, shape: torch.Size) -> float:
    """Tell how far the output of the last positions alone is from what they gave among the others."""
    rows, columns = shape

    def last(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(last(item) for item in value)
        if not isinstance(value, Tensor):
            return value
        if value.ndim >= 3 and value.shape[1] == columns:
            return value[:, -1:]
        if value.ndim == 2 and value.shape[0] == rows * columns:
            return value.view(rows, columns, -1)[:, -1]
        return value

    try:
        alone = module.forward(*last(args), **{name: last(value) for name, value in kwargs.items()})
    except Exception:
        return math.inf
    alone = _first(alone)
    among = _first(last(output))
    if alone is None or among is None or alone.shape != among.shape:
        return math.inf
    return drift(alone, among)


def drift(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of two tensors' finite numbers, as a part of the largest of them."""
    a = a.double().nan_to_num(0, 0, 0)
    b = b.double().nan_to_num(0, 0, 0)
    largest = torch.maximum(a.abs().max(), b.abs().max())
    return float((a - b).abs().max() / largest.clamp_min(1e-12))


def tolerance(model: nn.Module) -> float:
    """Return the drift that rounding alone can explain; in 8-bit models a position's scale depends on the others."""
    if getattr(model, "is_quantized", False):
        return 0.2
    return max(1e-3, 4 * torch.finfo(getattr(model, "dtype", torch.float32)).eps)


def _first(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (tuple, list)) and value:
        return _first(value[0])
    return None


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any], dim: int | None) -> Tensor | None:
    """Return the first argument that can be one vector per token."""
    tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim >= 2)
    return next((one for one in tensors if one.is_floating_point() and dim in (None, one.shape[-1])), None)
