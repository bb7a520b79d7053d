"""The tokens that a model has read so far, also those of which only its key-value cache knows.

The tokens are kept with the cache itself, and follow it when its rows are reordered, repeated or selected (beam search)
and when it is cropped, reset or copied.
"""

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from nearlm.base import ModelError
from nearlm.mixing import Contexts

_KEPT = "_nearlm_history"
_CACHES = ("past_key_values", "cache_params")
_FOLLOWED: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "reorder_cache": lambda history, rows: history[rows.to(history.device)],
    "batch_select_indices": lambda history, rows: history[rows.to(history.device)],
    "batch_repeat_interleave": lambda history, times: history.repeat_interleave(times, 0),
}


def read_history(ids: Tensor | None, arguments: dict[str, Any]) -> Tensor:
    """Return all tokens up to the new `ids`, [rows, past + new], with -1 for padding, before a forward pass."""
    if ids is None:
        raise ModelError("the memory looks at tokens, but the model was given inputs_embeds; give it input_ids")
    cache = _cache_of(arguments)
    past = 0 if cache is None else int(cache.get_seq_length())
    before = ids[:, :0]
    if past:
        kept = getattr(cache, _KEPT, None)
        if kept is None or kept.shape[1] < past or len(kept) != len(ids):
            raise ModelError(
                f"the cache holds {past} tokens that were read without the memory, which must see them; "
                "begin with an empty cache"
            )
        before = kept[:, :past].to(ids.device)
    history = torch.cat([before, ids], 1)
    return history.masked_fill(~_visible(arguments.get("attention_mask"), history), -1)


def keep_history(output: Any, history: Tensor) -> None:
    """Keep the tokens with the cache that a forward pass returned, if it did."""
    cache = next((found for name in _CACHES if (found := getattr(output, name, None)) is not None), None)
    if not hasattr(cache, "get_seq_length"):
        return
    setattr(cache, _KEPT, history)
    for name, change in _FOLLOWED.items():
        if hasattr(type(cache), name) and name not in vars(cache):
            setattr(cache, name, MethodType(_following(name, change), cache))  # a method is copied with its object


def move_history(cache: Any, steps: Sequence[int]) -> None:
    """Move rows of the tokens that are kept with a cache to the right, as those of the cache were."""
    kept = getattr(cache, _KEPT, None)
    if kept is None:
        return
    kept = kept[:, : int(cache.get_seq_length())]
    rows = [row.roll(step) for row, step in zip(kept, steps, strict=True)]
    for row, step in zip(rows, steps, strict=True):
        row[:step] = -1
    setattr(cache, _KEPT, torch.stack(rows))


def ends_of(history: Tensor, new: int) -> Tensor:
    """Return where the contexts of the last `new` positions end in the rows of a history, [rows, new]."""
    ends = torch.arange(history.shape[1] - new + 1, history.shape[1] + 1, device=history.device)
    return ends.expand(len(history), new)


def contexts_of(history: Tensor, ends: Tensor) -> Contexts:
    """Return the contexts that end at some places of each row, [rows, n]; they begin after the row's padding."""
    tokens = history.int().cpu().numpy()
    within = np.ascontiguousarray(ends.cpu().numpy())
    begins = np.empty(within.size, np.int64)
    places = np.empty(within.size, np.int64)
    _places_kernel(tokens, within, begins, places)
    return Contexts(tokens.reshape(-1), begins, places)


@numba.njit(cache=True, nogil=True)
def _places_kernel(tokens, within, begins, ends):  # type: ignore[no-untyped-def]
    """Write where contexts begin and end in all rows end to end; they begin after the last padding before their end."""
    rows, length = tokens.shape
    new = within.shape[1]
    for i in range(rows):
        before = first = -1
        for j in range(new):
            begin = within[i, j]
            while begin > 0 and begin != before and tokens[i, begin - 1] >= 0:
                begin -= 1
            first = first if begin == before else begin  # what was found for the context before holds here too
            before = within[i, j]
            begins[i * new + j] = i * length + first
            ends[i * new + j] = i * length + within[i, j]


def _following(name: str, change: Callable[[Tensor, Any], Tensor]) -> Callable[[Any, Any], None]:
    def follow(cache: Any, how: Any) -> None:
        getattr(type(cache), name)(cache, how)
        setattr(cache, _KEPT, change(getattr(cache, _KEPT), how))

    return follow


def _cache_of(arguments: dict[str, Any]) -> Any:
    cache = next((found for name in _CACHES if (found := arguments.get(name)) is not None), None)
    if cache is not None and not hasattr(cache, "get_seq_length"):
        raise ModelError(f"the memory does not know caches of type {type(cache).__name__}; pass use_cache=False")
    return cache


def _visible(mask: Any, history: Tensor) -> Tensor:
    """Tell which tokens are no padding: from a mask of the tokens, or from what the last position attends to."""
    if isinstance(mask, dict):
        mask = mask.get("full_attention", next(iter(mask.values()), None))
    length = history.shape[1]
    if not isinstance(mask, Tensor) or mask.shape[-1] < length:
        return history >= 0
    if mask.ndim == 4:
        last = mask[:, 0, -1, :length]
        mask = last if last.dtype == torch.bool else last == 0
    elif mask.ndim != 2:
        return history >= 0
    return torch.logical_and(mask[:, :length], history >= 0)
