"""The key-value cache of several rows of unlike lengths, which rows join and leave between steps.

All rows end in the same column, so that one forward pass appends one token to each; what stands before a shorter row
is zeros, which the attention mask hides. Room for further columns is kept, so that a step copies nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_ROOM = 64  # columns


class _Layer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, [rows, heads, columns, dim], with room for more columns behind them."""

    def fill(self, keys: Tensor, values: Tensor, used: int) -> None:
        """Take over buffers of which some columns are used."""
        self.dtype, self.device = keys.dtype, keys.device
        self._room = (keys, values)
        self.show(used)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append columns in place; larger buffers are made when these are full."""
        used = self.keys.shape[-2]
        end = used + key_states.shape[-2]
        if end > self._room[0].shape[-2]:
            grown = (buffer.new_zeros(*buffer.shape[:2], end + _ROOM, buffer.shape[-1]) for buffer in self._room)
            old = self._room
            self._room = (next(grown), next(grown))
            for buffer, before in zip(self._room, old, strict=True):
                buffer[:, :, :used] = before[:, :, :used]
        self._room[0][:, :, used:end] = key_states
        self._room[1][:, :, used:end] = value_states
        self.show(end)
        return self.keys, self.values

    def move(self, row: int, begin: int, end: int, to: int) -> None:
        """Move columns of a row to the right, in place."""
        for buffer in self._room:
            buffer[row, :, to : to + end - begin] = buffer[row, :, begin:end].clone()

    def show(self, used: int) -> None:
        """Let so many columns be seen."""
        self.keys = self._room[0][:, :, :used]
        self.values = self._room[1][:, :, :used]


@dataclass(frozen=True)
class Piece:
    """The cache of one row, without padding: its length, and keys and values of each layer, [heads, length, dim]."""

    length: int
    layers: list[tuple[Tensor, Tensor]]


class Past:
    """The cache of some rows, as the model takes it."""

    def __init__(self, pieces: Sequence[Piece]):
        self.lengths = [piece.length for piece in pieces]
        self.width = max(self.lengths)
        self.cache = DynamicCache()
        for number in range(len(pieces[0].layers)):
            layer = _Layer()
            parts = [piece.layers[number] for piece in pieces]
            keys = _aligned([part[0] for part in parts], self.width)
            values = _aligned([part[1] for part in parts], self.width)
            layer.fill(keys, values, self.width)
            self.cache.layers.append(layer)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def mask(self) -> Tensor:
        """Which columns each row sees when one more is appended, [rows, width + 1]."""
        return self.mask_with(1)

    def mask_with(self, columns: int) -> Tensor:
        """Tell which columns each row sees when so many are appended, [rows, width + columns]."""
        begins = self.width - torch.tensor(self.lengths)
        return (torch.arange(self.width + columns)[None] >= begins[:, None]).long()

    def grow(self, columns: int = 1) -> None:
        """Note that a forward pass has appended columns."""
        self.lengths = [length + columns for length in self.lengths]
        self.width += columns

    @torch.inference_mode()  # as passes are, whose buffers cannot be changed outside of it
    def shrink(self, columns: Sequence[int]) -> None:
        """Take the last columns of each row back; rows that lose more than others are moved, to end with them."""
        begins = [self.width - length for length in self.lengths]
        self.lengths = [length - lost for length, lost in zip(self.lengths, columns, strict=True)]
        self.width -= min(columns)
        for layer in self.cache.layers:
            for row, (begin, length) in enumerate(zip(begins, self.lengths, strict=True)):
                if begin + length < self.width:
                    layer.move(row, begin, begin + length, self.width - length)
            layer.show(self.width)

    def piece(self, row: int) -> Piece:
        """Return the cache of one row."""
        begin = self.width - self.lengths[row]
        layers = [(layer.keys[row, :, begin:], layer.values[row, :, begin:]) for layer in self.cache.layers]
        return Piece(self.lengths[row], layers)


def pieces_of(cache: Any, lengths: Sequence[int]) -> list[Piece]:
    """Split the cache of left-padded rows."""
    found = []
    for row, length in enumerate(lengths):
        layers = [(layer.keys[row, :, -length:], layer.values[row, :, -length:]) for layer in cache.layers]
        found.append(Piece(length, layers))
    return found


def _aligned(parts: list[Tensor], width: int) -> Tensor:
    """Put rows of unlike lengths into one buffer with room behind them."""
    heads, _, dim = parts[0].shape
    buffer = parts[0].new_zeros(len(parts), heads, width + _ROOM, dim)
    for row, part in enumerate(parts):
        buffer[row, :, width - part.shape[1] : width] = part
    return buffer
