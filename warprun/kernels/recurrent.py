"""Recurrent layers over the steps of sequences: LSTM and GRU, forward and backward. Functions for kernels.

The formulas of a cell are in `warprun.kernels.cells`. Sequences do not depend on each other, so a tile of TILE sequences goes
through all of its steps, and what it computes with stays in the first two caches: the weights, what it remembers, and backward the
gradient of the weights, to which each step adds a sum over TILE sequences from registers.

A step *sees* its inputs, filled up to a multiple of NARROW numbers, and behind them what the layer remembers of its outputs: K numbers
of a sequence. From these come BLOCKS blocks of sums (`warprun.kernels.rows`). Each is one of the products of a gate, or the sum of both, so
LSTM has the gates input, forget, new and output, and GRU reset, update and the two products of new, which reset stands between.

    keeps    [T, B]         0 where a sequence begins anew with a step, else 1
    x        [T, B, I]      inputs
    extra    [T, B, U]      LSTM: the cells after each step; GRU: the outputs
    seen     [T B K]        flat, tile after tile: [step, sequence, number]
    gates    [T B 4 U]      flat, tile after tile: [step, block, sequence, unit]; sums, then the gates themselves
    work                    memory of a thread, `work_size`
"""

from __future__ import annotations

import numpy as np

from warprun.kernels.cells import gru_new, gru_output, gru_slopes, lstm_cell, lstm_cell_slope, lstm_output, lstm_slopes
from warprun.kernels.rows import TILE, add_gradient, weigh, weigh_back
from warprun.math import sigmoid, tanh

float32 = np.float32

BLOCKS = 4


def work_size(units: int, width: int) -> int:
    """Return the numbers of `work` for layers of `units` units whose steps see `width` numbers."""
    return TILE * (width + (BLOCKS + 4) * units)


def recall(t, begin, rows, keeps, initial, states, into, stride):
    """Write what a tile remembers before step `t` of `states` [T, B, U], before step 0 `initial`, to rows of `into`, `stride` apart."""
    units = states.shape[2]
    for r in range(rows):
        row = into[r * stride : r * stride + units]
        past = initial[begin + r] if t == 0 else states[t - 1, begin + r]
        keep = keeps[t, begin + r] != 0.0
        for m in range(units):
            row[m] = past[m] if keep else float32(0.0)


def see(t, begin, rows, x, keeps, initial, output, now):
    """Write what a tile sees in step `t` to `now` [rows * K]."""
    inputs, units = x.shape[2], output.shape[2]
    width = now.size // rows
    for r in range(rows):
        row, given = now[r * width : (r + 1) * width - units], x[t, begin + r]
        for m in range(inputs):
            row[m] = given[m]
        row[inputs:] = float32(0.0)
    recall(t, begin, rows, keeps, initial, output, now[width - units :], width)


def squash(values):
    """Replace numbers by their logistic function."""
    for m in range(values.size):
        values[m] = sigmoid(values[m])


def lstm_gates(gate, before, cell, out):
    """Replace sums of LSTM cells by gates, and write the cells after the step and their outputs, all [rows * U]."""
    size = before.size
    squash(gate[: 2 * size])
    squash(gate[3 * size :])
    i, f, new, o = gate[:size], gate[size : 2 * size], gate[2 * size : 3 * size], gate[3 * size :]
    for m in range(size):
        new[m] = tanh(new[m])
    for m in range(size):
        cell[m] = lstm_cell(before[m], i[m], f[m], new[m])
    for m in range(size):
        out[m] = lstm_output(o[m], tanh(cell[m]))


def gru_gates(gate, before, cell, out):
    """Replace sums of GRU cells by gates, and write their outputs, all [rows * U]; the second part of new stays a sum."""
    size = before.size
    squash(gate[: 2 * size])
    reset, update, new, past = gate[:size], gate[size : 2 * size], gate[2 * size : 3 * size], gate[3 * size :]
    for m in range(size):
        new[m] = tanh(gru_new(new[m], reset[m], past[m]))
    for m in range(size):
        out[m] = gru_output(update[m], new[m], before[m])


def lstm_gate_slopes(gate, d_gates, before, cell, d_out, d_state, squashed):
    """Write the slopes of the sums from those of outputs and cells, and replace the latter by those of the cells before."""
    size = before.size
    i, f, new, o = gate[:size], gate[size : 2 * size], gate[2 * size : 3 * size], gate[3 * size :]
    d_i, d_f, d_new, d_o = d_gates[:size], d_gates[size : 2 * size], d_gates[2 * size : 3 * size], d_gates[3 * size :]
    for m in range(size):
        squashed[m] = tanh(cell[m])
    for m in range(size):
        d_state[m] = lstm_cell_slope(d_state[m], d_out[m], o[m], squashed[m])
    for m in range(size):
        d_i[m] = lstm_slopes(d_out[m], d_state[m], i[m], f[m], new[m], o[m], before[m], squashed[m])[0]
    for m in range(size):
        d_f[m] = lstm_slopes(d_out[m], d_state[m], i[m], f[m], new[m], o[m], before[m], squashed[m])[1]
    for m in range(size):
        d_new[m] = lstm_slopes(d_out[m], d_state[m], i[m], f[m], new[m], o[m], before[m], squashed[m])[2]
    for m in range(size):
        d_o[m] = lstm_slopes(d_out[m], d_state[m], i[m], f[m], new[m], o[m], before[m], squashed[m])[3]
    for m in range(size):
        d_state[m] = lstm_slopes(d_out[m], d_state[m], i[m], f[m], new[m], o[m], before[m], squashed[m])[4]


