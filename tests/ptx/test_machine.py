"""The machine sees what is wrong in kernels that are wrong in every way it watches for, and nothing in right ones."""

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from numba import cuda, float32, int32

from tests.ptx.build import NEEDED
from tests.ptx.instructions import Unknown
from tests.ptx.machine import SHADOW, Array, Fault, Kind, Order, Region
from tests.ptx.mistakes import Mistake
from tests.ptx.project import poison
from tests.ptx.rolling import clear, machine
from tests.ptx.translate import Module

pytestmark = NEEDED

BLOCKS, THREADS = 2, 64
N = BLOCKS * THREADS


def launched(kernel: Any, *arguments: Any, shared: int = 0, mistake: Mistake | None = None) -> list[set[Kind]]:
    found, dispatcher = [], cuda.jit(kernel)
    for order in Order:
        clear(machine())
        machine().order, machine().mistake = order, mistake
        machine().launch(dispatcher, (BLOCKS, THREADS, 0, shared), arguments)
        found.append(set(machine().kinds()))
    machine().mistake = None
    return found


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Array:
    return Array(torch.zeros(shape, dtype=dtype))


def unwritten(*shape: int) -> Array:
    made = zeros(*shape)
    poison([made.tensor])
    return made


def reverse(out, guard):  # type: ignore[no-untyped-def]
    shared = cuda.shared.array(0, float32)
    n = cuda.threadIdx.x
    shared[n] = float32(cuda.grid(1))
    if guard:
        cuda.syncthreads()
    out[cuda.grid(1)] = shared[cuda.blockDim.x - 1 - n]


def test_a_right_kernel_gives_the_right_numbers_and_no_finding() -> None:
    out = unwritten(N)
    assert launched(reverse, out, True, shared=4 * THREADS) == [set()] * 3
    np.testing.assert_array_equal(out.tensor.numpy(), np.r_[63:-1:-1, 127:63:-1])


def test_what_is_wrong_with_shared_memory() -> None:
    raced = launched(reverse, zeros(N), False, shared=4 * THREADS)
    assert all({Kind.READ_OF_ANOTHERS_WRITE, Kind.WRITE_OF_WHAT_ANOTHER_READS} & kinds for kinds in raced)
    assert Kind.UNWRITTEN_SHARED in raced[0]
    assert all(Kind.OUT_OF_BOUNDS in kinds for kinds in launched(reverse, zeros(N), True, shared=2 * THREADS))


def test_a_race_in_global_memory() -> None:
    def kernel(out):  # type: ignore[no-untyped-def]
        n = cuda.threadIdx.x
        out[cuda.blockIdx.x, n] += out[cuda.blockIdx.x, n ^ 1]

    raced = {Kind.READ_OF_ANOTHERS_WRITE, Kind.WRITE_OF_WHAT_ANOTHER_READS}
    assert all(kinds and kinds <= raced for kinds in launched(kernel, zeros(BLOCKS, THREADS)))


def test_blocks_that_share_a_place() -> None:
    def kernel(out, first, count):  # type: ignore[no-untyped-def]
        at = cuda.threadIdx.x + cuda.blockIdx.x * count
        out[at] = first[at] + float32(1.0)

    assert launched(kernel, zeros(N), zeros(N), THREADS) == [set()] * 3
    assert launched(kernel, zeros(N), zeros(N), THREADS - 1) == [{Kind.SAME_VALUE_TWICE}] * 3
    counted = torch.arange(N, dtype=torch.float32)
    assert launched(kernel, Array(counted), Array(counted), THREADS - 1) == [{Kind.SHARED_BY_BLOCKS}] * 3


def test_threads_that_write_one_place() -> None:
    def kernel(out, differ):  # type: ignore[no-untyped-def]
        out[cuda.blockIdx.x] = cuda.threadIdx.x if differ else 1

    ones = Array(torch.ones(BLOCKS, dtype=torch.int32))
    assert launched(kernel, ones, False) == [{Kind.SAME_VALUE_TWICE}] * 3
    assert all(Kind.TWO_VALUES in kinds for kinds in launched(kernel, zeros(BLOCKS, dtype=torch.int32), True))


def test_bytes_of_one_word_are_places_of_their_own() -> None:
    def kernel(out):  # type: ignore[no-untyped-def]
        out[cuda.grid(1)] = True

    out = zeros(N, dtype=torch.bool)
    assert launched(kernel, out) == [set()] * 3
    assert out.tensor.all()


def test_an_index_out_of_bounds_and_memory_that_nobody_wrote() -> None:
    def kernel(given, out, beyond):  # type: ignore[no-untyped-def]
        out[cuda.grid(1) + beyond] = given[cuda.grid(1)]

    assert launched(kernel, zeros(N), zeros(N), 0) == [set()] * 3
    assert launched(kernel, zeros(N), zeros(N), 1) == [{Kind.OUT_OF_BOUNDS}] * 3
    assert launched(kernel, unwritten(N), zeros(N), 0) == [{Kind.NEVER_WRITTEN}] * 3


