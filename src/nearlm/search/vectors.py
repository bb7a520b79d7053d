"""What a search does in the processor's vector registers: products of queries with rows, and comparisons."""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nearlm.base import Floats
from nearlm.search.tiles import LANES, products

ROWS = 32  # whose products and distances are computed together
PART = 128  # what one is worth in the first of two parts of a weight
_INT, _LONG = (ir.IntType(bits) for bits in (32, 64))
_FLOAT = ir.FloatType()


@intrinsic  # type: ignore[untyped-decorator]
def distances_within(
    context: Any, sums: Any, n: Any, constant: Any, step: Any, norms: Any, limit: Any, near: Any
) -> Any:
    """Write constant + norms - step · sums[n] of ROWS rows into `near`; return a bit for each within the limit."""
    one = types.float32
    signature = types.uint32(sums, types.int64, one, one, norms, one, near)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, n, constant, step, _, limit, _ = arguments
        arrays = {at: context.make_array(signature.args[at])(context, builder, arguments[at]).data for at in (0, 4, 6)}
        floats = ir.VectorType(_FLOAT, ROWS)

        def vector(data: Any, kind: Any) -> Any:
            return builder.bitcast(data, ir.VectorType(kind, ROWS).as_pointer())

        row = builder.gep(arrays[0], [builder.mul(n, _LONG(ROWS))])
        found = builder.sitofp(builder.load(vector(row, _INT), align=4), floats)
        known = builder.fadd(_everywhere(builder, constant), builder.load(vector(arrays[4], _FLOAT), align=4))
        distances = builder.fsub(known, builder.fmul(_everywhere(builder, step), found))
        builder.store(distances, vector(arrays[6], _FLOAT), align=4)
        return builder.bitcast(builder.fcmp_ordered("<=", distances, _everywhere(builder, limit)), _INT)

    return signature, codegen


def _everywhere(builder: Any, value: Any) -> Any:
    """Return a vector that holds one number in all places."""
    alone = builder.insert_element(ir.Constant(ir.VectorType(_FLOAT, ROWS), ir.Undefined), value, _INT(0))
    return builder.shuffle_vector(alone, alone, ir.Constant(ir.VectorType(_INT, ROWS), [0] * ROWS))


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(context: Any, bits: Any) -> Any:
    """Return the place of the lowest bit that is set; one must be."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.cttz(arguments[0], ir.IntType(1)(1)), _LONG)

    return types.int64(types.uint32), codegen


_multiply_four = products(4, 2)
_multiply_one = products(1, 4)


@numba.njit(cache=True, inline="always")
def multiply(a, m, some, b, row, every, rows, out):  # type: ignore[no-untyped-def]
    """Multiply four queries, or one, with some rows: a multiple of four."""
    if some == 4:
        for r in range(0, rows, 2):
            _multiply_four(a, m, b, row + r * every, every, out, r)
    else:
        for r in range(0, rows, 4):
            _multiply_one(a, m, b, row + r * every, every, out, r)


@numba.njit(cache=True, inline="always")
def multiply_parts(weights, first, some, parts, codes, row, every, sums):  # type: ignore[no-untyped-def]
    """Multiply four queries, or one, with ROWS rows; weights may be in two parts, of which the first counts more."""
    if parts == 1:
        multiply(weights, first, some, codes, row, every, ROWS, sums)
        return
    for part in range(0, 2 * some, some):
        multiply(weights, 2 * first + part, some, codes, row, every, ROWS, sums[part:])
    for n in range(some):
        for r in range(ROWS):
            sums[n, r] = PART * sums[2 * n, r] + sums[2 * n + 1, r]


def multiply_matrix(a: Floats, b: Floats) -> Floats:
    """Return a · bᵀ for rows [n, d] and [m, d] in C order; a row's numbers do not depend on the other rows."""
    width = padded(a.shape[1])
    out = np.empty((-(-len(a) // 4) * 4, -(-len(b) // ROWS) * ROWS), np.float32)
    _matrix_kernel(widen(a, width), widen(b, width), out)
    return out[: len(a), : len(b)]


def padded(width: int) -> int:
    """Return how wide rows of floats must be for `multiply`, at least."""
    return -(-width // LANES) * LANES


def widen(rows: Floats, width: int) -> Floats:
    """Return rows that are filled up with zeros to a width, one after the other in memory."""
    if rows.shape[1] == width:
        return np.ascontiguousarray(rows)
    wide = np.zeros((len(rows), width), np.float32)
    wide[:, : rows.shape[1]] = rows
    return wide


@numba.njit(cache=True, parallel=True, nogil=True)
def _matrix_kernel(a, b, out):  # type: ignore[no-untyped-def]
    parts = out.shape[1] // ROWS
    for part in numba.prange(parts):
        row = part * ROWS
        rows = min(ROWS, len(b) - row)
        whole = rows // 4 * 4
        last = np.zeros((4, b.shape[1]), np.float32)
        last[: rows - whole] = b[row + whole : row + rows]
        m = 0
        while m < len(a):
            some = 4 if len(a) - m >= 4 else 1
            multiply(a, m, some, b, row, 1, whole, out[m:, row:])
            if whole < rows:
                multiply(a, m, some, last, 0, 1, 4, out[m:, row + whole :])
            m += some
