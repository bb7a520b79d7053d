"""Mix the memory into a model's own forward pass, so that everything built on its logits sees the mixture."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from nearlm.base import ModelError, blocks
from nearlm.knnlm.history import contexts_of, ends_of, keep_history, read_history
from nearlm.knnlm.scoring import LMStatistics, as_array
from nearlm.mixing import Contexts, Known, Memory, Prediction, open_memory
from nearlm.model.lm import LM, AnyModel
from nearlm.model.passes import turn
from nearlm.model.statistics import statistics_of
from nearlm.model.tap import capture, find_head
from nearlm.store import AnyStores, SearchSettings, open_stores
from nearlm.store.model_files import load_lm

_SLICE_BYTES = 64 << 20
_OF_A_LOSS = ("num_items_in_batch", "shift_labels", "ignore_index")
Watch = Callable[[Prediction], None]


class Attachment:
    """A memory in a model's own forward pass, from now until `detach` or the end of a `with` block.

    `watch` is told what the memory says in every pass, for some positions after the others if there are many.
    """

    def __init__(self, lm: LM, memory: Memory, watch: Watch | None = None):
        model: Any = lm.model
        self.lm = lm
        self.memory = memory
        with turn(model):
            self._before = vars(model).get("forward")
            if hasattr(self._before, "_nearlm"):
                raise ModelError(f"{lm.name} has a memory attached already; detach that one first")
            self._forward = _mixing_forward(lm, memory, watch)
            model.forward = self._forward

    @property
    def model(self) -> Any:
        """The model, whose logits are log p of the mixture."""
        return self.lm.model

    def detach(self) -> None:
        """Give the model its own forward pass back; a second call has no effect."""
        with turn(self.model):
            if vars(self.model).get("forward") is not self._forward:
                return
            del self.model.forward
            if self._before is not None:
                self.model.forward = self._before

    def __enter__(self) -> Any:
        return self.model

    def __exit__(self, *error: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"Attachment({self.memory!r} in {self.lm.name})"


def attach(model: AnyModel, store: AnyStores, settings: SearchSettings = SearchSettings()) -> Attachment:
    """Mix a store's memory into a model's own logits, so that everything built on them sees the kNN-LM.

    `generate`, pipelines, logits processors, beams and samplers then work on the mixture without knowing of it: the
    logits are log p_mix, and a loss is computed from them. It lasts until `detach`, or to the end of a `with` block.

    Args:
        model: A transformers model that is loaded already, or what `KNNLM.load` takes. It must give the keys that
            the store was built with: another one is refused, also another fine-tune of the same architecture.
        store: Folder of a store, `cache:NAME`, or an open store; or a list of several, which are used together.
        settings: How the memory is searched and mixed; what is left out is as it was tuned.

    Example:
        >>> from transformers import AutoModelForCausalLM, AutoTokenizer
        >>> model = AutoModelForCausalLM.from_pretrained("saved-model")
        >>> inputs = AutoTokenizer.from_pretrained("saved-model")("the licence", return_tensors="pt")
        >>> with nearlm.attach(model, "mystore"):
        ...     ids = model.generate(**inputs, max_new_tokens=3)
        >>> attached = nearlm.attach(model, "mystore", nearlm.SearchSettings(lam=0.5))
        >>> attached.detach()
    """
    stores = open_stores(store)
    memory = open_memory(stores, settings)
    lm = load_lm(stores[0], model)
    memory.check_model(lm.fingerprint())
    return Attachment(lm, memory)


def _mixing_forward(lm: LM, memory: Memory, watch: Watch | None) -> Any:
    """Return a model's forward pass that mixes the memory in."""
    model: Any = lm.model
    original = model.forward
    behind = lm.tap.module is find_head(model)  # the model picks positions before its head
    parameters = inspect.signature(original)

    def mix_in(*args: Any, return_dict: bool | None = None, **kwargs: Any) -> Any:
        kwargs = _by_name(parameters, args, kwargs)
        labels = kwargs.pop("labels", None)
        history = None
        ids: Any = kwargs.get("input_ids")
        if memory.needs_contexts:
            history = read_history(ids, kwargs)
        with capture(lm.tap, stop=False) as vectors:
            output = original(**kwargs, return_dict=True)
        keys = vectors[0].reshape(len(output.logits), -1, lm.dim)
        kept = kwargs.get("logits_to_keep", 0)
        contexts = None
        if history is not None:
            keep_history(output, history)
            contexts = contexts_of(history, _keep(ends_of(history, ids.shape[1]), output.logits, kept))
        logits = _mix(memory, output.logits, _keep(keys, output.logits, kept, picked=behind), contexts, watch)
        output.logits = logits
        if labels is not None:  # a copy of the output, which takes as long as a small search
            output = dataclasses.replace(output, loss=_loss(model, logits, labels, kwargs))
        return output if return_dict is not False else output.to_tuple()

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not model:  # a copy of the model, which has no memory
            return type(self).forward(self, *args, **kwargs)
        with turn(model) as plain:
            return original(*args, **kwargs) if plain else mix_in(*args, **kwargs)

    forward.__signature__ = _with_self(parameters)  # type: ignore[attr-defined]
    forward._nearlm = True  # type: ignore[attr-defined]  # tells it from the model's own
    return MethodType(forward, model)


