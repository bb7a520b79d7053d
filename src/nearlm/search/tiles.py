"""Products of queries with rows, a tile of a few of each at a time, in the processor's vector registers.

The loops are given to LLVM as vectors; of a plain loop over arrays it makes slower code. A tile keeps the sums of all
its pairs in registers. There are three kinds, by the type of the queries:

- float32 with float32 rows.
- 16-bit with 8-bit codes: the pattern that LLVM turns into a multiply-add of pairs (`pmaddwd` and its like).
- 8-bit with 4-bit codes, two in a byte (see `packing`): on x86 `vpdpbusd` or `pmaddubsw`, which multiply twice as many
  at once. They take one side without a sign, so that 8 is added to each code; the caller knows what that adds up to.

Sums of integers are exact, and those of floats are always added up in the same order, however many queries there are.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16  # elements of a row that are multiplied at once: rows are as wide as some of these together
PACKED_LANES = 32  # bytes of a row of two codes each that are read at once
NIBBLE_OFFSET = 8  # what is added to a 4-bit code
_CHUNK = 128  # bytes of a row whose products, 15 · 127 at most, may be added up in 16 bits: 8 of pairs
_LOW = 0x0F
_BYTE, _SHORT, _INT, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOAT = ir.FloatType()
_EIGHT_INTS = ir.VectorType(_INT, 8)
_SIXTEEN_SHORTS = ir.VectorType(_SHORT, 16)


def products(queries: int, rows: int) -> Any:
    """Return a numba function that multiplies so many queries with so many rows: together a multiple of four.

    `multiply(a, m, b, row, every, out, at)` writes a[m + q] · b[row + r * every] into out[q, at + r]. The arrays are
    float32 all, or int16, int8 and int32, or int8 (the weights of all low halves of bytes, and then those of the high
    ones), int8 (packed) and int32. `a` and `b` are in C order, and multiples of LANES or PACKED_LANES wide.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply(context: Any, a: Any, m: Any, b: Any, row: Any, every: Any, out: Any, at: Any) -> Any:
        signature = types.void(a, types.int64, b, types.int64, types.int64, out, types.int64)
        tile = {types.float32: _FloatTile, types.int16: _CodeTile, types.int8: _PackedTile}[a.dtype]

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            opened = [
                context.make_array(kind)(context, builder, value) if isinstance(kind, types.Array) else value
                for kind, value in zip(signature.args, arguments, strict=True)
            ]
            tile(builder, _features(context), *opened).emit(queries, rows)
            return context.get_dummy_value()

        return signature, codegen

    return multiply


def _features(context: Any) -> list[str]:
    """Return what the processor can do that code is made for."""
    return context.codegen().magic_tuple()[2].split(",")  # type: ignore[no-any-return]


