"""The steps of recurrent layers in one launch forward and one backward (CUDA); `learning.kernels.recurrent` has the products beside them.

A column is one sequence. A block takes its columns through all steps: what they remember stays in shared memory, and the weights from it to
the gates in the first-level cache. In each step the block computes a product, a thread TALL rows of FOUR columns at a time as in
`kernels.mlp_cuda`, and behind a barrier the formulas of `kernels.cells`, a thread one unit of one column at a time. Nothing is atomic, and
no block waits for another one.

Rows of a block of U units, G gates a unit:

    forward     what is remembered of the outputs [U], the product [G U], LSTM: what is remembered of the cells [U]
    backward    slopes of the past's part of the gates, then their products with the weights, a gate each [G U],
                slopes that go to the step before by themselves: of the cells, GRU: of the outputs [U]
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from warprun.kernels.cells import gru_new, gru_output, gru_slopes, lstm_cell, lstm_cell_slope, lstm_output, lstm_slopes
from warprun.kernels.mlp_cuda import FOUR, TALL, accumulate, columns_for, four, read, write, write_rows
from warprun.learning.kernels.cuda.gradient import BOUND
from warprun.learning.kernels.recurrent import compute, over_steps
from warprun.learning.recurrent import Cell
from warprun.learning.settings.networks import GATES, recurrent_rows
from warprun.math import sigmoid, tanh
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import WARP, launch, module_for, multiprocessors, on_device

int64, uint32 = np.int64, np.uint32

MOST_COLUMNS = 28
"""Of a block. With 32 the same column of all rows would lie in one bank of shared memory, and formulas read one of eight rows at once."""


class Forward(NamedTuple):
    """Arguments of the forward pass, flat, as in `kernels.recurrent`; kernels get device arrays in place of the tensors."""

    gates: torch.Tensor
    keeps: torch.Tensor
    weights: torch.Tensor
    bias: torch.Tensor
    first: torch.Tensor
    first_cell: torch.Tensor
    before: torch.Tensor
    output: torch.Tensor
    extra: torch.Tensor
    steps: int
    sequences: int
    units: int


class Backward(NamedTuple):
    """Arguments of the backward pass, see `Forward`."""

    slope: torch.Tensor
    gates: torch.Tensor
    keeps: torch.Tensor
    weights: torch.Tensor
    first: torch.Tensor
    first_cell: torch.Tensor
    before: torch.Tensor
    extra: torch.Tensor
    d_own: torch.Tensor
    d_past: torch.Tensor
    steps: int
    sequences: int
    units: int


def unit_of(item, columns):
    """Return the unit of an item: eight units of a column lie side by side, and so they do in global memory."""
    number = uint32(item)
    return int64(number // uint32(TALL * columns) * uint32(TALL) + number % uint32(TALL))


def column_of(item, columns):
    """Return the column of an item, see `unit_of`."""
    return int64(uint32(item) // uint32(TALL) % uint32(columns))


def goes_on(given, t, row):
    """Return whether a sequence remembers what was before step `t`, of which there are `given.steps`."""
    return t < given.steps and read(given.keeps, t * given.sequences + row) != 0.0


def tile(weights, w_at, width, block, x_at, columns, n):
    """Return the sums over `n` rows of TALL weights, `width` apart, times FOUR columns."""
    return accumulate(weights, w_at, width, block, x_at, columns, n, four(four(0.0)) + four(four(0.0)))


def remember(given, block, columns, unit, column, row, t, output):
    """Write what step `t` remembers of the output before it, if there is such a step."""
    x = output if goes_on(given, t, row) else 0.0
    write(block, unit * columns + column, x)
    if t < given.steps:
        write(given.before, (t * given.sequences + row) * given.units + unit, x)


def of_past(given, block, columns, unit, column, gate):
    """Return the past's part of a gate of one unit."""
    number = gate * given.units + unit
    return read(given.bias, number) + read(block, (given.units + number) * columns + column)


def lstm_start(given, block, columns, unit, column, row):
    """Write what the first step remembers."""
    cell = read(given.first_cell, row * given.units + unit) if goes_on(given, 0, row) else 0.0
    write(block, (5 * given.units + unit) * columns + column, cell)


def lstm_forward(given, block, columns, unit, column, row, t):
    """Compute one unit of one column after the product of a step."""
    units, at = given.units, t * given.sequences + row
    gate_at, cell_at = 4 * at * units + unit, (5 * units + unit) * columns + column
    i = sigmoid(read(given.gates, gate_at) + of_past(given, block, columns, unit, column, 0))
    f = sigmoid(read(given.gates, gate_at + units) + of_past(given, block, columns, unit, column, 1))
    new = tanh(read(given.gates, gate_at + 2 * units) + of_past(given, block, columns, unit, column, 2))
    o = sigmoid(read(given.gates, gate_at + 3 * units) + of_past(given, block, columns, unit, column, 3))
    cell = lstm_cell(read(block, cell_at), i, f, new)
    output = lstm_output(o, cell)
    write(given.gates, gate_at, i)
    write(given.gates, gate_at + units, f)
    write(given.gates, gate_at + 2 * units, new)
    write(given.gates, gate_at + 3 * units, o)
    write(given.extra, at * units + unit, cell)
    write(given.output, at * units + unit, output)
    write(block, cell_at, cell if goes_on(given, t + 1, row) else 0.0)
    remember(given, block, columns, unit, column, row, t + 1, output)


