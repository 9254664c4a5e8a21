"""The steps of recurrent layers on tensor cores: what `kernels.cuda.recurrent` computes, in fewer instructions.

A block takes COLUMNS sequences through all steps, a warp computes ROWS units of them. Its product has a tile of ROWS rows for each gate of
these units, so a lane has all gates of its units and columns in registers, and computes the formulas of `kernels.cells` there. What a step
remembers goes through shared memory, because the next product needs it of all units, as words of two bfloat16:

    forward     outputs, those of a step and of the next in turn, [2 U] rows, and LSTM: cells [U]; a barrier a step
    backward    slopes of the past's part of the gates, [G U] rows; two barriers a step

Slopes that go to the step before by themselves stay in registers. With U / ROWS warps and 128 registers of a thread, more than MOST_UNITS
units (`simulation.cuda_layers`) have not enough registers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from warprun.kernels import warp, warp_values
from warprun.kernels.cells import gru_new, gru_output, gru_slopes, lstm_cell, lstm_cell_slope, lstm_output, lstm_slopes
from warprun.kernels.mlp import LINEAR, Layer
from warprun.kernels.mlp_tensor import FOUR, ONE, STEP, TWO, pack_backward, pack_layers
from warprun.kernels.warp import COLUMNS, ROWS, TERMS
from warprun.kernels.warp_values import term_of_words
from warprun.learning.kernels.cuda.tiles import barrier
from warprun.learning.settings.networks import GATES, STATES
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import SIMULATED, WARP, module_for
from warprun.simulation.cuda_layers import TENSOR_CORES, pack, packing_module

Numbers: TypeAlias = NDArray[np.int64]

float32 = np.float32

THREE = ONE + TWO
"""Accumulators of three times ROWS rows."""
STRIDE = TENSOR_CORES.stride(COLUMNS)
"""Of a block."""
BOUND = {} if SIMULATED else {"max_registers": 128}
"""Option of its kernels: then two blocks of 256 threads fit on a multiprocessor."""


def kept(keep, x):
    """Return what a sequence remembers of `x`; `keep`: 0 if it forgets all."""
    return x if keep != 0.0 else float32(0.0)


def plus(x, y):
    """Return the sum of two numbers."""
    return x + y


def sum_of_three(x, y, z):
    """Return the sum of three numbers."""
    return x + y + z


def sum_of_four(x, y, z, w):
    """Return the sum of four numbers."""
    return (x + y) + (z + w)


def keeps_of(given, at, left):
    """Return of each number of ONE whether its sequence remembers what was before a step, of which `at` is the index of its columns."""
    return warp_values.gather(ONE, given.keeps, at, 0, 0, 1, left)


def of_units(units, array, at, left):
    """Return numbers of an array [..., U] for the units and columns of a lane, from index `at` on."""
    return warp_values.gather(ONE, array, at, 0, 1, units, left)


def place_of(row, lane):
    """Return the index of a row and the first column of a lane in the block."""
    return row * STRIDE + lane % 4 * 2


def keep_words(y, units, block, first, unit, lane):
    """Write numbers of the units and columns of a lane to the block as words, whose rows begin with `first`: [U / 2], then their rests."""
    at = place_of(first + unit // ROWS * 8 + lane // 4, lane)
    warp_values.store_words(y, block, at, units // 2 * STRIDE)


def past_bias(like, given, units, unit):
    """Return the biases of the past's part of as many gates as `like` has, in all columns."""
    return warp_values.gather(like, given.bias, unit, units, 1, 0, COLUMNS)


