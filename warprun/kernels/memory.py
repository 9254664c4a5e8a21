"""Networks with memory on blocks of columns: steps forward, and back through time. Functions for kernels.

A network is a table of layers as in `warprun.kernels.mlp`. A recurrent layer is one row of it, with LSTM or GRU for an activation: `weight`
and `bias` are the offsets of what its inputs are multiplied by, [G U, n_in] and [G U], each followed by that for what it remembers,
[G U, U] and [G U], for the G gates of torch in their order. From `out_row` on a block has these rows of it:

    outputs  U
    cells    U, of an LSTM
    past     U: outputs of the step before, zeros where an episode begins
    gates    BLOCKS U, as in `warprun.kernels.recurrent`

Columns are sequences. For a gradient the blocks of all their steps lie side by side, [step, row, column], behind a block for the step
before the first one, of which only outputs and cells count. A rollout has one block, in which each step takes the place of the one before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warprun.kernels.mlp import Memory, Network, backward, forward, normalize, width_of
from warprun.kernels.recurrent import BLOCKS, gru_gate_slopes, gru_gates, lstm_gate_slopes, lstm_gates
from warprun.kernels.simd import COLUMNS, add_product, add_row_sums, aligned_zeros, multiply, outer

LSTM, GRU = 3, 4
"""Recurrent layers, beside the activations of `warprun.kernels.mlp`."""
GATES = {LSTM: 4, GRU: 3}
"""Gates of a unit."""
STATES = {LSTM: 2, GRU: 1}
"""Numbers that a unit remembers."""

float32 = np.float32


def rows_of(kind: int, units: int) -> int:
    """Return the rows of a recurrent layer in a block."""
    return (STATES[kind] + 1 + BLOCKS) * units


def cells(layers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the recurrent layers of a table."""
    return layers[layers[:, 6] >= LSTM]


def memory_of(network: Network, threads: int, parts: int) -> Memory:
    """Return the memory of so many threads for steps of a network, each with so many blocks."""
    units = cells(network.layers)[:, 3]
    sizes = (BLOCKS * int(units.sum()), COLUMNS, parts * COLUMNS, int(units.max()) * COLUMNS) if len(units) else (0, 0, 0, 0)
    return Memory(*(aligned_zeros(threads, size) for size in sizes))


def states_of(kind):
    """Return the numbers that a unit remembers."""
    return 2 if kind == LSTM else 1


def add_biases(parameters, layers, biases):
    """Write what sums of recurrent layers begin with to `biases`, BLOCKS U numbers of each layer, one layer after the other."""
    at = 0
    for n in range(layers.shape[0]):
        if layers[n, 6] >= LSTM:
            units, gates = layers[n, 3], 4 if layers[n, 6] == LSTM else 3
            own, past = parameters[layers[n, 1] :], parameters[layers[n, 1] + gates * units :]
            shared = 4 * units if layers[n, 6] == LSTM else 2 * units
            for m in range(shared):
                biases[at + m] = own[m] + past[m]
            for m in range(shared, gates * units):
                biases[at + m] = own[m]
                biases[at + units + m] = past[m]
            at += BLOCKS * units


def recall(given, keep, into):
    """Write what columns remember of `given`, flat: zeros where `keep` [columns] is 0."""
    columns = keep.size
    for begin in range(0, into.size, columns):
        row, of_row = into[begin : begin + columns], given[begin : begin + columns]
        for c in range(columns):
            remembered = of_row[c]
            row[c] = remembered if keep[c] != float32(0.0) else float32(0.0)


def load_carry(network, given, block, c):
    """Write what a column remembers, `given` [C] (`mlp.Carry`), to column `c` of a block."""
    cell = 0
    for n in range(network.layers.shape[0]):
        if network.layers[n, 6] >= LSTM:
            first, at = network.layers[n, 5], network.carry.places[cell]
            for m in range(states_of(network.layers[n, 6]) * network.layers[n, 3]):
                block[first + m, c] = given[at + m]
            cell += 1