def lstm_backward(given, block, columns, unit, column, row, t, d_output):
    """Compute the slopes of one unit of one column from that of its output."""
    units, at = given.units, t * given.sequences + row
    gate_at, cell_at, later = 4 * at * units + unit, at * units + unit, (4 * units + unit) * columns + column
    i, f = read(given.gates, gate_at), read(given.gates, gate_at + units)
    new, o = read(given.gates, gate_at + 2 * units), read(given.gates, gate_at + 3 * units)
    going = goes_on(given, t, row)
    before = 0.0
    if going:
        before = read(given.first_cell, row * units + unit) if t == 0 else read(given.extra, cell_at - given.sequences * units)
    squashed = tanh(read(given.extra, cell_at))
    d_cell = lstm_cell_slope(read(block, later), d_output, o, squashed)
    d_i, d_f, d_new, d_o, d_before = lstm_slopes(d_output, d_cell, i, f, new, o, before, squashed)
    write(block, later, d_before if going else 0.0)
    write(block, unit * columns + column, d_i)
    write(block, (units + unit) * columns + column, d_f)
    write(block, (2 * units + unit) * columns + column, d_new)
    write(block, (3 * units + unit) * columns + column, d_o)
    write(given.d_own, gate_at, d_i)
    write(given.d_own, gate_at + units, d_f)
    write(given.d_own, gate_at + 2 * units, d_new)
    write(given.d_own, gate_at + 3 * units, d_o)


def gru_start(given, block, columns, unit, column, row):
    """Do nothing: all that the first step remembers are outputs."""


def gru_forward(given, block, columns, unit, column, row, t):
    """Compute one unit of one column after the product of a step."""
    units, at = given.units, t * given.sequences + row
    gate_at = 3 * at * units + unit
    reset = sigmoid(read(given.gates, gate_at) + of_past(given, block, columns, unit, column, 0))
    update = sigmoid(read(given.gates, gate_at + units) + of_past(given, block, columns, unit, column, 1))
    past = of_past(given, block, columns, unit, column, 2)
    new = gru_new(read(given.gates, gate_at + 2 * units), reset, past)
    output = gru_output(update, new, read(block, unit * columns + column))
    write(given.gates, gate_at, reset)
    write(given.gates, gate_at + units, update)
    write(given.gates, gate_at + 2 * units, new)
    write(given.extra, at * units + unit, past)
    write(given.output, at * units + unit, output)
    remember(given, block, columns, unit, column, row, t + 1, output)


def gru_backward(given, block, columns, unit, column, row, t, d_output):
    """Compute the slopes of one unit of one column from that of its output, but for what goes to it by itself."""
    units, at = given.units, t * given.sequences + row
    gate_at, number, direct = 3 * at * units + unit, at * units + unit, (3 * units + unit) * columns + column
    reset, update, new = read(given.gates, gate_at), read(given.gates, gate_at + units), read(given.gates, gate_at + 2 * units)
    past, before = read(given.extra, number), read(given.before, number)
    d_output += read(block, direct)
    d_reset, d_update, d_new, d_past, d_before = gru_slopes(d_output, reset, update, new, past, before)
    write(block, direct, d_before if goes_on(given, t, row) else 0.0)
    write(block, unit * columns + column, d_reset)
    write(block, (units + unit) * columns + column, d_update)
    write(block, (2 * units + unit) * columns + column, d_past)
    write(given.d_own, gate_at, d_reset)
    write(given.d_own, gate_at + units, d_update)
    write(given.d_own, gate_at + 2 * units, d_new)
    write(given.d_past, gate_at, d_reset)
    write(given.d_past, gate_at + units, d_update)
    write(given.d_past, gate_at + 2 * units, d_past)


