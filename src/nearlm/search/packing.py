"""Codes of a few bits in bytes: one axis a byte, or two.

A code is a number around 0: -128 to 127, or -8 to 7. Of 4-bit codes a byte holds two: in its low half that of an axis
of the first half, in its high half that of the axis half a row later, so that a row is read in whole registers.
FAISS counts codes from 0, and keeps neighbouring axes in a byte.
"""

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
    halves = (kept << 4).view(np.int8) >> 4, kept.view(np.int8) >> 4
    return np.concatenate(halves, axis=1)[:, :dim]


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
