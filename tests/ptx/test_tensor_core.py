"""The machine multiplies matrices as tensor cores do, and sees what is wrong in kernels that do it in a wrong way."""

import inspect
import re
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from llvmlite import ir
from numba import cuda, float32, types
from numba.core import cgutils
from numba.core.extending import intrinsic

from tests.ptx import tensor_core
from tests.ptx.build import NEEDED, digest
from tests.ptx.machine import Array, Kind, Order
from tests.ptx.mistakes import Mistake
from tests.ptx.rolling import clear, machine
from tests.ptx.tensor_core import COLUMNS, DEPTH, ROWS, from_bf16, multiply, pack, to_bf16

pytestmark = NEEDED

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
REAL, WORD = ir.FloatType(), ir.IntType(32)


def assembly(builder: Any, text: str, result: Any, kinds: str, values: Any, *attributes: str) -> Any:
    code = ir.InlineAsm(ir.FunctionType(result, [value.type for value in values]), text, kinds)
    return builder.call(code, values, attrs=attributes)


@intrinsic
def mma(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    """Return D = A B + C: the registers of a lane, tuples of 4 and 2 uint32 and of 4 float32."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        values = [builder.extract_value(each, n) for each, count in zip(args, (4, 2, 4), strict=True) for n in range(count)]
        # Convergent: LLVM must not move it into a branch that some threads do not take.
        attributes = ("convergent", "nounwind", "readnone")
        found = assembly(builder, MMA, ir.LiteralStructType([REAL] * 4), "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", values, *attributes)
        return cgutils.pack_array(builder, [builder.extract_value(found, n) for n in range(4)])

    return types.UniTuple(types.float32, 4)(a, b, c), code


@intrinsic
def split(typingctx, x, y):  # type: ignore[no-untyped-def]
    """Return two float32 as two words of bf16: what they are rounded to, and the rest; x in the low halves."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        def pair(x, y):  # type: ignore[no-untyped-def]
            return assembly(builder, "cvt.rn.bf16x2.f32 $0, $1, $2;", WORD, "=r,f,f", [y, x])

        word = pair(*args)
        halves = builder.shl(word, WORD(16)), builder.and_(word, WORD(0xFFFF0000))
        rest = [builder.fsub(given, builder.bitcast(half, REAL)) for given, half in zip(args, halves, strict=True)]
        return cgutils.pack_array(builder, [word, pair(*rest)])

    return types.UniTuple(types.uint32, 2)(x, y), code


def product(a, b, d, every):  # type: ignore[no-untyped-def]
    """D = A B for 16 rows of float32 and 8 columns, a warp; to float32 sums are added after every so many steps of 16."""
    lane = cuda.threadIdx.x
    g, t = lane >> 2, lane & 3
    zero = (float32(0.0), float32(0.0), float32(0.0), float32(0.0))
    part, total = zero, zero
    for k in range(2 * t, a.shape[1], 16):
        a0, x0 = split(a[g, k], a[g, k + 1])
        a1, x1 = split(a[g + 8, k], a[g + 8, k + 1])
        a2, x2 = split(a[g, k + 8], a[g, k + 9])
        a3, x3 = split(a[g + 8, k + 8], a[g + 8, k + 9])
        b0, y0 = split(b[k, g], b[k + 1, g])
        b1, y1 = split(b[k + 8, g], b[k + 9, g])
        part = mma((x0, x1, x2, x3), (b0, b1), part)
        part = mma((a0, a1, a2, a3), (y0, y1), part)
        part = mma((a0, a1, a2, a3), (b0, b1), part)
        if k // 16 % every == every - 1:
            total = (total[0] + part[0], total[1] + part[1], total[2] + part[2], total[3] + part[3])
            part = zero
    for n in range(4):
        d[g + 8 * (n // 2), 2 * t + n % 2] = total[n] + part[n]


def array(x: np.ndarray) -> Array:
    return Array(torch.from_numpy(np.ascontiguousarray(x)))


def matrices(depth: int, positive: bool = False) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    a, b = (np.float32(random.normal(size=shape)) for shape in ((ROWS, depth), (depth, COLUMNS)))
    return (np.abs(a), np.abs(b)) if positive else (a, b)


def launched(kernel: Any, threads: int, *arguments: Any, order: Order = Order.FORWARD, blocks: int = 1) -> set[Kind]:
    """Launch a kernel, compiled or not; return what the machine sees."""
    clear(machine())
    machine().order = order
    machine().launch(kernel if hasattr(kernel, "py_func") else cuda.jit(kernel), (blocks, threads), arguments)
    return set(machine().kinds())


def changed(mistake: Mistake) -> Any:
    """Return `product` with a mistake in it, compiled apart."""
    source, names = mistake.in_source(inspect.getsource(product)), dict(product.__globals__)
    exec(source, names)
    assert mistake.made == 1
    kernel: FunctionType = names["product"]
    kernel.__module__ = f"warprun_kernels_{digest(source)}"
    return kernel


def off(kernel: Any, a: np.ndarray, b: np.ndarray, every: int, order: Order = Order.FORWARD) -> tuple[np.ndarray, float, set[Kind]]:
    """Return D, how far it is from float64 relative to the sum of |a b|, and what the machine sees."""
    d = torch.zeros(ROWS, COLUMNS)
    seen = launched(kernel, 32, array(a), array(b), Array(d), every, order=order)
    error = np.abs(d.numpy() - a.astype(float) @ b) / (np.abs(a.astype(float)) @ np.abs(b))
    return d.numpy(), error.max(), seen


def in_numpy(a: np.ndarray, b: np.ndarray, every: int) -> np.ndarray:
    """Return what `product` computes, by `multiply`."""
    high = [from_bf16(to_bf16(x)) for x in (a, b)]
    low = [from_bf16(to_bf16(x - y)) for x, y in zip((a, b), high, strict=True)]
    part, total = np.zeros((2, ROWS, COLUMNS), np.float32)
    for step in range(a.shape[1] // DEPTH):
        here = slice(step * DEPTH, (step + 1) * DEPTH)
        for left, right in ((low[0], high[1]), (high[0], low[1]), (high[0], high[1])):
            part = multiply(left[:, here], right[here], part)
        if step % every == every - 1:
            total, part = total + part, np.zeros_like(part)
    return total + part


# Places and sums ------------------------------------------------------------------------------------------------------


def test_lanes_have_the_places_of_the_manual_and_every_place_once() -> None:
    for (row, column), shape in ((tensor_core.A, (ROWS, DEPTH)), (tensor_core.B, (DEPTH, COLUMNS)), (tensor_core.C, (ROWS, COLUMNS))):
        assert sorted(zip(row.ravel(), column.ravel(), strict=True)) == list(np.ndindex(shape))
    five = [list(zip(row[5], column[5], strict=True)) for row, column in (tensor_core.A, tensor_core.B, tensor_core.C)]
    assert five[0] == [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)]
    assert five[1:] == [[(2, 1), (3, 1), (10, 1), (11, 1)], [(1, 2), (1, 3), (9, 2), (9, 3)]]


def one_product(a, b, c, d):  # type: ignore[no-untyped-def]
    n = cuda.grid(1)
    found = mma((a[n, 0], a[n, 1], a[n, 2], a[n, 3]), (b[n, 0], b[n, 1]), (c[n, 0], c[n, 1], c[n, 2], c[n, 3]))
    for m in range(4):
        d[n, m] = found[m]


def by_machine(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return A B + C by the machine, for several matrices at once, two to a block."""
    given = pack(a, tensor_core.A), pack(b, tensor_core.B), np.float32(c)[:, tensor_core.C[0], tensor_core.C[1]]
    d, found = torch.zeros(len(a) * 32, 4), np.empty(c.shape, np.float32)
    words = [array(x.reshape(len(a) * 32, -1)) for x in given]
    assert launched(one_product, 64, *words, Array(d), blocks=len(a) // 2) == set()
    found[:, tensor_core.C[0], tensor_core.C[1]] = d.numpy().reshape(-1, 32, 4)
    return found


@pytest.mark.parametrize(
    ("c", "products", "expected"),
    [
        (1.0, [2.0**-23], 1 + 2.0**-23),
        (1.0, [2.0**-24, 2.0**-25], 1.0),  # the sum is cut, not rounded
        (1.0, [-(2.0**-24)], 1 - 2.0**-24),
        (-1.0, [2.0**-25, -(2.0**-24)], -1.0),
        (1.0, [2.0**-25] * 16, 1 + 2.0**-21),  # no order of additions in float32 gives this
        (1.0, [2.0**-26] * 16, 1.0),  # beyond 25 bits behind the largest exponent
        (2.0**30, [-(2.0**30), 2.0**5, 2.0**4], 2.0**5),  # what is cut does not come back
        (0.0, [2.0**-130], 2.0**-130),
        (0.0, [1.5 * 2.0**120, 1.5 * 2.0**127], 1.5 * 2.0**127 + 1.5 * 2.0**120),
        (0.0, [2.0**127, 2.0**127], np.inf),
        (-np.inf, [1.0], -np.inf),
        (1.0, [np.inf], np.inf),
        (np.inf, [-np.inf], np.nan),
        (np.nan, [1.0], np.nan),
    ],
)
def test_sums_are_cut(c: float, products: list[float], expected: float) -> None:
    a, b = np.zeros((2, ROWS, DEPTH), np.float32), np.ones((2, DEPTH, COLUMNS), np.float32)
    a[..., : len(products)] = products
    given = a, b, np.full((2, ROWS, COLUMNS), c, np.float32)
    for found in (by_machine(*given), multiply(*given)):
        np.testing.assert_array_equal(found, np.full_like(given[2], expected))


def test_zero_is_as_large_as_its_exponent_says() -> None:
    a, b, c = np.zeros((2, ROWS, DEPTH), np.float32), np.ones((2, DEPTH, COLUMNS), np.float32), np.zeros((2, ROWS, COLUMNS), np.float32)
    b[:, 0], a[:, :, 1], a[1, :, 2] = 2.0**100, 2.0**-52, 2.0**-51  # the exponent of 0 x 2^100 is -126 + 100
    for found in (by_machine(a, b, c), multiply(a, b, c)):
        np.testing.assert_array_equal(found, np.broadcast_to([[[0.0]], [[2.0**-51]]], c.shape))


def test_the_machine_has_the_bits_of_numpy_for_numbers_of_all_sizes() -> None:
    random = np.random.default_rng(1)
    words = random.integers(0, 1 << 32, (20, ROWS, 2 * DEPTH), np.uint32)
    a = from_bf16(words[..., :DEPTH] >> np.uint32(16))
    b = from_bf16(words[:, :, DEPTH:].swapaxes(1, 2)[..., :COLUMNS] >> np.uint32(16))
    c = random.integers(0, 1 << 32, (20, ROWS, COLUMNS), np.uint32).view(np.float32)
    a[10:], b[10:] = np.float32(random.normal(size=a[10:].shape)), np.float32(random.normal(size=b[10:].shape))
    a, b, c[10:] = from_bf16(to_bf16(a)), from_bf16(to_bf16(b)), random.normal(size=c[10:].shape)
    c[15:] *= 1e-3
    found = by_machine(a, b, c)
    np.testing.assert_array_equal(found.view(np.uint32), multiply(a, b, c).view(np.uint32))
    exact = a[10:].astype(float) @ b[10:] + c[10:]
    largest = (np.abs(a[10:, :, :, None] * b[10:, None])).max(2)
    assert (np.abs(found[10:] - exact) <= np.abs(exact) * 2.0**-23 + 17 * 2.0**-25 * np.maximum(largest, np.abs(c[10:]))).all()


# A product of float32, and mistakes in it --------------------------------------------------------------------------------


def test_a_product_in_two_parts_of_bf16_is_right_in_every_order() -> None:
    a, b = matrices(64)
    for order in Order:
        d, error, seen = off(product, a, b, 2, order)
        assert seen == set()
        assert error < 5e-6
        np.testing.assert_array_equal(d, in_numpy(a, b, 2))
    (issued,) = machine().seen["product"].issued
    assert (issued.issued_mma, issued.issued_mufu) == (12, 0)


@pytest.mark.parametrize(
    ("mistake", "by"),
    [
        (Mistake("registers of A exchanged", "(a0, a1, a2, a3), (b0", "(a0, a2, a1, a3), (b0"), "numbers"),
        (Mistake("lanes exchanged", "g, t = lane >> 2, lane & 3", "t, g = lane >> 3, lane & 7"), "numbers"),
        (Mistake("no rest of A", "part = mma((x0, x1, x2, x3), (b0, b1), part)", "pass"), "numbers"),
        (Mistake("no rest of B", "part = mma((a0, a1, a2, a3), (y0, y1), part)", "pass"), "numbers"),
        (Mistake("half of a warp", "        part = mma((x0", "        if lane < 16:\n            part = mma((x0"), Kind.INCOMPLETE_WARP),
        (Mistake("a loop that some leave early", "a.shape[1], 16)", "a.shape[1] - 2 * lane, 16)"), Kind.INCOMPLETE_WARP),
    ],
    ids=lambda each: each.name if isinstance(each, Mistake) else "",
)
def test_a_mistake_is_found(mistake: Mistake, by: Kind | str) -> None:
    kernel = changed(mistake)
    for order in Order:
        _, error, seen = off(kernel, *matrices(64), 2, order)
        assert error > 5e-5
        assert by in (seen or {"numbers"})


def test_a_long_sum_that_stays_in_tensor_cores_is_off() -> None:
    a, b = matrices(16_384, positive=True)
    _, error, _ = off(product, a, b, 16)
    assert error < 5e-6
    _, error, _ = off(product, a, b, 1024)
    assert error > 5e-5


# Warps that are not complete ----------------------------------------------------------------------------------------------


def meet(d, kind):  # type: ignore[no-untyped-def]
    n = cuda.threadIdx.x
    a, zero = (n, n, n, n), float32(0.0)
    c = (zero, zero, zero, zero)
    if kind == 1 and n == 40:
        return
    if kind == 2 and n < 16:
        cuda.syncthreads()
    elif kind == 3 and n < 16:
        c = mma(a, (n, n), (zero, zero, zero, float32(n)))
        c = mma(a, (n, n), c)
    elif kind != 4 or n >= 32:
        c = mma(a, (n, n), c)
        c = mma(a, (n, n), c)
    d[n] = c[0]


@pytest.mark.parametrize(
    ("kind", "threads", "wrong"),
    [
        pytest.param(0, 64, False, id="all"),
        pytest.param(4, 64, False, id="another warp does not"),
        pytest.param(0, 48, True, id="half a warp"),
        pytest.param(1, 64, True, id="a thread has ended"),
        pytest.param(2, 64, True, id="some are at a barrier"),
        pytest.param(3, 64, True, id="some are at another mma"),
    ],
)
def test_an_mma_without_its_whole_warp_is_a_fault(kind: int, threads: int, wrong: bool) -> None:
    for order in Order:
        d = torch.zeros(64)
        assert launched(meet, threads, Array(d), kind, order=order) == ({Kind.INCOMPLETE_WARP} if wrong else set())
        if wrong:
            places = [finding.where for finding in machine().findings()]
            assert all(re.match(r"line \d+ of .*\.ptx, block 0 thread \d+", place) for place in places)
