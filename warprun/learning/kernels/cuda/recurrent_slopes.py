"""Gradients of the parameters of recurrent layers on tensor cores, over the rows of all steps.

The mechanism is that of `kernels.cuda.gradient`: a block takes tiles of rows, one per column, through shared memory, and adds the slopes of
its weights to memory of its own; a second kernel adds these. A block is for one gate, of which it has the units. Rows of a block:

    inputs [I], what is remembered of the outputs [U], slopes of the gate [U], and where the past has slopes of its own these [U]
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from warprun.kernels.mlp_cuda_backward import read_there, write_there
from warprun.kernels.mlp_tensor import add_weight_slopes
from warprun.learning.kernels.cuda.gradient import bound
from warprun.learning.kernels.cuda.sums import BlockSums
from warprun.learning.kernels.recurrent import Gradients
from warprun.learning.settings.byte_counts import recurrent_blocks
from warprun.learning.settings.networks import GATES
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import WARP, launch, module_for, multiprocessors, on_device
from warprun.simulation.cuda_layers import TENSOR_CORES

COLUMNS = 64
"""Of a tile, if shared memory holds so many."""
OWN = {"lstm": -1, "gru": 2}
"""Gate of which the past has slopes of its own: GRU, new."""


class Table(NamedTuple):
    """A tile; kernels get a device array in place of the tensor."""

    layers: torch.Tensor
    """[2 G, 9] int32, see `mlp_cuda_backward.BlockBackward`: for each gate the weights of the inputs, then those of the past."""
    columns: int
    stride: int


def load_rows(block, first, array, at, apart, size, n, columns, stride, thread, threads):
    """Load `size` numbers of each of the first `n` rows of an array, which are `apart` from index `at` on; others become 0.

    A warp takes 32 numbers of 8 rows, in whole sectors of global memory: each lane two times four, which are all read before one is
    written, and are in different banks but for two each.
    """
    lane = thread % WARP
    for eight in range(thread // WARP, columns // 8, threads // WARP):
        column = eight * 8 + lane // 8
        for f in range(lane % 8, size, 32):
            index, to, left = at + column * apart + f, (first + f) * stride + column, size - f
            x = read_there(array, index, 8, left, column < n)
            y = read_there(array, index + 4 * apart, 8, left, column + 4 < n)
            write_there(block, to, 8 * stride, left * stride, True, x)
            write_there(block, to + 4, 8 * stride, left * stride, True, y)


KERNEL = '''"""Gradients of parameters of recurrent layers on CUDA; written by warprun."""

from numba import cuda, float32

INPUTS, UNITS, GATES, OWN, WIDTH, COLUMNS, STRIDE = $numbers


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def weight_slopes(table, x, before, d_own, d_past, rows, partial):
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    gate, part, parts = cuda.blockIdx.x % GATES, cuda.blockIdx.x // GATES, cuda.gridDim.x // GATES
    block = cuda.shared.array(0, float32)
    fresh = True
    for begin in range(part * COLUMNS, rows, parts * COLUMNS):
        cuda.syncthreads()
        n = min(COLUMNS, rows - begin)
        slopes_at = (begin * GATES + gate) * UNITS
        load_rows(block, 0, x, begin * INPUTS, INPUTS, INPUTS, n, COLUMNS, STRIDE, thread, threads)
        load_rows(block, INPUTS, before, begin * UNITS, UNITS, UNITS, n, COLUMNS, STRIDE, thread, threads)
        load_rows(block, INPUTS + UNITS, d_own, slopes_at, GATES * UNITS, UNITS, n, COLUMNS, STRIDE, thread, threads)
        if gate == OWN:
            load_rows(block, INPUTS + 2 * UNITS, d_past, slopes_at, GATES * UNITS, UNITS, n, COLUMNS, STRIDE, thread, threads)
        cuda.syncthreads()
        for layer in range(2 * gate, 2 * gate + 2):
            add_weight_slopes(table, table, layer, block, partial, part * WIDTH, fresh, thread, threads)
        fresh = False
'''


class WeightSlopes:
    """The gradients of a layer's parameters, by its type, inputs and units."""

    def __init__(self, kind: str, inputs: int, units: int, device: torch.device) -> None:
        gates = GATES[kind]
        self._sizes = [gates * units * inputs, gates * units * units, gates * units, gates * units]
        self._shapes = (gates * units, inputs), (gates * units, units)
        width = sum(self._sizes)
        past, bias = self._sizes[0], self._sizes[0] + self._sizes[1]
        self._columns = columns_for(kind, inputs, units)
        self._shared_bytes = 4 * rows_for(kind, inputs, units) * TENSOR_CORES.stride(self._columns)
        table, slopes = [], inputs + units
        for gate in range(gates):
            table.append((0, 0, inputs, units, 0, slopes, 0, gate * units * inputs, bias + gate * units))
            own = slopes + units * (gate == OWN[kind])
            table.append((0, 0, units, units, inputs, own, 0, past + gate * units * units, bias + (gates + gate) * units))
        layers = torch.tensor(table, dtype=torch.int32, device=device)
        self._table = Table(layers, self._columns, TENSOR_CORES.stride(self._columns))
        self._gates = gates
        self._parts, self._threads = recurrent_blocks(inputs, units, gates, multiprocessors(device))
        self._sums = BlockSums(width, self._parts, device)
        functions = (load_rows, add_weight_slopes)
        numbers = inputs, units, gates, OWN[kind], width, self._columns, TENSOR_CORES.stride(self._columns)
        source = fill(KERNEL, numbers=str(numbers)[1:-1])
        self._module = module_for("recurrent_slopes_cuda", source, {f.__name__: f for f in functions} | {"BOUND": bound()})

    def __call__(self, x: torch.Tensor, before: torch.Tensor, d_own: torch.Tensor, d_past: torch.Tensor) -> Gradients:
        """Return the gradients of the weights of the inputs `x` [R, I] and of what is remembered, `before` [R, U], and of their biases,
        for the slopes of the gates [R, G U]."""
        rows = len(x)
        parts = min(self._parts, -(-rows // self._columns))
        arrays = (on_device(tensor.reshape(-1)) for tensor in (x, before, d_own, d_past))
        given = (on_device(self._table), *arrays, rows, on_device(self._sums.partial))
        launch(self._module, "weight_slopes", (parts * self._gates, self._threads), given, self._shared_bytes)
        self._sums.add(parts)
        # A copy, because the next layer with these sizes takes the same memory.
        of_inputs, of_past, own_bias, past_bias = self._sums.total.clone().split(self._sizes)
        return of_inputs.view(self._shapes[0]), of_past.view(self._shapes[1]), own_bias, past_bias


weight_slopes_of = cache(WeightSlopes)
"""What computes the gradients of layers of a type, with so many inputs and units, on a device: one after the other, on one stream, for
they share its memory."""


def rows_for(kind: str, inputs: int, units: int) -> int:
    """Return the rows of a block."""
    return inputs + (2 + (OWN[kind] >= 0)) * units


def columns_for(kind: str, inputs: int, units: int) -> int:
    """Return the columns of a block; 0 if there is not enough shared memory."""
    return TENSOR_CORES.columns_for(rows_for(kind, inputs, units), COLUMNS)
