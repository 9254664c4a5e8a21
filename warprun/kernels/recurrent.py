"""Recurrent layers over the steps of sequences: LSTM and GRU, forward and backward. Functions for kernels.

The formulas of a cell are in `warprun.kernels.cells`. A loop over units writes one array, for LLVM vectorises no loop that writes many:
loops that take one number each of what a formula returns compute only that.

Sequences do not depend on each other, so a tile of TILE sequences goes through all of its steps while what it remembers, and
the weights from it to the gates, stay in the second-level cache. Only this recurrence is here: the products of the inputs of
all steps, and the gradients of the weights, are large products before and after it.

Arrays are rows [step, sequence, number]: the broadcast factors of `multiply` are what is remembered, and its columns the
numbers of a row, so these come in multiples of NARROW.

    gates   [T, B, G U]  the inputs' part of the gates, which the forward pass replaces by their values
    keeps   [T, B]       0 where a sequence begins anew with a step, else 1
    before  [T, B, U]    what a step remembers of the outputs before it
    extra   [T, B, U]    LSTM: the cells after each step; GRU: the past's part of the new gate
    work    [8 TILE U]   memory of a thread
"""

from __future__ import annotations

import numpy as np

from warprun.kernels.cells import gru_new, gru_output, gru_slopes, lstm_cell, lstm_cell_slope, lstm_output, lstm_slopes
from warprun.kernels.simd import multiply
from warprun.math import sigmoid, tanh

float32 = np.float32

TILE = 32
"""Sequences of a tile: enough to use what is loaded of the weights many times, few enough to share them between threads."""


def recall(t, begin, rows, keeps, initial, states, into):
    """Write what a tile remembers of `states` [T, B, U] before step `t` to `into` [rows * U]; before step 0 that is `initial` [B, U]."""
    units = states.shape[2]
    for r in range(rows):
        row = into[r * units : (r + 1) * units]
        past = initial[begin + r] if t == 0 else states[t - 1, begin + r]
        keep = keeps[t, begin + r] != 0.0
        for m in range(units):
            row[m] = past[m] if keep else float32(0.0)


def squash(values):
    """Replace numbers by their logistic function."""
    for m in range(values.size):
        values[m] = sigmoid(values[m])


def lstm_forward(part, gates, keeps, weights, bias, initial, initial_cell, before, output, extra, work, zeros):
    """Compute one tile of an LSTM; `weights` [U, 4 U]. The gates are input, forget, new and output, as in torch."""
    count, units, wide = gates.shape[1], before.shape[2], gates.shape[2]
    begin = part * TILE
    rows = min(TILE, count - begin)
    all_gates, all_before = gates.reshape(gates.size), before.reshape(before.size)
    all_output, all_extra = output.reshape(output.size), extra.reshape(extra.size)
    product, cells = work[: rows * wide], work[rows * wide : rows * (wide + units)]
    for t in range(keeps.shape[0]):
        at = t * count + begin
        past = all_before[at * units : (at + rows) * units]
        recall(t, begin, rows, keeps, initial, output, past)
        recall(t, begin, rows, keeps, initial_cell, extra, cells)
        multiply(past, units, 1, zeros, weights.reshape(weights.size), product, rows, units, wide)
        for r in range(rows):
            gate, own = all_gates[(at + r) * wide : (at + r + 1) * wide], product[r * wide : (r + 1) * wide]
            for m in range(wide):
                gate[m] += own[m] + bias[m]
            squash(gate[: 2 * units])
            squash(gate[3 * units :])
            new = gate[2 * units : 3 * units]
            for m in range(units):
                new[m] = tanh(new[m])
            cell, cell_before = all_extra[(at + r) * units : (at + r + 1) * units], cells[r * units : (r + 1) * units]
            for m in range(units):
                cell[m] = lstm_cell(cell_before[m], gate[m], gate[units + m], new[m])
            out = all_output[(at + r) * units : (at + r + 1) * units]
            for m in range(units):
                out[m] = lstm_output(gate[3 * units + m], cell[m])


