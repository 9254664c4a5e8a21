"""Instructions that kernels with tensor cores need, beside the product itself: what becomes of nan and of small numbers, and vectors."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import cuda, float32, types
from numba.core import cgutils
from numba.core.extending import intrinsic

from tests.ptx.build import NEEDED
from tests.ptx.machine import Array, Kind, type_of
from tests.ptx.rolling import machine
from tests.ptx.tensor_core import from_bf16
from tests.ptx.test_tensor_core import REAL, WORD, array, assembly, launched

pytestmark = NEEDED

TEXTS = {
    "min.NaN": np.minimum,
    "max.NaN": np.maximum,
    "min": np.fmin,
    "max.ftz": lambda x, y: np.fmax(flushed(x), flushed(y)),
    "add.ftz": lambda x, y: flushed(flushed(x) + flushed(y)),
    "mul.ftz": lambda x, y: flushed(flushed(x) * flushed(y)),
    "ex2.approx.ftz": lambda x, y: flushed(np.exp2(flushed(x))),
    "ex2.approx": lambda x, y: np.exp2(x),
    "rcp.approx.ftz": lambda x, y: flushed(1 / flushed(x)),
    "rcp.approx": lambda x, y: 1 / x,
}
"""Instructions of float32, and what they give."""


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def instruction(text: str) -> Callable[..., Any]:
    """Return a function of Numba that is one instruction of one or two float32."""
    operands = ["$1", "$2"] if text.split(".")[0] in ("min", "max", "add", "mul") else ["$1"]

    @intrinsic
    def given(typingctx, x, y):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return assembly(builder, f"{text}.f32 $0, {', '.join(operands)};", REAL, f"=f{',f' * len(operands)}", args[: len(operands)])

        return types.float32(x, y), code

    return given


MIN_NAN, MAX_NAN, MIN, MAX_FTZ, ADD_FTZ, MUL_FTZ, EX2_FTZ, EX2, RCP_FTZ, RCP = map(instruction, TEXTS)


@intrinsic
def pair(typingctx, x, y):  # type: ignore[no-untyped-def]
    """Return two float32 as bf16 in a word, x in the upper half."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return assembly(builder, "cvt.rn.bf16x2.f32 $0, $1, $2;", WORD, "=r,f,f", args)

    return types.uint32(x, y), code


def of_two(x, y, out, words):  # type: ignore[no-untyped-def]
    n = cuda.grid(1)
    u, v = x[n], y[n]
    out[0, n], out[1, n], out[2, n], out[3, n], out[4, n] = MIN_NAN(u, v), MAX_NAN(u, v), MIN(u, v), MAX_FTZ(u, v), ADD_FTZ(u, v)
    out[5, n], out[6, n], out[7, n], out[8, n], out[9, n] = MUL_FTZ(u, v), EX2_FTZ(u, v), EX2(u, v), RCP_FTZ(u, v), RCP(u, v)
    words[n] = pair(v, u)


def test_nan_stays_and_small_numbers_are_flushed_where_an_instruction_says_so() -> None:
    some = [0.0, -0.0, 1.0, -1.5, 3e-39, -3e-39, 1e-45, 2e-38, -127.5, 130.0, np.inf, -np.inf, np.nan, 3e38, 1 + 2.0**-8, 1 + 3 * 2.0**-8]
    x, y = (np.ascontiguousarray(z.ravel()) for z in np.meshgrid(np.float32(some), np.float32(some)))
    out, words = torch.zeros(len(TEXTS), len(x)), torch.zeros(len(x), dtype=torch.int32)
    assert launched(of_two, 64, array(x), array(y), Array(out), Array(words), blocks=4) == set()
    with np.errstate(all="ignore"):
        for (text, function), found in zip(TEXTS.items(), out.numpy(), strict=True):
            expected = np.float32(function(x, y))
            np.testing.assert_array_equal(found, expected, err_msg=text)
            signs = (expected == 0) & (text not in ("min", "min.NaN", "max.NaN", "max.ftz"))  # NumPy takes either zero
            np.testing.assert_array_equal(np.signbit(found[signs]), np.signbit(expected[signs]), err_msg=text)
    halves = [torch.from_numpy(z).to(torch.bfloat16).float().numpy() for z in (x, y)]
    for half, expected in zip((words.numpy() & 0xFFFF, words.numpy() >> 16 & 0xFFFF), halves, strict=True):
        np.testing.assert_array_equal(from_bf16(half.astype(np.uint32)), expected)
    assert {int(word) & 0xFFFF for word, z in zip(words.numpy(), x, strict=True) if np.isnan(z)} == {0x7FFF}
    assert machine().seen["of_two"].issued[0].issued_mufu == 4 * len(x) / 32


def vectors(count: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return functions that load and store so many float32 at an index of an array, as one vector."""

    def place(context: Any, builder: Any, kind: Any, value: Any, at: Any) -> Any:
        data = builder.gep(context.make_array(kind)(context, builder, value).data, [at])
        return builder.bitcast(data, ir.VectorType(REAL, count).as_pointer())

    @intrinsic
    def load(typingctx, x, at):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            found = builder.load(place(context, builder, x, *args), align=4 * count)
            return cgutils.pack_array(builder, [builder.extract_element(found, WORD(n)) for n in range(count)])

        return types.UniTuple(types.float32, count)(x, types.int64), code

    @intrinsic
    def store(typingctx, x, at, values):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            vector = ir.Constant(ir.VectorType(REAL, count), ir.Undefined)
            for n in range(count):
                vector = builder.insert_element(vector, builder.extract_value(args[2], n), WORD(n))
            builder.store(vector, place(context, builder, x, *args[:2]), align=4 * count)

        return types.void(x, types.int64, values), code

    return load, store


LOAD2, STORE2 = vectors(2)
LOAD4, STORE4 = vectors(4)


def through_shared(x, y, beyond):  # type: ignore[no-untyped-def]
    """Reverse the blocks of four numbers of 32 threads."""
    shared = cuda.shared.array(132, float32)
    n = cuda.threadIdx.x
    STORE4(shared, 4 * n, LOAD4(x, 4 * n + beyond))
    cuda.syncthreads()
    low, high = LOAD2(shared, 124 - 4 * n), LOAD2(shared, 126 - 4 * n)
    STORE2(y, 4 * n, low)
    STORE2(y, 4 * n + 2, high)


def test_vectors_are_loaded_and_stored_and_must_lie_at_multiples_of_their_size() -> None:
    x, y = np.arange(132, dtype=np.float32), torch.zeros(128)
    arguments = array(x), Array(y), 0
    assert launched(through_shared, 32, *arguments) == set()
    np.testing.assert_array_equal(y.numpy().reshape(32, 4), x[:128].reshape(32, 4)[::-1])
    text = machine().compiled(cuda.jit(through_shared), tuple(map(type_of, arguments))).ptx.read_text()
    assert {"ld.shared.v2", "st.shared.v4"} <= set(re.findall(r"(?:ld|st)\.\w+\.v\d", text))
    assert launched(through_shared, 32, *arguments[:2], 2) == {Kind.MISALIGNED}
