"""Linear layers whose weights lie in the order in which a CPU's kernels read them.

Eager torch brings a weight matrix into that order anew in every pass over two tokens or more, which costs more than
the multiplication itself as long as the tokens are few. Here it is done once. The layers' own weights stay where they
are, so that hooks, adapters, tied weights, hashes and whatever else looks at a model see what they always did; only
`forward` of a layer is another one, for the duration of a `with` block.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nearlm.base import OptionError, available_ram, check_ram
from nearlm.model.passes import turn
from nearlm.model.spec import AUTO, FLOAT16, FLOAT32, PLAIN, WEIGHTS
from nearlm.model.weights import state_of

Multiply = Callable[[Tensor], Tensor]
_BYTES = {FLOAT32: 4, FLOAT16: 2}
_LARGEST = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class _Packed:
    """What one layer does while it is packed, and the state of the weights that were."""

    state: list[Any]
    forward: Callable[..., Tensor]


class Packing:
    """The packed layers of one model, made when they are first needed, and anew if its weights have changed.

    Args:
        weights: `float32` gives what the layers themselves do, to rounding; `float16` rounds the weights, not what
            they are multiplied with, nor the sums; `auto` is `float32` where it fits into half of the free memory;
            `plain` changes nothing.
    """

    def __init__(self, weights: str = AUTO):
        if weights not in WEIGHTS:
            raise OptionError(f"`weights` is {weights!r}, expected one of {', '.join(WEIGHTS)}")
        self.weights = weights
        self._layers: dict[nn.Module, _Packed] = {}

    @property
    def rounds(self) -> bool:
        """Whether results differ from the model's own by more than the order of a sum."""
        return self.weights == FLOAT16

    def check(self, model: nn.Module) -> None:
        """Refuse weights that were asked for by name where they cannot be had."""
        if self.weights in (AUTO, PLAIN):
            return
        if not _works(self.weights):
            raise OptionError(f"`weights={self.weights!r}` needs an x86 CPU with AVX2; leave it out")
        if not any(_is_packable(module) for module in model.modules()):
            raise OptionError(
                f"`weights={self.weights!r}` is for the linear layers of a float32 model on a CPU, and "
                f"{type(model).__name__} has none here; leave it out"
            )

    def prepare(self, model: nn.Module) -> None:
        """Pack a model's layers now, so that the first pass need not."""
        with turn(model):
            self._fetch(model)

    @contextlib.contextmanager
    def in_use(self, model: nn.Module) -> Iterator[None]:
        """Let a model's linear layers use their packed weights."""
        with turn(model):
            layers = self._fetch(model)
            for module, packed in layers.items():
                vars(module)["forward"] = packed.forward
            try:
                yield
            finally:
                for module, packed in layers.items():
                    if vars(module).get("forward") is packed.forward:
                        del vars(module)["forward"]

    def _fetch(self, model: nn.Module) -> dict[nn.Module, _Packed]:
        """Return the layers of a model to use, packed as their weights are now."""
        kind = FLOAT32 if self.weights == AUTO else self.weights
        if kind == PLAIN or torch.is_autocast_enabled("cpu") or not _works(kind):
            return {}
        modules = [module for module in model.modules() if _is_packable(module)]
        stale = [module for module in modules if not self._is_current(module)]
        for module in stale:
            self._layers.pop(module, None)  # before the new one: not both at a time
        if stale and not self._fits(stale, kind):
            return {}
        made = {module: _pack(module, kind) for module in stale}
        self._layers = {module: made.get(module) or self._layers[module] for module in modules}
        return self._layers

    def _is_current(self, module: nn.Module) -> bool:
        packed = self._layers.get(module)
        return packed is not None and packed.state == _state(module)

    def _fits(self, modules: list[nn.Module], kind: str) -> bool:
        numbers = [_weight(module).numel() for module in modules]
        needed = sum(numbers) * _BYTES[kind]
        if self.weights != AUTO:
            check_ram(needed, "packed weights")
            return True
        available = available_ram()
        return available is None or needed <= available // 2


def packed(model: nn.Module, weights: str = FLOAT32) -> contextlib.AbstractContextManager[None]:
    """Pack the linear layers of any model for the duration of a `with` block; what was packed is not kept."""
    packing = Packing(weights)
    packing.check(model)
    return packing.in_use(model)


def _is_packable(module: nn.Module) -> bool:
    """Tell whether a layer is an ordinary one in float32 on a CPU: no subclass, nothing wrapped around it."""
    if not (type(module) is nn.Linear or _is_conv1d(module)) or "forward" in vars(module):
        return False
    weight = module._parameters.get("weight")  # parametrised ones are computed
    return (
        type(weight) is nn.Parameter
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.layout == torch.strided
        and weight.numel() > 0
    )


def _is_conv1d(module: nn.Module) -> bool:
    """Tell whether a layer is GPT-2's linear one, whose matrix lies on its other side."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


def _weight(module: nn.Module) -> nn.Parameter:
    weight = module._parameters["weight"]
    assert weight is not None
    return weight


def _state(module: nn.Module) -> list[Any]:
    return [state_of(value) for value in module._parameters.values() if value is not None]


def _pack(module: nn.Module, kind: str) -> _Packed:
    weight = _weight(module)
    bias: Any = module.bias
    plain: Callable[..., Tensor] = functools.partial(type(module).forward, module)
    with torch.inference_mode(False), torch.no_grad():
        matrix = weight.t().contiguous() if _is_conv1d(module) else weight.detach()
        multiply = _MULTIPLY[kind](matrix, None if bias is None else bias.detach())

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        if kwargs or torch.is_grad_enabled() or args[0].ndim < 2 or args[0].dtype != torch.float32:
            return plain(*args, **kwargs)
        return multiply(args[0])

    return _Packed(_state(module), forward)


def _multiply_float32(matrix: Tensor, bias: Tensor | None) -> Multiply:
    """Return oneDNN's product with a matrix, as torch's own compiler uses it."""
    ordered = torch.ops.mkldnn._reorder_linear_weight(matrix)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, ordered, bias, "none", [], "")


def _multiply_float16(matrix: Tensor, bias: Tensor | None) -> Multiply:
    """Return FBGEMM's product with a matrix in float16, summed in float32, as torch's dynamic quantisation uses it."""
    if float(matrix.abs().max()) > _LARGEST:
        return _multiply_float32(matrix, bias)
    ordered = torch.ops.quantized.linear_prepack_fp16(matrix, bias)
    multiply = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda x: multiply(x, ordered)


_MULTIPLY = {FLOAT32: _multiply_float32, FLOAT16: _multiply_float16}


@functools.cache
def _works(kind: str) -> bool:
    """Tell whether a product is to be had here, and right: torch ships these for some CPUs, without promises."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    numbers = torch.arange(-60, 84, dtype=torch.float32)
    matrix = numbers.view(9, 16) / 64
    bias = numbers[:9]
    try:
        with torch.inference_mode():
            found = _MULTIPLY[kind](matrix, bias)(numbers[:48].view(1, 3, 16))
    except (AttributeError, RuntimeError):
        return False
    return torch.equal(found, nn.functional.linear(numbers[:48].view(1, 3, 16), matrix, bias))
