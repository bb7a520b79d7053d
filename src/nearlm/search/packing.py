"""Codes of a few bits in bytes: one axis a byte, or two.

A code is a number around 0: -128 to 127, or -8 to 7. Of 4-bit codes a byte holds two: in its low half that of an axis
of the first half, in its high half that of the axis half a row later, so that a row is unpacked in whole registers.
FAISS counts codes from 0, and keeps neighbouring axes in a byte.
"""

import numba
import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int8] | npt.NDArray[np.uint8]  # one axis a byte, or two


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
    return even | (odd << 4)


def unpack_from_faiss(raw: npt.NDArray[np.uint8], dim: int, bits: int) -> npt.NDArray[np.int8]:
    """Return codes [n, dim] of FAISS's bytes."""
    if bits == 8:
        return (raw ^ 128).view(np.int8)
    counted = np.stack([raw & 15, raw >> 4], axis=2).reshape(len(raw), -1)[:, :dim]
    return np.ascontiguousarray(counted.view(np.int8) - 8)


@numba.njit(cache=True, inline="always")
def unpack_row(kept, row, codes):  # type: ignore[no-untyped-def]
    """Write the codes of a row of bytes that hold two each into the beginning of an array."""
    half = kept.shape[1]
    for at in range(half):
        byte = np.uint8(kept[row, at])
        codes[at] = np.int8(np.uint8(byte << np.uint8(4))) >> np.int8(4)
        codes[half + at] = np.int8(byte) >> np.int8(4)


@numba.njit(cache=True)
def _unpack_all(kept, codes):  # type: ignore[no-untyped-def]
    for row in range(len(kept)):
        unpack_row(kept, row, codes[row])
