"""The steps of recurrent layers in one launch forward and one backward (CUDA); `learning.kernels.recurrent` has the products beside them.

A column is one sequence. A block takes its columns through all steps: what they remember stays in shared memory, and the weights from it to
the gates in the first-level cache. In each step the block computes a product, a thread TALL rows of FOUR columns at a time as in
`kernels.mlp_cuda`, and behind a barrier the formulas of `kernels.cells`, a thread one unit of one column at a time. Nothing is atomic, and
no block waits for another one. Where a block has few columns, several threads share the sums of a product.

Rows of a block of U units, G gates a unit, S shares:

    forward     what is remembered of the outputs [U], LSTM: what is remembered of the cells [U], shares of the product [S G U]
    backward    slopes that go to the step before by themselves, of the cells, GRU: of the outputs [U], slopes of the past's part of the
                gates [G U], in their place then shares of their product, those of each gate [S G U]
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from warprun.kernels.cells import gru_new, gru_output, gru_slopes, lstm_cell, lstm_cell_slope, lstm_output, lstm_slopes
from warprun.kernels.mlp_cuda import FOUR, TALL, accumulate, four, read, write, write_rows
from warprun.learning.kernels.cuda import recurrent_slopes, recurrent_tensor
from warprun.learning.kernels.recurrent import Gradients, compute, gradients, over_steps
from warprun.learning.recurrent import Cell
from warprun.learning.settings.networks import GATES, KERNEL_UNITS, STATES, recurrent_rows
from warprun.math import sigmoid, tanh
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import SIMULATED, WARP, launch, module_for, multiprocessors, on_device
from warprun.simulation.cuda_layers import FLOATS, recurrent_why_not

int64, uint32 = np.int64, np.uint32

SHARES, MOST_THREADS = (2, 4), 256
"""Threads that may share a sum, and the most threads of a block that do."""
BOUND = {} if SIMULATED else {"max_registers": 128}
"""Option of its kernels: half of a multiprocessor's registers are enough for a block of 256 threads."""
MOST_COLUMNS = 28
"""Of a block. With 32 the same column of all rows would lie in one bank of shared memory, and formulas read one of eight rows at once."""


class Forward(NamedTuple):
    """Arguments of the forward pass, flat, as in `learning.kernels.recurrent`; kernels get device arrays in place of the tensors."""

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


class Block(NamedTuple):
    """Shared memory of a block; kernels get an array in place of the tensor."""

    memory: torch.Tensor
    columns: int
    sums: int
    """First row of a product."""
    gates: int
    """Of all units."""
    shares: int


