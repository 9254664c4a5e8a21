"""Writes LLVM code on vectors of float32 for `simd`: loops over rows and pieces, loads, transposes, sums over lanes."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config
from numba.core import cgutils

if TYPE_CHECKING:
    from llvmlite.ir import Value

NARROW = 16
"""What the columns of a block are a multiple of: blocks are no wider than their rows need."""


def _registers() -> tuple[int, int]:
    # NUMBA_CPU_FEATURES, if set, names the processor that Numba compiles for.
    asked = config.CPU_FEATURES
    features = llvm.get_host_cpu_features().flatten() if asked is None else asked
    if "+avx512f" in features:
        return 16, 32
    if "+avx2" in features:
        return 8, 16
    return 4, 16 if platform.machine() in ("x86_64", "AMD64") else 32


WIDTH, REGISTERS = _registers()
"""float32 elements of a vector register, and how many registers there are."""

FLOAT, INDEX = ir.FloatType(), ir.IntType(64)
ZERO = INDEX(0)
VECTOR = ir.VectorType(FLOAT, WIDTH)


class Writer:
    """Writes the instructions that the products share, through an IRBuilder."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder
        self.zero = ir.Constant(VECTOR, [0.0] * WIDTH)

    def call(self, write: Callable[..., None], *given: Value) -> None:
        """Call the function that `write` writes. Each kernel has it once: inlined, every call would be compiled."""
        module, name = self.builder.module, f"warprun{write.__name__}"
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(ir.VoidType(), [value.type for value in given]), name)
            function.linkage = "linkonce_odr"
            function.attributes.add("noinline")
            function.attributes.add("optsize")  # unrolled loops would take longer to compile, and not less to run
            body = ir.IRBuilder(function.append_basic_block())
            write(Writer(body), *function.args)
            body.ret_void()
        self.builder.call(function, given)

    def blocks(self, end: Value, heights: tuple[int, ...], begin: Value = ZERO) -> Iterator[tuple[Value, int]]:
        """Yield (first row, height) inside a loop over blocks of rows for each of `heights` in turn; each takes the rows that are left."""
        b, last = self.builder, end
        for height in heights:
            end = b.add(begin, b.mul(b.udiv(b.sub(last, begin), INDEX(height)), INDEX(height)))
            with cgutils.for_range_slice(b, begin, end, INDEX(height), intp=INDEX) as (index, _):
                yield index, height
            begin = end

    def pieces(self, begin: Value, end: Value, size: int) -> Iterator[tuple[Value, Value]]:
        """Yield (first item, number of items) inside a loop over pieces of `size` items, of which the last one may be smaller."""
        with cgutils.for_range_slice(self.builder, begin, end, INDEX(size), intp=INDEX) as (first, _):
            yield first, self.smaller(self.builder.sub(end, first), size)

    def smaller(self, count: Value, limit: int) -> Value:
        """Return the smaller one of two numbers."""
        return self.builder.select(self.builder.icmp_unsigned("<", count, INDEX(limit)), count, INDEX(limit))

    def vectors(self, columns: Value) -> Iterator[Value]:
        """Yield the first column of each vector inside a loop that advances NARROW columns at a time."""
        with cgutils.for_range_slice(self.builder, ZERO, columns, INDEX(NARROW), intp=INDEX) as (column, _):
            for v in range(0, NARROW, WIDTH):
                yield self.add(column, v)

    def transpose(self, x: Value, x_stride: Value, y: Value, y_stride: Value, rows: Value, columns: Value) -> None:
        """Write the first rows and columns of x, whole vectors of both, to the columns and rows of y."""
        b, half = self.builder, WIDTH // 2
        # Rows and columns change places bit by bit of their numbers: each time rows that are half a square apart are interleaved.
        halves = [lanes_of(lane + row for lane in range(begin, begin + half) for row in (0, WIDTH)) for begin in (0, half)]
        for row, _ in self.blocks(rows, (WIDTH,)):
            for column, _ in self.blocks(columns, (WIDTH,)):
                square = [self.load(x, self.at(column, r, x_stride, b.mul(row, x_stride))) for r in range(WIDTH)]
                for _ in range(WIDTH.bit_length() - 1):
                    pairs = zip(square[:half], square[half:], strict=True)
                    square = [b.shuffle_vector(upper, lower, lanes) for upper, lower in pairs for lanes in halves]
                for c, vector in enumerate(square):
                    self.store(vector, y, self.at(row, c, y_stride, b.mul(column, y_stride)))

    def splat(self, number: Value) -> Value:
        """Return a vector with `number` in every lane."""
        b, undefined = self.builder, ir.Constant(VECTOR, ir.Undefined)
        one = b.insert_element(undefined, number, ir.IntType(32)(0))
        return b.shuffle_vector(one, undefined, lanes_of([0] * WIDTH))

    def accumulate(self, variable: Value, a: Value, x: Value) -> None:
        """Add a x to a variable of vector type by a fused multiply-add."""
        b = self.builder
        fma = cgutils.get_or_insert_function(b.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fma.v{WIDTH}f32")
        b.store(b.call(fma, [a, x, b.load(variable)]), variable)

    def sums(self, vectors: list[Value]) -> list[Value]:
        """Return the sum over the lanes of each vector, packed: the sum of vector n is lane n % WIDTH of packed vector n // WIDTH."""
        # Pairwise sums of neighbouring lanes, two vectors at a time, until each vector is reduced to one lane.
        even, odd = (lanes_of(range(first, 2 * WIDTH, 2)) for first in (0, 1))
        b, lanes = self.builder, WIDTH
        while lanes > 1:
            pairs = zip(vectors[::2], vectors[1::2] + vectors[-1:], strict=False)
            vectors = [b.fadd(b.shuffle_vector(x, y, even), b.shuffle_vector(x, y, odd)) for x, y in pairs]
            lanes //= 2
        return vectors

    def add_to(self, place: Value, packed: list[Value], first: int, count: int) -> None:
        """Add `count` numbers, from number `first` of a result of `sums` on, to the floats at `place`."""
        b, vector = self.builder, packed[first // WIDTH]
        some = b.shuffle_vector(vector, vector, lanes_of(range(first % WIDTH, first % WIDTH + count)))
        pointer = b.bitcast(place, ir.PointerType(ir.VectorType(FLOAT, count)))
        before = b.load(pointer)
        before.align = 4
        b.store(b.fadd(before, some), pointer).align = 4

    def variable(self, value: Value) -> Value:
        """Return the address of a new variable with the initial value `value`; LLVM keeps it in a register."""
        made = cgutils.alloca_once(self.builder, VECTOR)
        self.builder.store(value, made)
        return made

    def memory(self, count: int) -> Value:
        """Return the address of `count` floats that last as long as the call; whole cache lines."""
        made = cgutils.alloca_once(self.builder, FLOAT, INDEX(count))
        made.align = 64
        return made

    def number(self, pointer: Value, index: Value) -> Value:
        """Load the float at `index`."""
        return self.builder.load(self.builder.gep(pointer, [index]))

    def load(self, pointer: Value, index: Value) -> Value:
        """Load the vector that begins at `index`."""
        loaded = self.builder.load(self._vector(pointer, index))
        loaded.align = 4  # NumPy does not align arrays to vectors
        return loaded

    def store(self, vector: Value, pointer: Value, index: Value) -> None:
        """Store a vector from `index` on."""
        self.builder.store(vector, self._vector(pointer, index)).align = 4

    def fetch(self, pointer: Value, index: Value) -> None:
        """Have the cache line with the float at `index` brought into the second-level cache."""
        b = self.builder
        byte, number = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        prefetch = cgutils.get_or_insert_function(b.module, ir.FunctionType(ir.VoidType(), [byte, *[number] * 3]), "llvm.prefetch.p0i8")
        b.call(prefetch, [b.bitcast(b.gep(pointer, [index]), byte), number(0), number(2), number(1)])

    def at(self, begin: Value, row: int, columns: Value, column: Value) -> Value:
        """Return the flat index begin + row * columns + column."""
        return self.builder.add(self.builder.add(begin, self.builder.mul(INDEX(row), columns)), column)

    def add(self, index: Value, n: int) -> Value:
        """Return index + n."""
        return self.builder.add(index, INDEX(n)) if n else index

    def _vector(self, pointer: Value, index: Value) -> Value:
        return self.builder.bitcast(self.builder.gep(pointer, [index]), ir.PointerType(VECTOR))


def lanes_of(indices: Iterable[int]) -> ir.Constant:
    """Return the numbers of lanes as a constant, for `shuffle_vector`."""
    numbers = list(indices)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(numbers)), numbers)