def gru_gate_slopes(gate, d_gates, before, cell, d_out, d_state, squashed):
    """Write the slopes of the sums from those of outputs, and to `d_state` those of the outputs before by themselves."""
    size = before.size
    reset, update, new, past = gate[:size], gate[size : 2 * size], gate[2 * size : 3 * size], gate[3 * size :]
    d_reset, d_update, d_new, d_past = d_gates[:size], d_gates[size : 2 * size], d_gates[2 * size : 3 * size], d_gates[3 * size :]
    for m in range(size):
        d_out[m] += d_state[m]
    for m in range(size):
        d_reset[m] = gru_slopes(d_out[m], reset[m], update[m], new[m], past[m], before[m])[0]
    for m in range(size):
        d_update[m] = gru_slopes(d_out[m], reset[m], update[m], new[m], past[m], before[m])[1]
    for m in range(size):
        d_new[m] = gru_slopes(d_out[m], reset[m], update[m], new[m], past[m], before[m])[2]
    for m in range(size):
        d_past[m] = gru_slopes(d_out[m], reset[m], update[m], new[m], past[m], before[m])[3]
    for m in range(size):
        d_state[m] = gru_slopes(d_out[m], reset[m], update[m], new[m], past[m], before[m])[4]


def forward(part, compute_gates, x, keeps, weights, bias, blocks, initial, initial_extra, seen, gates, output, extra, work):
    """Take one tile through all steps; `weights` [gates, K, U], `initial`, `initial_extra` [B, U]: `output` and `extra` before step 0."""
    (steps, count, units), width = output.shape, weights.shape[1]
    begin = part * TILE
    rows = min(TILE, count - begin)
    size = rows * units
    outputs, extras, before = output.reshape(output.size), extra.reshape(extra.size), work[:size]
    for t in range(steps):
        tile, at = begin * steps + t * rows, (t * count + begin) * units
        now, gate = seen[tile * width : (tile + rows) * width], gates[BLOCKS * tile * units : BLOCKS * (tile + rows) * units]
        see(t, begin, rows, x, keeps, initial, output, now)
        recall(t, begin, rows, keeps, initial_extra, extra, before, units)
        weigh(now, weights, bias, blocks, rows, gate)
        compute_gates(gate, before, extras[at : at + size], outputs[at : at + size])


def backward(part, compute_slopes, slope, keeps, weights, blocks, initial_extra, seen, gates, extra, d_x, d_weights, d_bias, work):
    """Take one tile back through all steps: write the slopes of its inputs, and add to the gradients of weights and biases.

    `slope` [T, B, U] are those of the outputs, `weights` and `d_weights` [gates * U, K], `d_bias` [BLOCKS, U].
    """
    (steps, count, units), width, inputs = extra.shape, weights.shape[1], d_x.shape[2]
    begin = part * TILE
    rows = min(TILE, count - begin)
    size = rows * units
    slopes, extras = slope.reshape(slope.size), extra.reshape(extra.size)
    d_gates, d_seen, rest = work[: BLOCKS * size], work[BLOCKS * size : BLOCKS * size + rows * width], work[BLOCKS * size + rows * width :]
    before, d_out, d_state, squashed = rest[:size], rest[size : 2 * size], rest[2 * size : 3 * size], rest[3 * size : 4 * size]
    d_out[:] = float32(0.0)
    d_state[:] = float32(0.0)
    for t in range(steps - 1, -1, -1):
        tile, at = begin * steps + t * rows, (t * count + begin) * units
        recall(t, begin, rows, keeps, initial_extra, extra, before, units)
        given = slopes[at : at + size]
        for m in range(size):
            d_out[m] += given[m]
        gate = gates[BLOCKS * tile * units : BLOCKS * (tile + rows) * units]
        compute_slopes(gate, d_gates, before, extras[at : at + size], d_out, d_state, squashed)
        add_gradient(d_gates, seen[tile * width :], blocks, rows, d_weights, d_bias)
        weigh_back(d_gates, weights, blocks, rows, units, d_seen)
        for r in range(rows):
            keep, row = keeps[t, begin + r], d_seen[r * width : (r + 1) * width]
            into, d_past = d_x[t, begin + r], d_out[r * units : (r + 1) * units]
            for m in range(inputs):
                into[m] = row[m]
            for m in range(units):
                d_past[m] = row[width - units + m] * keep
            d_past = d_state[r * units : (r + 1) * units]
            for m in range(units):
                d_past[m] *= keep


def lstm_forward(part, x, keeps, weights, bias, blocks, initial, initial_extra, seen, gates, output, extra, work):
    """Take one tile of an LSTM through all steps, see `forward`."""
    forward(part, lstm_gates, x, keeps, weights, bias, blocks, initial, initial_extra, seen, gates, output, extra, work)


def lstm_backward(part, slope, keeps, weights, blocks, initial_extra, seen, gates, extra, d_x, d_weights, d_bias, work):
    """Take one tile of an LSTM back through all steps, see `backward`."""
    backward(part, lstm_gate_slopes, slope, keeps, weights, blocks, initial_extra, seen, gates, extra, d_x, d_weights, d_bias, work)


def gru_forward(part, x, keeps, weights, bias, blocks, initial, initial_extra, seen, gates, output, extra, work):
    """Take one tile of a GRU through all steps, see `forward`; `extra` is `output`."""
    forward(part, gru_gates, x, keeps, weights, bias, blocks, initial, initial_extra, seen, gates, output, extra, work)


def gru_backward(part, slope, keeps, weights, blocks, initial_extra, seen, gates, extra, d_x, d_weights, d_bias, work):
    """Take one tile of a GRU back through all steps, see `backward`."""
    backward(part, gru_gate_slopes, slope, keeps, weights, blocks, initial_extra, seen, gates, extra, d_x, d_weights, d_bias, work)
