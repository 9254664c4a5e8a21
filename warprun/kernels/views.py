"""Views of arrays whose sizes and strides LLVM knows: addresses in them are constants, and neighbouring lanes are seen to be neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

if TYPE_CHECKING:
    from llvmlite.ir import Value
    from numba.core.base import BaseContext as TargetContext
    from numba.core.typing.context import BaseContext as TypingContext
    from numba.core.typing.templates import Signature
    from numba.types import Array, Integer, UniTuple

    from warprun.kernels.simd import Intrinsic


@intrinsic
def _of_tile(typing: TypingContext, array: Array, tile: Integer, shape: UniTuple) -> Intrinsic | None:
    if array.layout != "C":
        return None

    def generate(context: TargetContext, builder: ir.IRBuilder, signature: Signature, values: Sequence[Value]) -> Value:
        given = make_array(array)(context, builder, values[0])
        sizes = cgutils.unpack_tuple(builder, values[2], len(shape))
        strides = [given.itemsize.type(context.get_abi_sizeof(given.data.type.pointee))]
        for size in reversed(sizes):
            strides.insert(0, builder.mul(strides[0], size))
        data = builder.bitcast(given.data, ir.IntType(8).as_pointer())
        data = builder.bitcast(builder.gep(data, [builder.mul(values[1], strides[0])]), given.data.type)
        view = make_array(signature.return_type)(context, builder)
        populate_array(view, data, sizes, strides[1:], strides[-1], given.meminfo, parent=given.parent)
        return impl_ret_borrowed(context, builder, signature.return_type, view._getvalue())

    return array.copy(ndim=array.ndim - 1)(array, types.int64, shape), generate


def _part_of_tile(array: np.ndarray, tile: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return array[tile], without compilation."""
    found: np.ndarray = array[tile]
    return found


of_tile: Callable[[np.ndarray, int, tuple[int, ...]], np.ndarray] = _part_of_tile if config.DISABLE_JIT else _of_tile
"""(array, tile, shape) -> array[tile], whose shape must be `shape`, a tuple of constants; `array` must be contiguous."""