def past_products(y, given, units, block, first, unit, lane):
    """Add to the accumulators of gates the products of their weights and of what is remembered, whose rows begin with `first`."""
    steps = units // TERMS
    w, x = unit // ROWS * steps * STEP + lane * 4, (first + lane % 4) * STRIDE + lane // 4
    for _ in range(given.units // TERMS):  # a variable: unrolled, it would keep more words in registers than there are
        y = warp_values.products_of_words(y, given.weights, w, steps * steps * STEP, block, x, STRIDE, units // 2 * STRIDE, 0)
        w += STEP
        x += TERMS // 2 * STRIDE
    return y


def past_slopes(y, gates, given, units, block, unit, lane):
    """Return for each gate the slopes of what is remembered, for the slopes of the gates in the block."""
    steps = units // TERMS
    w, x = unit // ROWS * gates * steps * STEP + lane * 4, lane % 4 * STRIDE + lane // 4
    for _ in range(given.units // TERMS):
        y = warp_values.products_of_words(y, given.weights, w, steps * STEP, block, x, STRIDE, units // 2 * STRIDE, units * STRIDE)
        w += STEP
        x += TERMS // 2 * STRIDE
    return y


def lstm_start(given, units, block, unit, at, lane, left):
    """Write the cells before the first step to the block."""
    warp.store(of_units(units, given.first_cell, at, left), block, place_of(2 * units + unit, lane), STRIDE, ROWS)


def lstm_forward(given, units, block, first, unit, at, lane, left, keeps, before):
    """Compute a step of the units and columns of a lane; return the outputs."""
    gate_at, place = at * 4 * units + unit, place_of(2 * units + unit, lane)
    own, bias = warp_values.gather(FOUR, given.gates, gate_at, units, 1, 4 * units, left), past_bias(FOUR, given, units, unit)
    y = past_products(warp_values.each(plus, (own, bias)), given, units, block, first, unit, lane)
    i, f = warp_values.sigmoid(y[0:8]), warp_values.sigmoid(y[8:16])
    new, o = warp.tanh(y[16:24]), warp_values.sigmoid(y[24:32])
    cell = warp_values.each(kept, (keeps, warp.load(ONE, block, place, STRIDE, ROWS)))
    cell = warp_values.each(lstm_cell, (cell, i, f, new))
    warp.store(cell, block, place, STRIDE, ROWS)
    warp_values.scatter(i + f + new + o, given.gates, gate_at, units, 4 * units, left)
    warp_values.scatter(cell, given.extra, at * units + unit, 0, units, left)
    return warp_values.each(lstm_output, (o, warp.tanh(cell)))


def lstm_backward(given, units, block, unit, t, at, lane, left, keeps, slope, later):
    """Compute the slopes of a step; return those of what is remembered by the step before, of outputs and of cells."""
    gate_at, number = at * 4 * units + unit, at * units + unit
    gates = warp_values.gather(FOUR, given.gates, gate_at, units, 1, 4 * units, left)
    i, f, new, o = gates[0:8], gates[8:16], gates[16:24], gates[24:32]
    if t == 0:
        before = of_units(units, given.first_cell, number, left)
    else:
        before = of_units(units, given.extra, number - given.sequences * units, left)
    before = warp_values.each(kept, (keeps, before))
    squashed = warp.tanh(of_units(units, given.extra, number, left))
    d_cell = warp_values.each(lstm_cell_slope, (later, slope, o, squashed))
    d_i, d_f, d_new, d_o, d_before = warp_values.each(lstm_slopes, (slope, d_cell, i, f, new, o, before, squashed))
    warp_values.scatter(d_i + d_f + d_new + d_o, given.d_own, gate_at, units, 4 * units, left)
    keep_words(d_i, units, block, 0, unit, lane)
    keep_words(d_f, units, block, units, unit, lane)
    keep_words(d_new, units, block, 2 * units, unit, lane)
    keep_words(d_o, units, block, 3 * units, unit, lane)
    barrier()
    y = past_slopes(FOUR, 4, given, units, block, unit, lane)
    return warp_values.each(sum_of_four, (y[0:8], y[8:16], y[16:24], y[24:32])), d_before


def gru_start(given, units, block, unit, at, lane, left):
    """Do nothing: all that the first step remembers are outputs."""


def gru_forward(given, units, block, first, unit, at, lane, left, keeps, before):
    """Compute a step of the units and columns of a lane; return the outputs."""
    gate_at = at * 3 * units + unit
    own, bias = warp_values.gather(TWO, given.gates, gate_at, units, 1, 3 * units, left) + ONE, past_bias(THREE, given, units, unit)
    y = past_products(warp_values.each(plus, (own, bias)), given, units, block, first, unit, lane)
    reset, update, past = warp_values.sigmoid(y[0:8]), warp_values.sigmoid(y[8:16]), y[16:24]
    own = warp_values.gather(ONE, given.gates, gate_at + 2 * units, 0, 1, 3 * units, left)
    new = warp.tanh(warp_values.each(gru_new, (own, reset, past)))
    warp_values.scatter(reset + update + new, given.gates, gate_at, units, 3 * units, left)
    warp_values.scatter(past, given.extra, at * units + unit, 0, units, left)
    return warp_values.each(gru_output, (update, new, before))


def gru_backward(given, units, block, unit, t, at, lane, left, keeps, slope, later):
    """Compute the slopes of a step; return those of the outputs before: by the gates, and by themselves."""
    gate_at, number = at * 3 * units + unit, at * units + unit
    gates = warp_values.gather(THREE, given.gates, gate_at, units, 1, 3 * units, left)
    past, before = of_units(units, given.extra, number, left), of_units(units, given.before, number, left)
    slope = warp_values.each(plus, (slope, later))
    d_reset, d_update, d_new, d_past, d_before = warp_values.each(gru_slopes, (slope, gates[0:8], gates[8:16], gates[16:24], past, before))
    warp_values.scatter(d_reset + d_update + d_new, given.d_own, gate_at, units, 3 * units, left)
    warp_values.scatter(d_reset + d_update + d_past, given.d_past, gate_at, units, 3 * units, left)
    keep_words(d_reset, units, block, 0, unit, lane)
    keep_words(d_update, units, block, units, unit, lane)
    keep_words(d_past, units, block, 2 * units, unit, lane)
    barrier()
    y = past_slopes(THREE, 3, given, units, block, unit, lane)
    return warp_values.each(sum_of_three, (y[0:8], y[8:16], y[16:24])), d_before


KERNEL = '''"""The steps of $kind layers on tensor cores; written by warprun."""

from numba import cuda, float32

UNITS = $units


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def forward(given):
    count, lane = given.sequences, cuda.threadIdx.x % WARP
    memory = cuda.shared.array(0, float32)
    unit, column = cuda.threadIdx.x // WARP * ROWS + lane // 4, lane % 4 * 2
    row = cuda.blockIdx.x * COLUMNS + column
    left = count - row
    output = of_units(UNITS, given.first, row * UNITS + unit, left)
    ${kind}_start(given, UNITS, memory, unit, row * UNITS + unit, lane, left)
    for t in range(given.steps):
        at, first = t * count + row, t % 2 * UNITS
        keeps = keeps_of(given, at, left)
        output = each(kept, (keeps, output))
        keep_words(output, UNITS, memory, first, unit, lane)
        scatter(output, given.before, at * UNITS + unit, 0, UNITS, left)
        cuda.syncthreads()
        output = ${kind}_forward(given, UNITS, memory, first, unit, at, lane, left, keeps, output)
        scatter(output, given.output, at * UNITS + unit, 0, UNITS, left)


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def backward(given):
    count, lane = given.sequences, cuda.threadIdx.x % WARP
    memory = cuda.shared.array(0, float32)
    unit, column = cuda.threadIdx.x // WARP * ROWS + lane // 4, lane % 4 * 2
    row = cuda.blockIdx.x * COLUMNS + column
    left = count - row
    slope, later = ONE, ONE
    for back in range(given.steps):
        t = given.steps - 1 - back
        at = t * count + row
        keeps = keeps_of(given, at, left)
        slope = each(plus, (of_units(UNITS, given.slope, at * UNITS + unit, left), slope))
        slope, later = ${kind}_backward(given, UNITS, memory, unit, t, at, lane, left, keeps, slope, later)
        slope, later = each(kept, (keeps, slope)), each(kept, (keeps, later))
        cuda.syncthreads()
'''
"""The kernels of a type of network and a number of units, by which addresses are constants, else registers do not suffice."""
OWN = {"lstm": (lstm_start, lstm_forward, lstm_backward), "gru": (gru_start, gru_forward, gru_backward)}
"""Functions that the kernels of a type call, beside those of all types."""


@cache
def kernel_module(kind: str, units: int) -> ModuleType:
    """Return the kernels of a type of network and a number of units."""
    functions = (kept, plus, keeps_of, of_units, keep_words, warp_values.each, warp_values.scatter, *OWN[kind])
    names: dict[str, object] = {f.__name__: f for f in functions}
    numbers = {"COLUMNS": COLUMNS, "ROWS": ROWS, "STRIDE": STRIDE, "WARP": WARP, "ONE": ONE}
    return module_for(f"{kind}_tensor_cuda", fill(KERNEL, kind=kind, units=str(units)), names | numbers | {"BOUND": BOUND})


def launched(kind: str, name: str, sequences: int, units: int) -> tuple[ModuleType, tuple[int, int], int]:
    """Return the kernels, grid and shared memory of a launch of one of them."""
    rows = (1 + STATES[kind] if name == "forward" else GATES[kind]) * units
    return kernel_module(kind, units), (-(-sequences // COLUMNS), units // ROWS * WARP), 4 * rows * STRIDE


@cache
def sources(kind: str, units: int, device: torch.device) -> tuple[torch.Tensor, int]:
    """Return the sources of the words of a layer's weights of what it remembers, forward and then backward, and how many are forward."""
    table = [Layer(0, 0, units, GATES[kind] * units, 0, 0, LINEAR)]
    (forward, of_layers), (backward, _) = pack_layers(table), pack_backward(table)
    forward = forward[: of_layers[0][1]]  # without biases
    found = [ordered(forward, lambda gate, unit: (gate, term_of_words(unit)), units)]
    found.append(ordered(backward, lambda gate, unit: (term_of_words(gate), unit), units))
    return torch.from_numpy(np.concatenate(found)).to(device), len(forward)


def ordered(given: np.ndarray, order: Callable[[Numbers, Numbers], tuple[Numbers, Numbers]], units: int) -> NDArray[np.int32]:
    """Return sources of words of weights [G U, U] in another order: in the place of those with a row and a column stand others."""
    numbers = np.where(given < 0, ~given, given).astype(np.int64)
    row, column = order(numbers // units, numbers % units)
    found = row * units + column
    return np.where(given < 0, ~found, found).astype(np.int32)


def words(kind: str, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights [G U, U] of what a layer remembers as words, in the order of each pass."""
    found, forward = sources(kind, weights.shape[1], weights.device)
    into = torch.empty(len(found), device=weights.device)
    pack(packing_module(TENSOR_CORES), weights.detach().view(-1), found, into)
    return into[:forward], into[forward:]
