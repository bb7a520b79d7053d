"""Tokens that are counted by row: hash tables for kernels, each of the tokens of one row."""

import numba
import numpy as np


@numba.njit(cache=True)
def table_for(count):  # type: ignore[no-untyped-def]
    """Return an empty hash table for so many tokens."""
    size = 4
    while size < 2 * count:
        size *= 2
    return np.full(size, -1, np.int32)


@numba.njit(cache=True, inline="always")
def place_of(token, table, keys, tokens, count):  # type: ignore[no-untyped-def]
    """Return where a token stands in a row, which it joins if it is new: a hash table of places."""
    size = len(table)
    at = (token * 2654435761) & (size - 1)
    while True:
        place = table[at]
        if place < 0:
            table[at] = count
            keys[count] = at
            tokens[count] = token
            return count
        if tokens[place] == token:
            return place
        at = (at + 1) & (size - 1)


@numba.njit(cache=True)
def find(tokens, token):  # type: ignore[no-untyped-def]
    """Return the place of a token, -1 if it is not there."""
    for j in range(len(tokens)):
        if tokens[j] == token:
            return j
    return -1
