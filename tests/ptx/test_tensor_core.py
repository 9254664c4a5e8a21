"""The machine multiplies matrices as tensor cores do, and sees what is wrong where a kernel gives them something else."""

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import cuda, types
from numba.core import cgutils
from numba.core.extending import intrinsic

from tests.ptx import tensor_core
from tests.ptx.build import NEEDED
from tests.ptx.machine import Array, Order
from tests.ptx.rolling import clear, machine
from tests.ptx.tensor_core import COLUMNS, DEPTH, ROWS

pytestmark = NEEDED

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"


def assembly(builder: Any, text: str, result: Any, kinds: str, values: Any, *attributes: str) -> Any:
    code = ir.InlineAsm(ir.FunctionType(result, [value.type for value in values]), text, kinds)
    return builder.call(code, values, attrs=attributes)


@intrinsic
def mma(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    """Return D = A B + C: tuples of 4 and 2 uint32 and of 4 float32."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        values = [builder.extract_value(each, n) for each, count in zip(args, (4, 2, 4), strict=True) for n in range(count)]
        found = ir.LiteralStructType([ir.FloatType()] * 4)
        # Convergent: LLVM must not move it into a branch that some threads do not take.
        kinds = "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"
        got = assembly(builder, MMA, found, kinds, values, "convergent", "nounwind", "readnone")
        return cgutils.pack_array(builder, [builder.extract_value(got, n) for n in range(4)])

    return types.UniTuple(types.float32, 4)(a, b, c), code


def kernel(a, b, c, d):  # type: ignore[no-untyped-def]
    t = cuda.threadIdx.x
    found = mma((a[t, 0], a[t, 1], a[t, 2], a[t, 3]), (b[t, 0], b[t, 1]), (c[t, 0], c[t, 1], c[t, 2], c[t, 3]))
    for n in range(4):
        d[t, n] = found[n]


def array(x: np.ndarray) -> Array:
    return Array(torch.from_numpy(np.ascontiguousarray(x)))


def test_the_product_of_a_warp_is_that_of_float64_and_that_of_numpy() -> None:
    random = np.random.default_rng(0)
    a, b, c = (random.normal(size=shape) for shape in ((ROWS, DEPTH), (DEPTH, COLUMNS), (ROWS, COLUMNS)))
    a, b = (tensor_core.from_bf16(tensor_core.to_bf16(np.float32(x))) for x in (a, b))
    words = tensor_core.pack(a, tensor_core.A), tensor_core.pack(b, tensor_core.B), np.float32(c[tensor_core.C])
    for order in Order:
        clear(machine())
        machine().order = order
        d = torch.zeros(32, 4)
        machine().launch(cuda.jit(kernel), (1, 32), (*map(array, words), Array(d)))
        assert machine().findings() == []
        assert machine().seen["kernel"].issued[0].issued_mma == 1
        np.testing.assert_array_equal(d.numpy(), tensor_core.mma(*words))
        np.testing.assert_allclose(d.numpy(), (a.astype(float) @ b + np.float32(c))[tensor_core.C], rtol=0, atol=2e-6)