def lstm_backward(part, slope, gates, keeps, weights, initial, initial_cell, before, extra, d_own, d_past, work, zeros):
    """Compute the derivatives by the gates' arguments of one tile of an LSTM, from those by its outputs, `slope` [T, B, U].

    `weights` [4 U, U]. `d_own` and `d_past` [T, B, 4 U] are the same array.
    """
    count, units, wide = gates.shape[1], before.shape[2], gates.shape[2]
    begin = part * TILE
    rows = min(TILE, count - begin)
    size = rows * units
    all_gates, all_slopes = gates.reshape(gates.size), slope.reshape(slope.size)
    all_extra, all_d = extra.reshape(extra.size), d_own.reshape(d_own.size)
    cells, d_outputs, d_cells, squashed = work[:size], work[size : 2 * size], work[2 * size : 3 * size], work[3 * size : 3 * size + units]
    d_outputs[:] = float32(0.0)
    d_cells[:] = float32(0.0)
    for t in range(keeps.shape[0] - 1, -1, -1):
        at = t * count + begin
        recall(t, begin, rows, keeps, initial_cell, extra, cells)
        for r in range(rows):
            gate, d_gate = all_gates[(at + r) * wide : (at + r + 1) * wide], all_d[(at + r) * wide : (at + r + 1) * wide]
            i, f, new, o = gate[:units], gate[units : 2 * units], gate[2 * units : 3 * units], gate[3 * units :]
            d_i, d_f, d_new, d_o = d_gate[:units], d_gate[units : 2 * units], d_gate[2 * units : 3 * units], d_gate[3 * units :]
            d_out, d_cell = d_outputs[r * units : (r + 1) * units], d_cells[r * units : (r + 1) * units]
            cell, cell_before = all_extra[(at + r) * units : (at + r + 1) * units], cells[r * units : (r + 1) * units]
            given = all_slopes[(at + r) * units : (at + r + 1) * units]
            for m in range(units):
                d_out[m] += given[m]
            for m in range(units):
                squashed[m] = tanh(cell[m])
            for m in range(units):
                d_cell[m] = lstm_cell_slope(d_cell[m], d_out[m], o[m], squashed[m])
            for m in range(units):
                d_i[m] = lstm_slopes(d_out[m], d_cell[m], i[m], f[m], new[m], o[m], cell_before[m], squashed[m])[0]
            for m in range(units):
                d_f[m] = lstm_slopes(d_out[m], d_cell[m], i[m], f[m], new[m], o[m], cell_before[m], squashed[m])[1]
            for m in range(units):
                d_new[m] = lstm_slopes(d_out[m], d_cell[m], i[m], f[m], new[m], o[m], cell_before[m], squashed[m])[2]
            for m in range(units):
                d_o[m] = lstm_slopes(d_out[m], d_cell[m], i[m], f[m], new[m], o[m], cell_before[m], squashed[m])[3]
            keep = keeps[t, begin + r]
            for m in range(units):
                d_cell[m] = lstm_slopes(d_out[m], d_cell[m], i[m], f[m], new[m], o[m], cell_before[m], squashed[m])[4] * keep
        if t > 0:
            multiply(all_d[at * wide :], wide, 1, zeros, weights.reshape(weights.size), d_outputs, rows, wide, units)
            for r in range(rows):
                if keeps[t, begin + r] == 0.0:
                    d_outputs[r * units : (r + 1) * units] = float32(0.0)


