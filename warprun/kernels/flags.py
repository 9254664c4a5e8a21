"""Reads 64 flags of environments at a time, as the bits of a number: a few instructions in place of 64 branches.

LLVM does not find this by itself: it turns such a loop over flags into scalar code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from llvmlite.ir import Value
    from numba.core.base import BaseContext as TargetContext
    from numba.core.typing.context import BaseContext as TypingContext
    from numba.core.typing.templates import Signature
    from numba.types import Array, Integer

    from warprun.kernels.simd import Intrinsic

AT_ONCE = 64
"""Flags that `set_flags` reads."""


@intrinsic
def _set_flags(typing: TypingContext, flags: Array, first: Integer) -> Intrinsic:
    def generate(context: TargetContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[Value]) -> Value:
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        vector = ir.VectorType(ir.IntType(8), AT_ONCE)
        place = builder.bitcast(builder.gep(data, [values[1]]), vector.as_pointer())
        is_set = builder.icmp_unsigned("!=", builder.load(place, align=1), ir.Constant(vector, [0] * AT_ONCE))
        return builder.bitcast(is_set, ir.IntType(64))

    return types.uint64(flags, types.int64), generate


@intrinsic
def _lowest_bit(typing: TypingContext, bits: Integer) -> Intrinsic:
    def generate(context: TargetContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[Value]) -> Value:
        return builder.cttz(values[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


def _set_flags_in_python(flags: np.ndarray, first: int) -> np.uint64:
    return np.uint64(sum(int(flag) << n for n, flag in enumerate(flags[first : first + AT_ONCE])))


def _lowest_bit_in_python(bits: np.uint64) -> int:
    return (int(bits) & -int(bits)).bit_length() - 1


set_flags = _set_flags_in_python if config.DISABLE_JIT else _set_flags
"""(flags, first) -> flags[first : first + AT_ONCE], which must exist, as the bits of a uint64, the first flag in the lowest one."""
lowest_bit = _lowest_bit_in_python if config.DISABLE_JIT else _lowest_bit
"""(bits) -> the place of the lowest bit of a uint64 that is set."""
