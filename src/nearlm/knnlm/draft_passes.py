"""Passes over drafts: rows are read together, each with its own draft, and cut back to what was accepted of it.

Rows of a batch end in the same column of the cache; what stands before a shorter one is masked. A row that had fewer
tokens accepted than another is moved to the right, in the cache and in the history that a memory reads.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from nearlm.base import Int32s
from nearlm.knnlm.history import move_history


class Reader:
    """Runs a model over what it has not read yet, for one row or several.

    Args:
        model: The model, perhaps with a memory attached.
        cache: Its cache, which `can_crop` has allowed.
        mask: Which tokens of the rows are no padding, [rows, tokens]; None for a single row.
        extra: What else the model is to be given in every pass.
    """

    def __init__(self, model: Any, cache: Any, mask: Tensor | None, extra: dict[str, Any]):
        self._model = model
        self._cache = cache
        self._mask = mask
        self._extra = extra
        self._wide = 0  # columns of the last pass that logits were asked for
        self._begun = False
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        if hasattr(cache, "activate_past_recording"):
            cache.activate_past_recording()

    def read(self, rows: Sequence[Tensor], drafts: Sequence[Int32s]) -> Tensor:
        """Return the logits after the last token of each row, [1, tokens], and after each token drafted for it.

        They are [rows, longest draft + 1, vocabulary]; what stands after the end of a shorter draft has no meaning.
        """
        known = self._cache.get_seq_length()
        unread = [ids[:, -1:] if self._begun else ids[:, known:] for ids in rows]
        new = torch.cat([torch.cat(unread), _side_by_side(drafts).to(rows[0].device)], 1)
        self._begun = True
        self._wide = 1 + max(map(len, drafts))
        given: dict[str, Any] = {"logits_to_keep": self._wide} if self._keeps else {}
        given |= self._places(known + new.shape[1], new.shape[1])
        out = self._model(input_ids=new, past_key_values=self._cache, use_cache=True, **given, **self._extra)
        return out.logits[:, -self._wide :]  # type: ignore[no-any-return]

    def _places(self, width: int, new: int) -> dict[str, Tensor]:
        """Return the mask of all columns and the positions of the new ones, which are none of padding after a draft."""
        if self._mask is None:
            return {}
        more = width - self._mask.shape[1]
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), more)], 1)
        positions = (self._mask.long().cumsum(1) - 1).clamp(min=0)
        return {"attention_mask": self._mask, "position_ids": positions[:, -new:]}

    def keep(self, rows: Sequence[int], columns: Sequence[int]) -> None:
        """Keep some rows, and the first so many columns of what each of them read in the last pass."""
        most = max(columns)
        self._cache.crop(most - self._wide)  # with none a sliding window still drops what it needs no more
        if self._mask is None:
            return
        self._mask = self._mask[:, : self._mask.shape[1] + most - self._wide]
        if len(rows) < len(self._mask):
            chosen = torch.tensor(rows, device=self._mask.device)
            self._cache.batch_select_indices(chosen)
            self._mask = self._mask[chosen]
        moves = [most - count for count in columns]
        if any(moves):
            self._move(moves)

    def _move(self, steps: Sequence[int]) -> None:
        """Move rows to the right, each by its own number of columns."""
        assert self._mask is not None
        self._mask = moved(self._mask, steps, 0)
        for layer in (layer for layer in self._cache.layers if layer.is_initialized):  # others share keys and values
            layer.keys = moved(layer.keys, steps, 0, 2)
            layer.values = moved(layer.values, steps, 0, 2)
        move_history(self._cache, steps)


def moved(rows: Tensor, steps: Sequence[int], fill: int, along: int = 1) -> Tensor:
    """Return rows whose columns are moved to the right, each by its own number; the last ones fall off."""
    out = rows.clone()
    width = rows.shape[along]
    for row, step in enumerate(steps):
        if step:
            out[row].narrow(along - 1, step, width - step).copy_(rows[row].narrow(along - 1, 0, width - step))
            out[row].narrow(along - 1, 0, step).fill_(fill)
    return out


def _side_by_side(drafts: Sequence[Int32s]) -> Tensor:
    """Return drafts as [rows, longest]; shorter ones go on with token 0."""
    out = np.zeros((len(drafts), max(map(len, drafts))), np.int64)
    for row, draft in zip(out, drafts, strict=True):
        row[: len(draft)] = draft
    return torch.from_numpy(out)


def can_crop(model: Any, cache: Any, rows: int = 1) -> bool:
    """Tell whether tokens can be taken out of a model's cache again, exactly, from each of some rows."""
    if getattr(model, "_is_stateful", False) or type(cache) is not DynamicCache:
        return False
    kinds = {type(layer) for layer in cache.layers}
    recording = hasattr(cache, "activate_past_recording")  # without it a sliding window has lost what was before
    if rows > 1:
        return kinds <= {DynamicLayer} and not cache.get_seq_length() and _takes_positions(model)
    return kinds <= ({DynamicLayer, DynamicSlidingWindowLayer} if recording else {DynamicLayer})


def _takes_positions(model: Any) -> bool:
    return {"attention_mask", "position_ids"} <= set(inspect.signature(model.forward).parameters)