KERNEL = '''"""The steps of $kind layers on CUDA; written by warprun."""

from numba import cuda, float32

COLUMNS, GATES, APART = $columns, $gates, $columns // $four


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def forward(given):
    thread, threads, units = cuda.threadIdx.x, cuda.blockDim.x, given.units
    block = cuda.shared.array(0, float32)
    begin = cuda.blockIdx.x * COLUMNS
    n = min(COLUMNS, given.sequences - begin)
    tiles = GATES * units // TALL * APART
    for item in range(thread, units * COLUMNS, threads):
        unit, column = unit_of(item, COLUMNS), column_of(item, COLUMNS)
        if column < n:
            remember(given, block, COLUMNS, unit, column, begin + column, 0, read(given.first, (begin + column) * units + unit))
            ${kind}_start(given, block, COLUMNS, unit, column, begin + column)
        else:  # columns without a sequence
            write(block, unit * COLUMNS + column, float32(0.0))
    cuda.syncthreads()
    for t in range(given.steps):
        if thread < tiles:
            out, column = thread // APART * TALL, thread % APART
            y = tile(given.weights, out, GATES * units, block, column, COLUMNS, units)
            write_rows(block, (units + out) * COLUMNS + column, COLUMNS, TALL, y)
        cuda.syncthreads()
        for item in range(thread, units * COLUMNS, threads):
            unit, column = unit_of(item, COLUMNS), column_of(item, COLUMNS)
            if column < n:
                ${kind}_forward(given, block, COLUMNS, unit, column, begin + column, t)
        cuda.syncthreads()


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def backward(given):
    thread, threads, units = cuda.threadIdx.x, cuda.blockDim.x, given.units
    block = cuda.shared.array(0, float32)
    begin = cuda.blockIdx.x * COLUMNS
    n = min(COLUMNS, given.sequences - begin)
    tiles = GATES * units // TALL * APART
    # Each gate's share of a product is a thread's own; one that has none computes another's and writes nothing.
    mine = min(thread, tiles - 1)
    out, column = mine // APART * TALL, mine % APART
    gate, of_gate = out // units, out % units
    for item in range(thread, (GATES + 1) * units * COLUMNS, threads):
        write(block, item, float32(0.0))
    cuda.syncthreads()
    for back in range(given.steps):
        t = given.steps - 1 - back
        for item in range(thread, units * COLUMNS, threads):
            unit, its = unit_of(item, COLUMNS), column_of(item, COLUMNS)
            if its < n:
                d_output = read(given.slope, (t * given.sequences + begin + its) * units + unit)
                if goes_on(given, t + 1, begin + its):
                    for each in range(GATES):
                        d_output += read(block, (each * units + unit) * COLUMNS + its)
                ${kind}_backward(given, block, COLUMNS, unit, its, begin + its, t, d_output)
        cuda.syncthreads()
        y = tile(given.weights, gate * units * units + of_gate, units, block, gate * units * COLUMNS + column, COLUMNS, units)
        cuda.syncthreads()
        # The products take the place of the slopes, which all threads have read.
        if thread < tiles:
            write_rows(block, out * COLUMNS + column, COLUMNS, TALL, y)
        cuda.syncthreads()
'''
"""The kernels of a type of network and a number of columns."""
SHARED = (unit_of, column_of, goes_on, tile, remember, read, write, write_rows)
"""Functions that the kernels of all types call."""
OWN = {"lstm": (lstm_start, lstm_forward, lstm_backward), "gru": (gru_start, gru_forward, gru_backward)}
"""Those of a type."""


@cache
def kernel_module(kind: str, columns: int) -> ModuleType:
    """Return the kernels of a type of network for blocks of so many columns."""
    source = fill(KERNEL, kind=kind, columns=str(columns), gates=str(GATES[kind]), four=str(FOUR))
    names: dict[str, object] = {f.__name__: f for f in (*SHARED, *OWN[kind])}
    return module_for(f"{kind}_cuda", source, names | {"BOUND": BOUND, "TALL": TALL})


class CudaRecurrence:
    """The two kernels of one kind of layer."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def run(self, name: str, shape: torch.Size, *tensors: torch.Tensor) -> None:
        """Go through the steps of all columns in one launch, see `Recurrence`."""
        _, sequences, units = shape
        rows = recurrent_rows(self.kind, units)
        # Few sequences are spread over all multiprocessors: a step takes as long as its product.
        columns = columns_for(rows, min(MOST_COLUMNS, -(-sequences // multiprocessors(tensors[0].device))))
        tiles = GATES[self.kind] * units // TALL * (columns // FOUR)
        grid = -(-sequences // columns), -(-tiles // WARP) * WARP
        flat = (tensor.view(-1) for tensor in tensors)
        given = (Forward if name == "forward" else Backward)._make((*flat, *shape))
        launch(kernel_module(self.kind, columns), name, grid, (on_device(given),), 4 * rows * columns)


kernels_of = cache(CudaRecurrence)
"""The kernels of a type of network."""


def layer(cell: Cell, x: torch.Tensor, keeps: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the outputs [T, B, U] of a layer and the parts of its carry after each step, see `recurrent.LayerOverSteps`."""
    return over_steps(kernels_of, cell, x, keeps, first)


def compute_by_kernels(module: nn.Module) -> None:
    """Let kernels compute the recurrent layers of all networks in `module` that fit into shared memory, instead of torch."""
    compute(module, layer, lambda kind, units: units % TALL == 0 and columns_for(recurrent_rows(kind, units), 1) > 0)