def store_carry(network, block, c, age, into):
    """Write what column `c` of a block remembers to `into` [C]; `age`: steps since all was forgotten, if `Carry.sequence` limits them."""
    cell = 0
    for n in range(network.layers.shape[0]):
        if network.layers[n, 6] >= LSTM:
            first, at = network.layers[n, 5], network.carry.places[cell]
            for m in range(states_of(network.layers[n, 6]) * network.layers[n, 3]):
                into[at + m] = block[first + m, c]
            cell += 1
    for place in network.carry.ages:
        into[place] = age


def forget_old(carry, keep, ages):
    """Set `keep` to 0 where all is forgotten after so many steps, and count the steps, both [column]."""
    if carry.sequence > 0:
        for c in range(keep.size):
            keep[c] = keep[c] if ages[c] < carry.sequence else float32(0.0)
            ages[c] = ages[c] * keep[c] + float32(1.0)


def step_after(network, block, carries, begin, count, memory, thread):
    """Compute the observations in `count` columns of a block, after the carries [C] in rows `begin` and following of `carries`."""
    columns = block.shape[1]
    keep, ages = memory.keep[thread][:columns], memory.ages[thread][:columns]
    add_biases(network.parameters, network.layers, memory.biases[thread])
    for c in range(columns):
        keep[c] = float32(1.0) if c < count else float32(0.0)
        ages[c] = float32(0.0)
    for c in range(count):
        load_carry(network, carries[begin + c], block, c)
        if network.carry.sequence > 0:
            ages[c] = carries[begin + c, network.carry.ages[0]]
    forget_old(network.carry, keep, ages)
    normalize(network, block)
    step_forward(network.parameters, network.layers, memory.biases[thread], block, block, keep, memory.work[thread])


