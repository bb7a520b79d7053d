"""Codes of a few bits in bytes: one axis a byte, or two.

A code is a number around 0: -128 to 127, or -8 to 7. Of 4-bit codes a byte holds two: in its low half that of an axis
of the first half, in its high half that of the axis half a row later, so that a row is unpacked in whole registers.
FAISS counts codes from 0, and keeps neighbouring axes in a byte.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Codes = npt.NDArray[np.int8] | npt.NDArray[np.uint8]  # one axis a byte, or two
_TOGETHER = 16  # bytes that are unpacked in a register


def pack(codes: npt.NDArray[np.int8], bits: int) -> Codes:
    """Return codes [n, d] as they are kept: 8 bits as int8 [n, d], 4 bits as uint8 [n, ⌈d/2⌉]."""
    if bits == 8:
        return codes
    half = -(-codes.shape[1] // 2)
    high = np.zeros((len(codes), half), np.uint8)
    high[:, : codes.shape[1] - half] = codes[:, half:].view(np.uint8) & 15
    return (codes[:, :half].view(np.uint8) & 15) | (high << 4)


def unpack(kept: Codes, dim: int) -> npt.NDArray[np.int8]:
    """Return codes [n, dim] of what is kept."""
    if kept.dtype == np.int8:
        return np.asarray(kept)
    codes = np.empty((len(kept), 2 * kept.shape[1]), np.int8)
    _unpack_all(kept, codes)
    return codes[:, :dim]


def pack_like_faiss(codes: npt.NDArray[np.int8], bits: int) -> npt.NDArray[np.uint8]:
    """Return codes [n, d] in the bytes that FAISS has for them."""
    counted = (codes.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)
    if bits == 8:
        return counted
    even = np.zeros((len(codes), -(-codes.shape[1] // 2)), np.uint8)
    odd = even.copy()
    even[:] = counted[:, 0::2]
    odd[:, : codes.shape[1] // 2] = counted[:, 1::2]
    packed: npt.NDArray[np.uint8] = even | (odd << 4)
    return packed


def unpack_from_faiss(raw: npt.NDArray[np.uint8], dim: int, bits: int) -> npt.NDArray[np.int8]:
    """Return codes [n, dim] of FAISS's bytes."""
    if bits == 8:
        return (raw ^ 128).view(np.int8)
    counted = np.stack([raw & 15, raw >> 4], axis=2).reshape(len(raw), 2 * raw.shape[1])[:, :dim]
    return np.ascontiguousarray(counted.view(np.int8) - 8)


@intrinsic  # type: ignore[untyped-decorator]
def _unpack_some(context: Any, kept: Any, row: Any, at: Any, codes: Any, half: Any) -> Any:
    """Write the codes of _TOGETHER bytes of a row into codes[at:] and codes[half + at:], in registers."""
    signature = types.void(kept, types.int64, types.int64, codes, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, row, at, _, half = arguments
        kept, codes = (context.make_array(signature.args[n])(context, builder, arguments[n]) for n in (0, 3))
        vector = ir.VectorType(ir.IntType(8), _TOGETHER)
        four = ir.Constant(vector, [4] * _TOGETHER)
        place = builder.add(builder.mul(row, builder.extract_value(kept.shape, 1)), at)

        def pointer(data: Any, offset: Any) -> Any:
            return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

        read = builder.load(pointer(kept.data, place), align=1)
        low = builder.ashr(builder.shl(read, four), four)
        builder.store(low, pointer(codes.data, at), align=1)
        builder.store(builder.ashr(read, four), pointer(codes.data, builder.add(half, at)), align=1)
        return context.get_dummy_value()

    return signature, codegen


@numba.njit(cache=True, inline="always")
def unpack_row(kept, row, codes):  # type: ignore[no-untyped-def]
    """Write the codes of a row of bytes that hold two each into the beginning of an array; both in C order."""
    half = kept.shape[1]
    whole = half // _TOGETHER * _TOGETHER
    for at in range(0, whole, _TOGETHER):
        _unpack_some(kept, row, at, codes, half)
    for at in range(whole, half):
        byte = np.uint8(kept[row, at])
        codes[at] = np.int8(np.uint8(byte << np.uint8(4))) >> np.int8(4)
        codes[half + at] = np.int8(byte) >> np.int8(4)


@numba.njit(cache=True)
def _unpack_all(kept, codes):  # type: ignore[no-untyped-def]
    for row in range(len(kept)):
        unpack_row(kept, row, codes[row])