def _loss(model: Any, logits: Tensor, labels: Tensor, arguments: dict[str, Any]) -> Tensor:
    """Return the model's own loss, of the mixture."""
    more = {name: arguments[name] for name in _OF_A_LOSS if name in arguments}
    return model.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **more)  # type: ignore[no-any-return]


def _with_self(parameters: inspect.Signature) -> inspect.Signature:
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    return parameters.replace(parameters=[own, *parameters.parameters.values()])


def _by_name(parameters: inspect.Signature, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name, whatever the model calls its `**kwargs`."""
    if not args:
        return kwargs
    named = parameters.bind_partial(*args, **kwargs).arguments
    for name, one in parameters.parameters.items():
        if one.kind is one.VAR_KEYWORD:
            named |= named.pop(name, {})
    return named


def _mix(memory: Memory, logits: Tensor, keys: Tensor, contexts: Contexts | None, watch: Watch | None = None) -> Tensor:
    """Return log p of the mixture for logits [batch, positions, vocabulary]."""
    exact = logits.dtype if logits.dtype == torch.float64 else torch.float32
    flat = logits.reshape(-1, logits.shape[-1])
    queries = keys.detach().reshape(-1, keys.shape[-1]).float().cpu().numpy()
    parts = []
    size = max(1, _SLICE_BYTES // (8 * flat.shape[-1]))
    whole = len(flat) <= size
    for part in blocks(len(flat), size):
        log_lm, statistics = _read(flat[part].to(exact))
        known = Known.of(statistics, contexts if contexts is None or whole else contexts[part], len(log_lm))
        prediction = memory.predict(queries[part], known)
        if watch is not None:
            watch(prediction)
        parts.append(prediction.log_p_vocabulary(log_lm))
    mixed = parts[0] if len(parts) == 1 else torch.cat([flat[:0].to(exact), *parts])
    return mixed.view(*logits.shape)


def _read(logits: Tensor) -> tuple[Tensor, LMStatistics]:
    """Return log p of the LM, and what a memory may want to know of it; log Σ exp comes with that for nothing."""
    found = statistics_of(logits.detach())
    statistics = LMStatistics(*(as_array(value) for value in (found.conf, found.ent, found.top)))
    if logits.requires_grad:
        return logits.log_softmax(-1), statistics
    return logits - found.log_total[:, None], statistics


def _keep(rows: Tensor, logits: Tensor, kept: int | Tensor, *, picked: bool = False) -> Tensor:
    """Pick the rows of those positions whose logits the model returned, unless the model has done so."""
    if picked and rows.shape[1] == logits.shape[1]:
        return rows
    if isinstance(kept, Tensor):
        return rows[:, kept]
    return rows[:, -logits.shape[1] :]
