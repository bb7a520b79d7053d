"""One forward pass over rows of unlike lengths: prompts are read in chunks, then one token of every row at a time.

A model whose cache is not keys and values of attention (Mamba, hybrids), or that gives other logits in a padded batch,
is run row by row instead: slower, and never wrong.
"""

import contextlib
import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from nearlm.base import Int32s, ModelError
from nearlm.model.lm import LM
from nearlm.model.passes import plain_turn
from nearlm.model.tap import capture
from nearlm.serve.past import Past, Piece, pieces_of

CHUNK = 256  # tokens of prompts that are read between two steps
_BATCHED = {DynamicLayer, DynamicSlidingWindowLayer}
_PROBE = ([5, 3, 8, 2, 9], [7, 4, 1], [6])


@dataclass(frozen=True)
class Said:
    """What the LM says after some positions: logits, [n, vocabulary], and context vectors, [n, dim]."""

    logits: Tensor
    keys: Tensor


@dataclass
class Reading:
    """Prompts that are being read, left-padded to one width: what was read of them, and their cache."""

    prompts: list[list[int]]
    cache: Any = None
    read: int = 0

    @property
    def width(self) -> int:
        """Tokens of the longest prompt."""
        return max(map(len, self.prompts))

    @property
    def done(self) -> bool:
        """Whether all is read."""
        return self.read == self.width