def begin_tile(inference, thread, first, n_actors, terminated, truncated):
    """Write what the actors of a tile remember to their blocks, and to `Inference.first`: nothing where the last step ended an episode.

    `terminated`, `truncated` [lane] are those of the last step of the rollout before, `first` is the tile's first environment.
    """
    network, memory = inference.network, inference.memory
    add_biases(network.parameters, network.layers, memory.biases[thread])
    lanes, ages = terminated.size, memory.ages[thread]
    width = width_of(lanes)
    together, last = COLUMNS // width, inference.after.shape[0] - 1
    for m in range(ages.size):
        ages[m] = float32(0.0)
    for begin in range(0, n_actors, together):
        flat = inference.blocks[thread, begin // together]
        for m in range(flat.size):
            flat[m] = float32(0.0)
        actors = min(together, n_actors - begin)
        block = flat[: network.rows * actors * width].reshape(network.rows, actors * width)
        for a in range(actors):
            for lane in range(lanes):
                row = (first + lane) * n_actors + begin + a
                given, into = inference.after[last, row], inference.first[row]
                over = terminated[lane] | truncated[lane]
                for m in range(into.size):
                    into[m] = float32(0.0) if over else given[m]
                load_carry(network, into, block, a * width + lane)
                if network.carry.sequence > 0:
                    ages[begin // together * COLUMNS + a * width + lane] = into[network.carry.ages[0]]


def end_tile(inference, thread, first, lanes, n_actors):
    """Write what the actors of a tile remember after a rollout to `Inference.after`."""
    network, ages = inference.network, inference.memory.ages[thread]
    width = width_of(lanes)
    together, last = COLUMNS // width, inference.after.shape[0] - 1
    for begin in range(0, n_actors, together):
        actors, number = min(together, n_actors - begin), begin // together
        block = inference.blocks[thread, number][: network.rows * actors * width].reshape(network.rows, actors * width)
        for a in range(actors):
            for lane in range(lanes):
                c = a * width + lane
                store_carry(network, block, c, ages[number * COLUMNS + c], inference.after[last, (first + lane) * n_actors + begin + a])


def own_block(network, part):
    """Return where the block of a part begins."""
    return part * network.rows * COLUMNS


def with_memory(inference, thread, t, n_actors, begin, block, ahead, ends):
    """Compute a part of the actors from their observations and what they remember, see `mlp.infer`.

    `ends`: `terminated` and `truncated` [lane] of the step before, if `t` is not 0, and the tile's first environment.
    """
    terminated, truncated, first = ends
    network, memory, columns = inference.network, inference.memory, block.shape[1]
    width = width_of(terminated.size)
    at = begin // (COLUMNS // width) * COLUMNS
    keep, ages = memory.keep[thread][:columns], memory.ages[thread][at : at + columns]
    for c in range(columns):
        keep[c] = float32(1.0)
    if t > 0:
        for lane in range(terminated.size):
            if terminated[lane] | truncated[lane]:
                for a in range(columns // width):
                    c = a * width + lane
                    keep[c] = float32(0.0)
                    if truncated[lane]:
                        store_carry(network, block, c, ages[c], inference.after[t - 1, (first + lane) * n_actors + begin + a])
    forget_old(network.carry, keep, ages)
    normalize(network, block)
    step_forward(network.parameters, network.layers, memory.biases[thread], block, block, keep, memory.work[thread])


def step_forward(parameters, layers, biases, before, block, keep, work):
    """Compute all layers of a step from the observations in the first rows of `block` [rows, columns]; `before`: the block before it.

    Both may be the same. `keep` [columns] is 0 where an episode begins, else 1; `work` is memory for the widest layer, [units * columns].
    """
    columns, at = block.shape[1], 0
    flat, past = block.reshape(block.size), before.reshape(before.size)
    for n in range(layers.shape[0]):
        if layers[n, 6] < LSTM:
            forward(parameters, layers[n : n + 1], block, keep[:0])
        else:
            cell_forward(parameters, layers[n], biases[at:], past, flat, keep, work, columns)
            at += BLOCKS * layers[n, 3]


def cell_forward(parameters, layer, bias, before, flat, keep, work, columns):
    """Compute a recurrent layer of a step, see `step_forward`."""
    weight, n_in, units, kind = layer[0], layer[2], layer[3], layer[6]
    size, first = units * columns, layer[5] * columns
    at = first + states_of(kind) * size
    out, past, gate, given = flat[first : first + size], flat[at : at + size], flat[at + size : at + 5 * size], flat[layer[4] * columns :]
    recall(before[first:], keep, past)
    if kind == LSTM:
        past_weights, cell, cell_before = parameters[weight + 4 * units * n_in :], flat[first + size : first + 2 * size], work[:size]
        multiply(parameters[weight:], n_in, 1, bias, given, gate, 4 * units, n_in, columns, keep, 0)
        add_product(past_weights, units, 1, past, columns, gate, columns, 4 * units, units, columns)
        recall(before[first + size :], keep, cell_before)
        lstm_gates(gate, cell_before, cell, out)
    else:
        past_weights = parameters[weight + 3 * units * n_in :]
        multiply(parameters[weight:], n_in, 1, bias, given, gate, 3 * units, n_in, columns, keep, 0)
        add_product(past_weights, units, 1, past, columns, gate, columns, 2 * units, units, columns)
        multiply(past_weights[2 * units * units :], units, 1, bias[3 * units :], past, gate[3 * size :], units, units, columns, keep, 0)
        gru_gates(gate, past, out, out)


def steps_backward(parameters, layers, before, blocks, slopes, keeps, carried, zeros, gradient, work):
    """Add the gradient of the parameters in some steps, from the slopes of the outputs, and the slopes that come from the steps after.

    `blocks` and `slopes` are [step, rows, columns], as in `mlp.backward`, `before` [rows, columns] the block before them, `keeps`
    [step, columns] as in `step_forward`. `carried` are the slopes of what the last step leaves, of each recurrent layer two times
    [units * columns], outputs and cells; they become those of what the first step finds. `work` is twice that of `step_forward`.
    """
    at = 0
    for n in range(layers.shape[0]):
        if layers[n, 6] >= LSTM:
            at += 2 * layers[n, 3] * blocks.shape[2]
    for n in range(layers.shape[0] - 1, -1, -1):
        if layers[n, 6] < LSTM:
            backward(parameters, layers[n : n + 1], blocks, slopes, zeros, gradient, zeros[:0])
        else:
            size = layers[n, 3] * blocks.shape[2]
            at -= 2 * size
            cell_backward(parameters, layers[n], before, blocks, slopes, keeps, carried[at : at + 2 * size], zeros, gradient, work)


def cell_backward(parameters, layer, before, blocks, slopes, keeps, carried, zeros, gradient, work):
    """Take a recurrent layer back through some steps, see `steps_backward`."""
    weight, bias, n_in, units, in_row, kind = layer[0], layer[1], layer[2], layer[3], layer[4], layer[6]
    steps, columns = blocks.shape[0], blocks.shape[2]
    size, first, stride, gates = units * columns, layer[5] * columns, blocks.shape[1] * columns, 4 if kind == LSTM else 3
    at = first + states_of(kind) * size
    all_values, all_slopes, past_weights = (
        blocks.reshape(blocks.size),
        slopes.reshape(slopes.size),
        parameters[weight + gates * units * n_in :],
    )
    d_past, d_state, cell_before, squashed = carried[:size], carried[size:], work[:size], work[size : 2 * size]
    for k in range(steps - 1, -1, -1):
        values, into, keep = all_values[k * stride :], all_slopes[k * stride : (k + 1) * stride], keeps[k]
        d_out, d_gates, gate = into[first : first + size], into[at + size : at + 5 * size], values[at + size : at + 5 * size]
        for m in range(size):
            d_out[m] += d_past[m]
        if kind == LSTM:
            given = before.reshape(before.size) if k == 0 else all_values[(k - 1) * stride :]
            recall(given[first + size :], keep, cell_before)
            lstm_gate_slopes(gate, d_gates, cell_before, values[first + size : first + 2 * size], d_out, d_state, squashed)
            multiply(past_weights, 1, units, zeros, d_gates, d_past, units, 4 * units, columns, zeros, 0)
        else:
            of_new = past_weights[2 * units * units :]
            gru_gate_slopes(gate, d_gates, values[at : at + size], d_out, d_out, d_state, squashed)
            multiply(past_weights, 1, units, zeros, d_gates, d_past, units, 2 * units, columns, zeros, 0)
            add_product(of_new, 1, units, d_gates[3 * size :], columns, d_past, columns, units, units, columns)
        if in_row > 0:
            d_in = into[in_row * columns : (in_row + n_in) * columns]
            multiply(parameters[weight:], 1, n_in, zeros, d_gates, d_in, n_in, gates * units, columns, zeros, 0)
        recall(d_past, keep, d_past)
        recall(d_state, keep, d_state)
    d_gates, given, past = all_slopes[at + size :], all_values[in_row * columns :], all_values[at:]
    past_weight, past_bias = weight + gates * units * n_in, bias + gates * units
    shared = 4 * units if kind == LSTM else 2 * units
    outer(gradient[weight:], d_gates, stride, given, stride, gates * units, n_in, steps, columns)
    add_row_sums(gradient[bias:], d_gates, stride, gates * units, steps, columns)
    outer(gradient[past_weight:], d_gates, stride, past, stride, shared, units, steps, columns)
    add_row_sums(gradient[past_bias:], d_gates, stride, shared, steps, columns)
    if kind == GRU:
        of_new = all_slopes[at + 4 * size :]
        outer(gradient[past_weight + shared * units :], of_new, stride, past, stride, units, units, steps, columns)
        add_row_sums(gradient[past_bias + shared :], of_new, stride, units, steps, columns)