class _Tile:
    """The code of one tile: a loop along the rows, with a sum for every pair of query and row."""

    sums: Any  # the type of a sum while it grows: eight parts that are added up in the end
    lanes = LANES

    def __init__(
        self, builder: Any, features: list[str], a: Any, m: Any, b: Any, row: Any, every: Any, out: Any, at: Any
    ):
        self.builder = builder
        self.features = features  # of the processor
        self.a_width = builder.extract_value(a.shape, 1)
        self.b_width = builder.extract_value(b.shape, 1)
        self.a = builder.gep(a.data, [builder.mul(m, self.a_width)])
        self.b = builder.gep(b.data, [builder.mul(row, self.b_width)])
        self.apart = builder.mul(every, self.b_width)
        self.out = builder.gep(out.data, [at])
        self.stride = builder.sdiv(builder.extract_value(out.strides, 0), _LONG(4))

    def emit(self, queries: int, rows: int) -> None:
        """Write the loop, and after it the sums."""
        zeros = [ir.Constant(self.sums, None)] * (queries * rows)
        self._write(rows, self._loop(_LONG(0), self.b_width, self.lanes, zeros, self._multiply(queries, rows)))

    def _loop(self, begin: Any, end: Any, step: int, sums: list[Any], body: Any) -> list[Any]:
        """Write a loop from `begin` to `end` in which `body(at, sums)` makes new sums of the old; return the last."""
        builder = self.builder
        before = builder.block
        loop = builder.append_basic_block("tile.loop")
        done = builder.append_basic_block("tile.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        at = builder.phi(_LONG)
        totals = [builder.phi(total.type) for total in sums]
        grown = body(at, totals)
        following = builder.add(at, _LONG(step))
        last = builder.block
        builder.cbranch(builder.icmp_signed("<", following, end), loop, done)
        at.add_incoming(begin, before)
        at.add_incoming(following, last)
        for total, first, more in zip(totals, sums, grown, strict=True):
            total.add_incoming(first, before)
            total.add_incoming(more, last)
        builder.position_at_end(done)
        return list(grown)

    def _multiply(self, queries: int, rows: int) -> Any:
        """Return what makes new sums of the old in one step along the rows."""

        def body(at: Any, sums: list[Any]) -> list[Any]:
            b = [self._load_row(number, at) for number in range(rows)]
            a = [self._load_query(number, at) for number in range(queries)]
            pairs = ((one, other) for one in a for other in b)
            return [self._multiply_add(total, *pair) for total, pair in zip(sums, pairs, strict=True)]

        return body

    def _load(self, data: Any, apart: Any, number: int, at: Any, element: Any) -> Any:
        builder = self.builder
        place = builder.gep(data, [builder.add(builder.mul(apart, _LONG(number)), at)])
        kind = ir.VectorType(element, self.lanes).as_pointer()
        return builder.load(builder.bitcast(place, kind), align=1)

    def _write(self, rows: int, sums: list[Any]) -> None:
        """Add up the parts of the sums, those of four at once, and store those of a query together."""
        builder = self.builder
        for first in range(0, len(sums), 4):
            four = self._add_up(*sums[first : first + 4])
            for number in range(first, first + 4, rows):
                place = builder.gep(self.out, [builder.mul(self.stride, _LONG(number // rows))])
                some = self._pick(four, four, list(range(number - first, number - first + rows)))
                builder.store(some, builder.bitcast(place, some.type.as_pointer()), align=4)

    def _add_up(self, *sums: Any) -> Any:
        """Return the sums of the eight parts of each of four: of neighbours, of these, and of both halves."""
        first, second = (self._add_neighbours(*two) for two in (sums[:2], sums[2:]))
        halves = self._add_neighbours(first, second)
        return self._add(*(self._pick(halves, halves, list(range(at, at + 4))) for at in (0, 4)))

    def _add_neighbours(self, one: Any, other: Any) -> Any:
        """Add neighbours of two vectors of eight, half by half as registers do."""
        even = [0, 2, 8, 10, 4, 6, 12, 14]
        return self._add(*(self._pick(one, other, [at + odd for at in even]) for odd in (0, 1)))

    def _pick(self, one: Any, other: Any, lanes: list[int]) -> Any:
        return self.builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_INT, len(lanes)), lanes))

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)

    def _add(self, one: Any, other: Any) -> Any:
        return self.builder.add(one, other)

    def _load_row(self, number: int, at: Any) -> Any:
        raise NotImplementedError

    def _load_query(self, number: int, at: Any) -> Any:
        raise NotImplementedError

    def _multiply_add(self, total: Any, query: Any, row: Any) -> Any:
        raise NotImplementedError


class _FloatTile(_Tile):
    """float32 queries and rows."""

    sums = ir.VectorType(_FLOAT, 8)
    lanes = 8

    def _load_row(self, number: int, at: Any) -> Any:
        return self._load(self.b, self.apart, number, at, _FLOAT)

    def _load_query(self, number: int, at: Any) -> Any:
        return self._load(self.a, self.a_width, number, at, _FLOAT)

    def _multiply_add(self, total: Any, query: Any, row: Any) -> Any:
        return self._call("llvm.fmuladd.v8f32", self.sums, query, row, total)

    def _add(self, one: Any, other: Any) -> Any:
        return self.builder.fadd(one, other)


class _CodeTile(_Tile):
    """16-bit queries, 8-bit codes."""

    sums = _EIGHT_INTS

    def _load_row(self, number: int, at: Any) -> Any:
        codes = self._load(self.b, self.apart, number, at, _BYTE)
        return self.builder.sext(codes, ir.VectorType(_INT, self.lanes))

    def _load_query(self, number: int, at: Any) -> Any:
        weights = self._load(self.a, self.a_width, number, at, _SHORT)
        return self.builder.sext(weights, ir.VectorType(_INT, self.lanes))

    def _multiply_add(self, total: Any, query: Any, row: Any) -> Any:
        """Multiply, and add neighbours in pairs."""
        product = self.builder.mul(query, row)
        pairs = (self._pick(product, product, list(range(first, self.lanes, 2))) for first in (0, 1))
        return self._add(total, self._add(*pairs))


class _PackedTile(_Tile):
    """8-bit queries, 4-bit codes."""

    sums = _EIGHT_INTS
    lanes = PACKED_LANES

    def emit(self, queries: int, rows: int) -> None:
        """Write a loop over chunks of rows whose sums fit in 16 bits, unless they grow in 32."""
        if self._sums_bytes:
            super().emit(queries, rows)
            return
        builder = self.builder
        few = [ir.Constant(_SIXTEEN_SHORTS, None)] * (queries * rows)

        def chunk(at: Any, sums: list[Any]) -> list[Any]:
            end = builder.add(at, _LONG(_CHUNK))
            end = builder.select(builder.icmp_signed("<", end, self.b_width), end, self.b_width)
            grown = self._loop(at, end, self.lanes, few, self._multiply(queries, rows))
            return [self._add(total, self._widen(some)) for total, some in zip(sums, grown, strict=True)]

        zeros = [ir.Constant(_EIGHT_INTS, None)] * (queries * rows)
        self._write(rows, self._loop(_LONG(0), self.b_width, _CHUNK, zeros, chunk))

    @property
    def _sums_bytes(self) -> bool:
        """Whether the processor multiplies bytes and adds up four products at once."""
        return "+avxvnni" in self.features or {"+avx512vnni", "+avx512vl"} <= set(self.features)

    def _load_row(self, number: int, at: Any) -> Any:
        """Return the codes in the low halves of bytes, and those in the high ones."""
        builder = self.builder
        kind = ir.VectorType(_BYTE, self.lanes)
        every = {bits: ir.Constant(kind, [bits] * self.lanes) for bits in (4, _LOW, NIBBLE_OFFSET * 0x11)}
        codes = self._load(self.b, self.apart, number, at, _BYTE)
        codes = builder.xor(codes, every[NIBBLE_OFFSET * 0x11])
        return builder.and_(codes, every[_LOW]), builder.lshr(codes, every[4])

    def _load_query(self, number: int, at: Any) -> Any:
        places = (at, self.builder.add(self.b_width, at))
        return tuple(self._load(self.a, self.a_width, number, place, _BYTE) for place in places)

    def _multiply_add(self, total: Any, query: Any, row: Any) -> Any:
        for weights, codes in zip(query, row, strict=True):
            if self._sums_bytes:
                fours = (self.builder.bitcast(one, _EIGHT_INTS) for one in (codes, weights))
                total = self._call("llvm.x86.avx512.vpdpbusd.256", _EIGHT_INTS, total, *fours)
            else:
                total = self._add(total, self._pairs(codes, weights))
        return total

    def _pairs(self, codes: Any, weights: Any) -> Any:
        """Multiply codes without a sign by weights with one, and add neighbours in pairs."""
        if "+avx2" in self.features:
            return self._call("llvm.x86.avx2.pmadd.ub.sw", _SIXTEEN_SHORTS, codes, weights)
        wide = ir.VectorType(_SHORT, self.lanes)
        product = self.builder.mul(self.builder.zext(codes, wide), self.builder.sext(weights, wide))
        return self._add(*(self._pick(product, product, list(range(first, self.lanes, 2))) for first in (0, 1)))

    def _widen(self, some: Any) -> Any:
        """Add neighbours in pairs, to 32 bits."""
        wide = self.builder.sext(some, ir.VectorType(_INT, 16))
        return self._add(*(self._pick(wide, wide, list(range(first, 16, 2))) for first in (0, 1)))