@dataclass
class Alone:
    """The caches of rows that a model cannot run together."""

    caches: list[Any] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class Decoder:
    """Runs an LM over rows that join and leave."""

    def __init__(self, lm: LM):
        self.lm = lm
        self._model: Any = lm.model
        self._parameters = inspect.signature(self._model.forward).parameters
        self._packed: contextlib.ExitStack | None = None

    def read(self, reading: Reading, *, every: bool = False) -> Said:
        """Read the next chunk of prompts; return what is said after the last token of each, or after every token.

        All but the last chunk say nothing, unless every token is asked for, which only one prompt at a time may be.
        """
        assert not every or len(reading.prompts) == 1
        width = reading.width
        end = min(width, reading.read + CHUNK) if len(reading.prompts) == 1 else width
        ids = torch.tensor([[0] * (width - len(row)) + row for row in reading.prompts])
        begins = torch.tensor([width - len(row) for row in reading.prompts])
        if reading.cache is None:
            reading.cache = DynamicCache() if self.together else self._own_cache()
        columns = torch.arange(reading.read, end)
        mask = (torch.arange(end)[None] >= begins[:, None]).long()
        positions = (columns[None] - begins[:, None]).clamp(min=0)
        padded = mask if begins.any() else None
        wide = end - reading.read if every else 1
        said, reading.cache = self._forward(ids[:, reading.read : end], padded, positions, reading.cache, wide)
        reading.read = end
        return said

    def join(self, past: "Past | Alone | None", kept: Sequence[int], reading: Reading, times: Sequence[int]) -> Any:
        """Return the cache of the `kept` rows of a past, and after them of prompts, each repeated some times."""
        lengths = [len(row) for row in reading.prompts]
        if not self.together:
            assert past is None or isinstance(past, Alone)
            now = self.keep(past, kept) or Alone()
            copies = [reading.cache] + [copy.deepcopy(reading.cache) for _ in range(times[0] - 1)]
            return Alone(now.caches + copies, now.lengths + lengths * times[0])
        assert not isinstance(past, Alone)
        pieces: list[Piece] = [past.piece(row) for row in kept] if past is not None else []
        for piece, count in zip(pieces_of(reading.cache, lengths), times, strict=True):
            pieces += [piece] * count
        return Past(pieces)

    def keep(self, past: Any, kept: Sequence[int]) -> Any:
        """Return the cache of some rows of a past, None of none."""
        if past is None or not kept:
            return None
        if isinstance(past, Alone):
            return Alone([past.caches[row] for row in kept], [past.lengths[row] for row in kept])
        return past if list(kept) == list(range(len(past))) else Past([past.piece(row) for row in kept])

    def step(self, past: Any, tokens: Sequence[int], drafts: Sequence[Int32s] = ()) -> Said:
        """Append one token to every row, and what is drafted after it; return what is said after each of them.

        Rows get the same number of columns. `past.shrink` takes back those that turn out wrong, or stand after the end
        of a shorter draft. Only rows that are run together can have drafts.
        """
        wide = 1 + max(map(len, drafts), default=0)
        ids = torch.zeros(len(tokens), wide, dtype=torch.long)
        ids[:, 0] = torch.tensor(tokens)
        for row, draft in enumerate(drafts):
            ids[row, 1 : 1 + len(draft)] = torch.from_numpy(draft)
        if isinstance(past, Alone):
            return self._step_alone(past, ids)
        mask = past.mask_with(wide)
        positions = torch.tensor(past.lengths)[:, None] + torch.arange(wide)
        said, _ = self._forward(ids, None if mask.all() else mask, positions, past.cache, wide)
        past.grow(wide)
        return said

    def _step_alone(self, past: Alone, ids: Tensor) -> Said:
        parts = []
        for row in range(len(ids)):
            positions = torch.tensor([[past.lengths[row]]])
            said, past.caches[row] = self._forward(ids[row : row + 1], None, positions, past.caches[row], 1)
            past.lengths[row] += 1
            parts.append(said)
        return Said(torch.cat([said.logits for said in parts]), torch.cat([said.keys for said in parts]))

    def _forward(self, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: Any, wide: int) -> tuple[Said, Any]:
        """Run the model; return what it says after the last columns, and its cache."""
        device = self.lm.device
        given: dict[str, Any] = {"input_ids": ids.to(device), "use_cache": True, self._cache_name: cache}
        if mask is not None:
            given["attention_mask"] = mask.to(device)
        if "position_ids" in self._parameters:
            given["position_ids"] = positions.to(device)
        if "logits_to_keep" in self._parameters and wide < ids.shape[1]:
            given["logits_to_keep"] = wide
        self._pack()
        with torch.inference_mode(), plain_turn(self._model), capture(self.lm.tap, stop=False) as vectors:
            output = self._model(**given)
        logits = output.logits[:, -wide:]
        keys = vectors[0].reshape(len(ids), -1, self.lm.dim)[:, -logits.shape[1] :]
        said = Said(logits.flatten(0, 1), keys.flatten(0, 1))
        return said, getattr(output, self._cache_name)

    def _pack(self) -> None:
        """Use packed weights; they stay in use from pass to pass, since it takes milliseconds to change them."""
        if self._packed is None:
            self._packed = contextlib.ExitStack()
            self._packed.enter_context(self.lm.packed())

    def rest(self) -> None:
        """Leave the model to others; the thread that ran it must say so."""
        if self._packed is not None:
            self._packed.close()
            self._packed = None

    @property
    def _cache_name(self) -> str:
        return "past_key_values" if "past_key_values" in self._parameters else "cache_params"

    def _own_cache(self) -> Any:
        """Return an empty cache of the model's own kind; None where it makes one itself."""
        return DynamicCache(config=self._model.config) if self._cache_name == "past_key_values" else None

    @cached_property
    def together(self) -> bool:
        """Whether rows can be run together: padded ones must give what they give alone."""
        if self._cache_name not in self._parameters:
            raise ModelError(f"{type(self._model).__name__} takes no cache, and would read everything for each token")
        if not all(type(layer) in _BATCHED for layer in getattr(self._own_cache(), "layers", [None])):
            return False
        try:
            self.__dict__["together"] = True  # for the runs that find out
            alone = [self._probe([row]) for row in _PROBE]
            whole = self._probe(list(_PROBE))
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
            return False
        finally:
            del self.__dict__["together"]
            self.rest()
        expected = torch.cat(alone)
        scale = float(expected.abs().max())
        tolerance = 0.05 if expected.dtype in (torch.float16, torch.bfloat16) else 1e-3
        return bool(torch.isfinite(whole).all() and (whole - expected).abs().max() <= tolerance * scale)

    def _probe(self, prompts: list[list[int]]) -> Tensor:
        """Read prompts, append a token to each, and return the logits after it."""
        wrapped = [[token % self.lm.vocab_size for token in row] for row in prompts]
        reading = Reading(wrapped)
        self.read(reading)
        past = self.join(None, [], reading, [1] * len(prompts))
        return self.step(past, [11 % self.lm.vocab_size] * len(prompts)).logits
