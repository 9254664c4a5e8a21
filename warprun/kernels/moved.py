"""Arrays of the same form elsewhere in memory, in CUDA kernels: an intrinsic that writes LLVM code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from llvmlite.ir import Value
    from numba.core.base import BaseContext as TargetContext
    from numba.core.typing.context import BaseContext as TypingContext
    from numba.core.typing.templates import Signature
    from numba.types import Array, Integer

    from warprun.kernels.warp_writer import Intrinsic


@intrinsic
def moved(typing: TypingContext, array: Array, apart: Integer) -> Intrinsic:
    """Return an array of the same shape and strides whose memory begins `apart` bytes behind that of `array`."""

    def write(context: TargetContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[Value]) -> Value:
        found = context.make_array(array)(context, builder, arguments[0])
        # Steps of bytes from a pointer, not a number made a pointer: the compiler still knows the kind of its memory.
        first = builder.bitcast(found.data, ir.IntType(8).as_pointer())
        found.data = builder.bitcast(builder.gep(first, [arguments[1]]), found.data.type)
        return found._getvalue()

    return array(array, types.int64), write