def test_a_barrier_that_some_threads_skip_or_that_is_another_one() -> None:
    def kernel(out, returns):  # type: ignore[no-untyped-def]
        if cuda.threadIdx.x >= 40:
            if returns:
                return
            cuda.syncthreads()
            out[cuda.grid(1)] = float32(2.0)
        else:
            out[cuda.grid(1)] = float32(1.0)
            cuda.syncthreads()

    assert launched(kernel, zeros(N), True) == [{Kind.BARRIER_SKIPPED}] * 3
    assert launched(kernel, zeros(N), False) == [{Kind.DIFFERENT_BARRIERS, Kind.SPLIT_WARP}] * 3


def test_barriers_that_count() -> None:
    def kernel(given, out):  # type: ignore[no-untyped-def]
        mine = given[cuda.grid(1)]
        out[0, cuda.grid(1)] = cuda.syncthreads_or(mine)
        out[1, cuda.grid(1)] = cuda.syncthreads_and(mine)
        out[2, cuda.grid(1)] = cuda.syncthreads_count(mine)

    given, out = torch.zeros(N, dtype=torch.int32), zeros(3, N, dtype=torch.int32)
    given[3] = given[7] = 1
    given[THREADS:] = 5
    assert launched(kernel, Array(given), out) == [set()] * 3
    expected = np.repeat([[1, 1], [0, 1], [2, THREADS]], THREADS, 1)
    np.testing.assert_array_equal(out.tensor.numpy() != 0, expected != 0)
    np.testing.assert_array_equal(out.tensor.numpy()[2], expected[2])


def test_integers_as_python_has_them() -> None:
    def kernel(a, b, out):  # type: ignore[no-untyped-def]
        n = cuda.grid(1)
        out[0, n], out[1, n], out[2, n], out[3, n] = a[n] // b[n], a[n] % b[n], a[n] * b[n], (a[n] >> 3) ^ (b[n] << 5)

    random = np.random.default_rng(0)
    x, y = random.integers(-1000, 1000, N), random.integers(1, 1000, N) * random.choice([-1, 1], N)
    out = zeros(4, N, dtype=torch.int64)
    assert launched(kernel, Array(torch.from_numpy(x)), Array(torch.from_numpy(y)), out) == [set()] * 3
    np.testing.assert_array_equal(out.tensor.numpy(), [x // y, x % y, x * y, (x >> 3) ^ (y << 5)])


def test_floats_as_float32_has_them_and_approximate_ones_that_are_off() -> None:
    def kernel(a, b, out):  # type: ignore[no-untyped-def]
        n = cuda.grid(1)
        out[0, n], out[1, n], out[2, n], out[3, n] = a[n] / b[n], max(a[n], b[n]), a[n] - b[n], float32(int32(a[n]))

    random = np.random.default_rng(0)
    x, y = (random.normal(scale=100, size=N).astype(np.float32) for _ in range(2))
    given, out = (Array(torch.from_numpy(x)), Array(torch.from_numpy(y))), zeros(4, N)
    assert launched(kernel, *given, out) == [set()] * 3
    np.testing.assert_array_equal(out.tensor.numpy(), [x / y, np.maximum(x, y), x - y, np.trunc(x)])
    approximate = Mistake("division by less than all digits", "div.rn.f32", "div.full.f32", kernel="kernel")
    clear(machine())
    machine().ulps, machine().mistake = 2, approximate
    machine().launch(cuda.jit(kernel), (BLOCKS, THREADS), (*given, out))
    machine().mistake = None
    off = np.abs(out.tensor.numpy()[0].view(np.int32) - (x / y).view(np.int32))
    assert (off.min(), off.max()) == (0, 2)


NAMES = """
.visible .entry kernel(.param .u64 kernel_param_0)
{
.reg .pred %p<2>; .reg .b32 %r<3>;
setp.eq.u32 %p1, 1, 1;
{
.reg .pred %p1;
setp.ne.u32 %p1, 1, 1;
}
@%p1 bra OUT;
OUT:
ret;
}
"""


def test_names_within_braces_hide_those_outside() -> None:
    source = Module(NAMES).source
    assert source.count("uint8_t r_p1 = 0;") == 2
    assert source.index("}") < source.index("if (r_p1) goto L_OUT;")


@pytest.mark.parametrize(
    "line",
    [
        "atom.global.add.u32 %r1, [%r2], 1;",
        "cvt.rz.f32.s32 %r1, %r2;",
        "bar.sync 1, 32;",
        "ld.local.u32 %r1, [%r2];",
        "ld.shared.v2.u32 {%r1, %r2}, [%r1+8];",
        "min.NaN.f64 %r1, %r2, %r2;",
        "cvt.rz.bf16x2.f32 %r1, %r2, %r2;",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1}, {%r2}, {%r2}, {%r2};",
    ],
)
def test_what_is_not_known_is_an_error_that_names_the_line(line: str) -> None:
    with pytest.raises(Unknown, match="line 6 of the PTX"):
        Module(NAMES.replace("setp.eq.u32 %p1, 1, 1;", f"\n{line}"))


def test_a_fault_is_as_large_as_the_machine_thinks() -> None:
    assert (ctypes.sizeof(Fault), ctypes.sizeof(Region), SHADOW.itemsize) == (48, 32, 24)
