"""What a search does in the processor's vector registers: products of queries with rows, and comparisons.

The loops are given to LLVM as vectors. For 16-bit queries and 8-bit codes that is the pattern which it turns into a
multiply-add of pairs (`pmaddwd` and its like); of a plain loop over arrays it makes slower code. Sums of integers are
exact, and those of floats are always added up in the same order, however many queries there are.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nearlm.base import Floats

LANES = 16  # rows must be as wide as some of these together
ROWS = 32  # whose products and distances are computed together
_BYTE, _SHORT, _INT, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOAT = ir.FloatType()


def products(queries: int, rows: int) -> Any:
    """Return a numba function that multiplies so many queries with so many rows; all sums stay in registers.

    `multiply(a, m, b, row, every, out, at)` writes a[m + q] · b[row + r * every] into out[q, at + r]. The arrays are
    int16, int8 and int32, or all float32; `a` and `b` are in C order, and multiples of LANES wide.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply(context: Any, a: Any, m: Any, b: Any, row: Any, every: Any, out: Any, at: Any) -> Any:
        signature = types.void(a, types.int64, b, types.int64, types.int64, out, types.int64)
        tile = _FloatTile if a.dtype == types.float32 else _IntegerTile

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            opened = [
                context.make_array(kind)(context, builder, value) if isinstance(kind, types.Array) else value
                for kind, value in zip(signature.args, arguments, strict=True)
            ]
            tile(builder, *opened).emit(queries, rows)
            return context.get_dummy_value()

        return signature, codegen

    return multiply


class _Tile:
    """The code of one tile: a loop along the rows, with a sum for every pair of query and row."""

    lanes = LANES
    sums: Any  # the type of a sum while it grows
    reduce: str  # what adds up its parts

    def __init__(self, builder: Any, a: Any, m: Any, b: Any, row: Any, every: Any, out: Any, at: Any):
        self.builder = builder
        self.width = builder.extract_value(a.shape, 1)
        self.a = builder.gep(a.data, [builder.mul(m, self.width)])
        self.b = builder.gep(b.data, [builder.mul(row, self.width)])
        self.apart = builder.mul(every, self.width)
        self.out = builder.gep(out.data, [at])
        self.stride = builder.sdiv(builder.extract_value(out.strides, 0), _LONG(4))

    def emit(self, queries: int, rows: int) -> None:
        """Write the loop, and after it the sums."""
        builder = self.builder
        before = builder.block
        loop = builder.append_basic_block("tile.loop")
        done = builder.append_basic_block("tile.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        at = builder.phi(_LONG)
        sums = [builder.phi(self.sums) for _ in range(queries * rows)]
        grown = self._step(sums, queries, rows, at)
        following = builder.add(at, _LONG(self.lanes))
        builder.cbranch(builder.icmp_signed("<", following, self.width), loop, done)
        at.add_incoming(_LONG(0), before)
        at.add_incoming(following, loop)
        for total, more in zip(sums, grown, strict=True):
            total.add_incoming(ir.Constant(self.sums, None), before)
            total.add_incoming(more, loop)
        builder.position_at_end(done)
        self._write(rows, grown)

    def _step(self, sums: list[Any], queries: int, rows: int, at: Any) -> list[Any]:
        """Return what the sums are after one step along the rows."""
        b = [self._load_row(number, at) for number in range(rows)]
        a = [self._load_query(number, at) for number in range(queries)]
        pairs = ((one, other) for one in a for other in b)
        return [self._multiply_add(total, *pair) for total, pair in zip(sums, pairs, strict=True)]

    def _load(self, data: Any, apart: Any, number: int, at: Any, element: Any) -> Any:
        builder = self.builder
        place = builder.gep(data, [builder.add(builder.mul(apart, _LONG(number)), at)])
        kind = ir.VectorType(element, self.lanes).as_pointer()
        return builder.load(builder.bitcast(place, kind), align=1)

    def _write(self, rows: int, sums: list[Any]) -> None:
        builder = self.builder
        for number, total in enumerate(sums):
            query, row = divmod(number, rows)
            place = builder.add(builder.mul(self.stride, _LONG(query)), _LONG(row))
            builder.store(self._add_up(total), builder.gep(self.out, [place]))

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)

    def _load_row(self, number: int, at: Any) -> Any:
        raise NotImplementedError

    def _load_query(self, number: int, at: Any) -> Any:
        raise NotImplementedError

    def _multiply_add(self, total: Any, query: Any, row: Any) -> Any:
        raise NotImplementedError

    def _add_up(self, total: Any) -> Any:
        raise NotImplementedError


class _IntegerTile(_Tile):
    """int16 queries, int8 rows."""

    sums = ir.VectorType(_INT, LANES // 2)

    def _load_row(self, number: int, at: Any) -> Any:
        codes = self._load(self.b, self.apart, number, at, _BYTE)
        return self.builder.sext(codes, ir.VectorType(_INT, self.lanes))

    def _load_query(self, number: int, at: Any) -> Any:
        weights = self._load(self.a, self.width, number, at, _SHORT)
        return self.builder.sext(weights, ir.VectorType(_INT, self.lanes))

    def _multiply_add(self, total: Any, query: Any, row: Any) -> Any:
        """Multiply, and add neighbours in pairs."""
        builder = self.builder
        product = builder.mul(query, row)
        halves = (ir.Constant(self.sums, list(range(first, self.lanes, 2))) for first in (0, 1))
        pairs = builder.add(*(builder.shuffle_vector(product, product, half) for half in halves))
        return builder.add(total, pairs)

    def _add_up(self, total: Any) -> Any:
        return self._call(f"llvm.vector.reduce.add.v{self.lanes // 2}i32", _INT, total)


class _FloatTile(_Tile):
    """float32 queries and rows."""

    lanes = LANES // 2
    sums = ir.VectorType(_FLOAT, LANES // 2)

    def _load_row(self, number: int, at: Any) -> Any:
        return self._load(self.b, self.apart, number, at, _FLOAT)

    def _load_query(self, number: int, at: Any) -> Any:
        return self._load(self.a, self.width, number, at, _FLOAT)

    def _multiply_add(self, total: Any, query: Any, row: Any) -> Any:
        return self._call(f"llvm.fmuladd.v{self.lanes}f32", self.sums, query, row, total)

    def _add_up(self, total: Any) -> Any:
        """Add halves until one number is left."""
        builder = self.builder
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            low, high = (
                builder.shuffle_vector(
                    total, total, ir.Constant(ir.VectorType(_INT, lanes), list(range(at, at + lanes)))
                )
                for at in (0, lanes)
            )
            total = builder.fadd(low, high)
        return builder.extract_element(total, _INT(0))


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


def multiply_matrix(a: Floats, b: Floats) -> Floats:
    """Return a · bᵀ for rows [n, d] and [m, d] in C order; a row's numbers do not depend on the other rows."""
    width = padded(a.shape[1])
    out = np.empty((-(-len(a) // 4) * 4, -(-len(b) // ROWS) * ROWS), np.float32)
    _matrix_kernel(widen(a, width), widen(b, width), out)
    return out[: len(a), : len(b)]


def padded(width: int) -> int:
    """Return how wide rows must be for `multiply`, at least."""
    return -(-width // LANES) * LANES


def widen(rows: Floats, width: int) -> Floats:
    """Return rows that are filled up with zeros to a width."""
    if rows.shape[1] == width:
        return rows
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