def gru_forward(part, gates, keeps, weights, bias, initial, initial_cell, before, output, extra, work, zeros):
    """Compute one tile of a GRU; `weights` [U, 3 U]. The gates are reset, update and new, as in torch; `initial_cell` is not used."""
    count, units, wide = gates.shape[1], before.shape[2], gates.shape[2]
    begin = part * TILE
    rows = min(TILE, count - begin)
    all_gates, all_before = gates.reshape(gates.size), before.reshape(before.size)
    all_output, all_extra = output.reshape(output.size), extra.reshape(extra.size)
    product = work[: rows * wide]
    for t in range(keeps.shape[0]):
        at = t * count + begin
        past = all_before[at * units : (at + rows) * units]
        recall(t, begin, rows, keeps, initial, output, past)
        multiply(past, units, 1, zeros, weights.reshape(weights.size), product, rows, units, wide)
        for r in range(rows):
            gate, own = all_gates[(at + r) * wide : (at + r + 1) * wide], product[r * wide : (r + 1) * wide]
            for m in range(2 * units):
                gate[m] += own[m] + bias[m]
            squash(gate[: 2 * units])
            new, new_past = gate[2 * units :], all_extra[(at + r) * units : (at + r + 1) * units]
            for m in range(units):
                new_past[m] = own[2 * units + m] + bias[2 * units + m]
            for m in range(units):
                new[m] = gru_new(new[m], gate[m], new_past[m])
            out, out_before = all_output[(at + r) * units : (at + r + 1) * units], past[r * units : (r + 1) * units]
            for m in range(units):
                out[m] = gru_output(gate[units + m], new[m], out_before[m])


def gru_backward(part, slope, gates, keeps, weights, initial, initial_cell, before, extra, d_own, d_past, work, zeros):
    """Compute the derivatives by both parts of the gates' arguments of one tile of a GRU, see `lstm_backward`; `weights` [3 U, U]."""
    count, units, wide = gates.shape[1], before.shape[2], gates.shape[2]
    begin = part * TILE
    rows = min(TILE, count - begin)
    size = rows * units
    all_gates, all_slopes, all_before = gates.reshape(gates.size), slope.reshape(slope.size), before.reshape(before.size)
    all_extra, all_own, all_past = extra.reshape(extra.size), d_own.reshape(d_own.size), d_past.reshape(d_past.size)
    d_outputs, direct = work[:size], work[size : 2 * size]
    d_outputs[:] = float32(0.0)
    direct[:] = float32(0.0)
    for t in range(keeps.shape[0] - 1, -1, -1):
        at = t * count + begin
        for r in range(rows):
            gate, own = all_gates[(at + r) * wide : (at + r + 1) * wide], all_own[(at + r) * wide : (at + r + 1) * wide]
            past = all_past[(at + r) * wide : (at + r + 1) * wide]
            reset, update, new = gate[:units], gate[units : 2 * units], gate[2 * units :]
            d_reset, d_update, d_new, d_new_past = own[:units], own[units : 2 * units], own[2 * units :], past[2 * units :]
            d_out, d_direct = d_outputs[r * units : (r + 1) * units], direct[r * units : (r + 1) * units]
            new_past, out_before = all_extra[(at + r) * units : (at + r + 1) * units], all_before[(at + r) * units : (at + r + 1) * units]
            given = all_slopes[(at + r) * units : (at + r + 1) * units]
            for m in range(units):
                d_out[m] += d_direct[m] + given[m]
            for m in range(units):
                d_reset[m] = gru_slopes(d_out[m], reset[m], update[m], new[m], new_past[m], out_before[m])[0]
            for m in range(units):
                d_update[m] = gru_slopes(d_out[m], reset[m], update[m], new[m], new_past[m], out_before[m])[1]
            for m in range(units):
                d_new[m] = gru_slopes(d_out[m], reset[m], update[m], new[m], new_past[m], out_before[m])[2]
            for m in range(units):
                d_new_past[m] = gru_slopes(d_out[m], reset[m], update[m], new[m], new_past[m], out_before[m])[3]
            for m in range(2 * units):
                past[m] = own[m]
            keep = keeps[t, begin + r]
            for m in range(units):
                d_direct[m] = gru_slopes(d_out[m], reset[m], update[m], new[m], new_past[m], out_before[m])[4] * keep
        if t > 0:
            multiply(all_past[at * wide :], wide, 1, zeros, weights.reshape(weights.size), d_outputs, rows, wide, units)
            for r in range(rows):
                if keeps[t, begin + r] == 0.0:
                    d_outputs[r * units : (r + 1) * units] = float32(0.0)