def unit_of(item, columns):
    """Return the unit of an item: eight units of a column lie side by side, and so they do in global memory."""
    number = uint32(item)
    return int64(number // uint32(TALL * columns) * uint32(TALL) + number % uint32(TALL))


def column_of(item, columns):
    """Return the column of an item, see `unit_of`."""
    return int64(uint32(item) // uint32(TALL) % uint32(columns))


def row_at(block, row, column):
    """Return the index of a column of a row."""
    return row * block.columns + column


def goes_on(given, t, row):
    """Return whether a sequence remembers what was before step `t`, of which there are `given.steps`."""
    return t < given.steps and read(given.keeps, t * given.sequences + row) != 0.0


def tile(weights, w_at, width, block, x_at, columns, n):
    """Return the sums over `n` rows of TALL weights, `width` apart, times FOUR columns."""
    return accumulate(weights, w_at, width, block, x_at, columns, n, four(four(0.0)) + four(four(0.0)))


def remember(given, block, unit, column, row, t, output):
    """Write what step `t` remembers of the output before it, if there is such a step."""
    x = output if goes_on(given, t, row) else 0.0
    write(block.memory, row_at(block, unit, column), x)
    if t < given.steps:
        write(given.before, (t * given.sequences + row) * given.units + unit, x)


def of_past(given, block, unit, column, gate):
    """Return the past's part of a gate of one unit."""
    number = gate * given.units + unit
    x = read(given.bias, number)
    for share in range(block.shares):
        x += read(block.memory, row_at(block, block.sums + share * block.gates + number, column))
    return x


def lstm_start(given, block, unit, column, row):
    """Write what the first step remembers of the cell."""
    cell = read(given.first_cell, row * given.units + unit) if goes_on(given, 0, row) else 0.0
    write(block.memory, row_at(block, given.units + unit, column), cell)


def lstm_forward(given, block, unit, column, row, t):
    """Compute one unit of one column after the product of a step."""
    units, at = given.units, t * given.sequences + row
    gate_at, cell_at = 4 * at * units + unit, row_at(block, units + unit, column)
    i = sigmoid(read(given.gates, gate_at) + of_past(given, block, unit, column, 0))
    f = sigmoid(read(given.gates, gate_at + units) + of_past(given, block, unit, column, 1))
    new = tanh(read(given.gates, gate_at + 2 * units) + of_past(given, block, unit, column, 2))
    o = sigmoid(read(given.gates, gate_at + 3 * units) + of_past(given, block, unit, column, 3))
    cell = lstm_cell(read(block.memory, cell_at), i, f, new)
    output = lstm_output(o, tanh(cell))
    write(given.gates, gate_at, i)
    write(given.gates, gate_at + units, f)
    write(given.gates, gate_at + 2 * units, new)
    write(given.gates, gate_at + 3 * units, o)
    write(given.extra, at * units + unit, cell)
    write(given.output, at * units + unit, output)
    write(block.memory, cell_at, cell if goes_on(given, t + 1, row) else 0.0)
    remember(given, block, unit, column, row, t + 1, output)


def lstm_backward(given, block, unit, column, row, t, d_output):
    """Compute the slopes of one unit of one column from that of its output."""
    units, at = given.units, t * given.sequences + row
    gate_at, cell_at, later = 4 * at * units + unit, at * units + unit, row_at(block, unit, column)
    i, f = read(given.gates, gate_at), read(given.gates, gate_at + units)
    new, o = read(given.gates, gate_at + 2 * units), read(given.gates, gate_at + 3 * units)
    going = goes_on(given, t, row)
    before = 0.0
    if going:
        before = read(given.first_cell, row * units + unit) if t == 0 else read(given.extra, cell_at - given.sequences * units)
    squashed = tanh(read(given.extra, cell_at))
    d_cell = lstm_cell_slope(read(block.memory, later), d_output, o, squashed)
    d_i, d_f, d_new, d_o, d_before = lstm_slopes(d_output, d_cell, i, f, new, o, before, squashed)
    write(block.memory, later, d_before if going else 0.0)
    write(block.memory, row_at(block, units + unit, column), d_i)
    write(block.memory, row_at(block, 2 * units + unit, column), d_f)
    write(block.memory, row_at(block, 3 * units + unit, column), d_new)
    write(block.memory, row_at(block, 4 * units + unit, column), d_o)
    write(given.d_own, gate_at, d_i)
    write(given.d_own, gate_at + units, d_f)
    write(given.d_own, gate_at + 2 * units, d_new)
    write(given.d_own, gate_at + 3 * units, d_o)


def gru_start(given, block, unit, column, row):
    """Do nothing: all that the first step remembers are outputs."""


def gru_forward(given, block, unit, column, row, t):
    """Compute one unit of one column after the product of a step."""
    units, at = given.units, t * given.sequences + row
    gate_at = 3 * at * units + unit
    reset = sigmoid(read(given.gates, gate_at) + of_past(given, block, unit, column, 0))
    update = sigmoid(read(given.gates, gate_at + units) + of_past(given, block, unit, column, 1))
    past = of_past(given, block, unit, column, 2)
    new = tanh(gru_new(read(given.gates, gate_at + 2 * units), reset, past))
    output = gru_output(update, new, read(block.memory, row_at(block, unit, column)))
    write(given.gates, gate_at, reset)
    write(given.gates, gate_at + units, update)
    write(given.gates, gate_at + 2 * units, new)
    write(given.extra, at * units + unit, past)
    write(given.output, at * units + unit, output)
    remember(given, block, unit, column, row, t + 1, output)


def gru_backward(given, block, unit, column, row, t, d_output):
    """Compute the slopes of one unit of one column from that of its output, but for what goes to it by itself."""
    units, at = given.units, t * given.sequences + row
    gate_at, number, direct = 3 * at * units + unit, at * units + unit, row_at(block, unit, column)
    reset, update, new = read(given.gates, gate_at), read(given.gates, gate_at + units), read(given.gates, gate_at + 2 * units)
    past, before = read(given.extra, number), read(given.before, number)
    d_output += read(block.memory, direct)
    d_reset, d_update, d_new, d_past, d_before = gru_slopes(d_output, reset, update, new, past, before)
    write(block.memory, direct, d_before if goes_on(given, t, row) else 0.0)
    write(block.memory, row_at(block, units + unit, column), d_reset)
    write(block.memory, row_at(block, 2 * units + unit, column), d_update)
    write(block.memory, row_at(block, 3 * units + unit, column), d_past)
    write(given.d_own, gate_at, d_reset)
    write(given.d_own, gate_at + units, d_update)
    write(given.d_own, gate_at + 2 * units, d_new)
    write(given.d_past, gate_at, d_reset)
    write(given.d_past, gate_at + units, d_update)
    write(given.d_past, gate_at + 2 * units, d_past)


KERNEL = '''"""The steps of $kind layers on CUDA; written by warprun."""

from numba import cuda, float32

COLUMNS, APART, GATES, STATES, SHARES = $columns, $columns // $four, $gates, $states, $shares


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def forward(given):
    thread, threads, units = cuda.threadIdx.x, cuda.blockDim.x, given.units
    memory = cuda.shared.array(0, float32)
    block = Block(memory, COLUMNS, STATES * units, GATES * units, SHARES)
    begin = cuda.blockIdx.x * COLUMNS
    n = min(COLUMNS, given.sequences - begin)
    tiles, terms = GATES * units // TALL * APART, units // SHARES
    share = thread // tiles
    out, mine = thread % tiles // APART * TALL, thread % tiles % APART
    for item in range(thread, units * COLUMNS, threads):
        unit, column = unit_of(item, COLUMNS), column_of(item, COLUMNS)
        if column < n:
            remember(given, block, unit, column, begin + column, 0, read(given.first, (begin + column) * units + unit))
            ${kind}_start(given, block, unit, column, begin + column)
        else:  # columns without a sequence
            write(memory, unit * COLUMNS + column, float32(0.0))
    cuda.syncthreads()
    for t in range(given.steps):
        if share < SHARES:
            w_at, x_at = share * terms * GATES * units + out, share * terms * COLUMNS + mine
            y = tile(given.weights, w_at, GATES * units, memory, x_at, COLUMNS, terms)
            write_rows(memory, (block.sums + share * block.gates + out) * COLUMNS + mine, COLUMNS, TALL, y)
        cuda.syncthreads()
        for item in range(thread, units * COLUMNS, threads):
            unit, column = unit_of(item, COLUMNS), column_of(item, COLUMNS)
            if column < n:
                ${kind}_forward(given, block, unit, column, begin + column, t)
        cuda.syncthreads()


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def backward(given):
    thread, threads, units = cuda.threadIdx.x, cuda.blockDim.x, given.units
    memory = cuda.shared.array(0, float32)
    block = Block(memory, COLUMNS, units, GATES * units, SHARES)
    begin = cuda.blockIdx.x * COLUMNS
    n = min(COLUMNS, given.sequences - begin)
    tiles, terms = GATES * units // TALL * APART, units // SHARES
    # A thread that has no share computes another's, and writes nothing.
    share = min(thread // tiles, SHARES - 1)
    out, mine = thread % tiles // APART * TALL, thread % tiles % APART
    first, to = out // units * units + share * terms, out % units
    for item in range(thread, (1 + GATES) * units * COLUMNS, threads):
        write(memory, item, float32(0.0))
    cuda.syncthreads()
    for back in range(given.steps):
        t = given.steps - 1 - back
        for item in range(thread, units * COLUMNS, threads):
            unit, column = unit_of(item, COLUMNS), column_of(item, COLUMNS)
            if column < n:
                d_output = read(given.slope, (t * given.sequences + begin + column) * units + unit)
                if goes_on(given, t + 1, begin + column):
                    for each in range(SHARES * GATES):
                        d_output += read(memory, row_at(block, (1 + each) * units + unit, column))
                ${kind}_backward(given, block, unit, column, begin + column, t, d_output)
        cuda.syncthreads()
        y = tile(given.weights, first * units + to, units, memory, (units + first) * COLUMNS + mine, COLUMNS, terms)
        cuda.syncthreads()
        # The shares take the place of the slopes, which all threads have read.
        if thread < SHARES * tiles:
            write_rows(memory, (units + share * block.gates + out) * COLUMNS + mine, COLUMNS, TALL, y)
        cuda.syncthreads()
'''
"""The kernels of a type of network, a number of columns and one of shares."""
COMMON = (unit_of, column_of, row_at, goes_on, tile, remember, read, write, write_rows)
"""Functions that the kernels of all types call."""
OWN = {"lstm": (lstm_start, lstm_forward, lstm_backward), "gru": (gru_start, gru_forward, gru_backward)}
"""Those of a type."""


@cache
def kernel_module(kind: str, columns: int, shares: int) -> ModuleType:
    """Return the kernels of a type of network for blocks of so many columns, whose products have so many shares."""
    numbers = {"columns": columns, "four": FOUR, "gates": GATES[kind], "states": STATES[kind], "shares": shares}
    source = fill(KERNEL, kind=kind, **{name: str(number) for name, number in numbers.items()})
    names: dict[str, object] = {f.__name__: f for f in (*COMMON, *OWN[kind])}
    return module_for(f"{kind}_cuda", source, names | {"Block": Block, "BOUND": BOUND, "TALL": TALL})


class CudaRecurrence:
    """The two kernels of one kind of layer."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def weights(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights of what is remembered in the order of each pass."""
        if recurrent_why_not(weights.shape[1]):
            return weights.T.contiguous(), weights
        return recurrent_tensor.words(self.kind, weights)

    def run(self, name: str, shape: torch.Size, *tensors: torch.Tensor) -> None:
        """Go through the steps of all columns in one launch, see `Recurrence`."""
        _, sequences, units = shape
        flat = (tensor.view(-1) for tensor in tensors)
        given = (Forward if name == "forward" else Backward)._make((*flat, *shape))
        if recurrent_why_not(units):
            module, grid, shared_bytes = self._in_float32(sequences, units, tensors[0].device)
        else:
            module, grid, shared_bytes = recurrent_tensor.launched(self.kind, name, sequences, units)
        launch(module, name, grid, (on_device(given),), shared_bytes)

    def gradients(self, x: torch.Tensor, before: torch.Tensor, d_own: torch.Tensor, d_past: torch.Tensor) -> Gradients:
        """Return the gradients of the parameters, see `Recurrence`: by torch if tensor cores cannot, or not for so many inputs."""
        inputs, units = x.shape[1], before.shape[1]
        if recurrent_why_not(units) or not recurrent_slopes.columns_for(self.kind, inputs, units):
            return gradients(x, before, d_own, d_past)
        return recurrent_slopes.weight_slopes_of(self.kind, inputs, units, x.device)(x, before, d_own, d_past)

    def _in_float32(self, sequences: int, units: int, device: torch.device) -> tuple[ModuleType, tuple[int, int], int]:
        """Return the kernels, grid and shared memory of a launch."""
        # Few sequences are spread over all multiprocessors, and then over threads: a step takes as long as its product and formulas.
        rows = recurrent_rows(self.kind, units)
        columns = FLOATS.columns_for(rows, min(MOST_COLUMNS, -(-sequences // multiprocessors(device))))
        tiles, more = GATES[self.kind] * units // TALL * (columns // FOUR), GATES[self.kind] * units
        fitting = (n for n in SHARES if n * tiles <= MOST_THREADS and FLOATS.columns_for(rows + (n - 1) * more, columns) == columns)
        shares = max(fitting, default=1)
        grid = -(-sequences // columns), -(-shares * tiles // WARP) * WARP
        return kernel_module(self.kind, columns, shares), grid, 4 * (rows + (shares - 1) * more) * columns


kernels_of = cache(CudaRecurrence)
"""The kernels of a type of network."""


def layer(cell: Cell, x: torch.Tensor, keeps: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the outputs [T, B, U] of a layer and the parts of its carry after each step, see `recurrent.LayerOverSteps`."""
    return over_steps(kernels_of, cell, x, keeps, first)


def compute_by_kernels(module: nn.Module) -> None:
    """Let kernels compute the recurrent layers of all networks in `module` that fit into shared memory, instead of torch."""
    compute(module, layer, lambda kind, units: units % KERNEL_UNITS == 0 and FLOATS.columns_for(recurrent_rows(kind, units), 1) > 0)
