"""The backward pass of fully connected networks in one CUDA block, on the activations that `mlp_cuda` leaves in shared memory.

A layer's slopes (the derivatives of the loss with respect to what enters its activation function) take the place of its activations, row by
row: first `add_weight_slopes` reads the inputs of a layer and the slopes of its outputs, then, behind a barrier, `compute_slopes` replaces
the inputs by their slopes. When all layers are done, the rows of the block hold the slopes of all units, and `add_row_sums` adds those of
the biases. Each block adds to a part of memory of its own, so nothing is atomic, and the order of additions is always the same.

A thread computes TALL x FOUR numbers at a time, as in the forward pass. In sums over columns every thread begins at another column, because
at the same column the rows of a block lie in the same bank of shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels.mlp import RELU, TANH, Layer
from warprun.kernels.mlp_cuda import FOUR, LINE, TALL, accumulate, four, multiply_add, plain, plus, read, read_four, write, write_four

float32 = np.float32


class BlockBackward(NamedTuple):
    """Tables of the backward pass beside those of a BlockNetwork; kernels get device arrays in place of the tensors."""

    weights: torch.Tensor
    """[V] float32: of each layer one row of weights per output, padded to a multiple of TALL."""
    layers: torch.Tensor
    """[layer, 9] int32: start in `weights`, row width there, n_in, n_out, first input row, first output row, activation of the inputs, and
    where weights and biases are in the flat parameters."""
    sums: torch.Tensor
    """[S, 2] int32: rows of the block whose sums belong to the gradient, and where each is added there."""
    columns: int
    """Of the block."""
    stride: int
    """Elements from a row of the block to the next."""


def pack_backward(table: Sequence[Layer]) -> tuple[np.ndarray, np.ndarray]:
    """Return the source of each number of BlockBackward.weights, [V, 2] int32, and its `layers`."""
    index, end = [np.zeros(0, np.int64)], 0
    activations = {layer.out_row: layer.activation for layer in table}
    layers = []
    for layer in table:
        width = -(-layer.n_in // TALL) * TALL
        rows = np.zeros((layer.n_out, width), np.int64)
        rows[:, : layer.n_in] = layer.weight + np.arange(layer.n_out * layer.n_in).reshape(layer.n_out, layer.n_in)
        activation = activations.get(layer.in_row, 0)
        layers.append((end, width, layer.n_in, layer.n_out, layer.in_row, layer.out_row, activation, layer.weight, layer.bias))
        index += [rows.ravel(), np.zeros(-rows.size % LINE, np.int64)]
        end += rows.size + -rows.size % LINE
    return plain(np.concatenate(index)), np.array(layers, np.int32)


def bias_rows(table: Sequence[Layer]) -> list[tuple[int, int]]:
    """Return (row of a block, index in the parameters) of every bias."""
    return [(layer.out_row + n, layer.bias + n) for layer in table for n in range(layer.n_out)]


def add_weight_slopes(network, back, layer, block, slopes, at, fresh, thread, threads):
    """Add this thread's share of a layer's weight gradient to `slopes` from index `at` on; `fresh`: there is nothing yet."""
    n_in, n_out = back.layers[layer, 2], back.layers[layer, 3]
    across = (n_in + FOUR - 1) // FOUR
    if n_out >= TALL and (n_out + TALL - 1) // TALL * across >= threads // 2:
        for item in range(thread, (n_out + TALL - 1) // TALL * across, threads):
            tall_weight_slopes(network, back, layer, block, slopes, at, fresh, item // across * TALL, item % across, thread)
    else:
        for item in range(thread, n_out * across, threads):
            four_weight_slopes(network, back, layer, block, slopes, at, fresh, item // across, item % across, thread)


def tall_weight_slopes(network, back, layer, block, slopes, at, fresh, output, first, thread):
    """Add the slopes of the weights from FOUR inputs, a quarter of them apart, to TALL outputs, of those that exist."""
    columns, n_in, n_out = network.columns, back.layers[layer, 2], back.layers[layer, 3]
    across = (n_in + FOUR - 1) // FOUR
    # For inputs and outputs that do not exist the rows that follow are read, and nothing is written.
    s_at = (back.layers[layer, 5] + output) * columns
    x_at = (back.layers[layer, 4] + first) * columns
    y = four(four(float32(0.0))) + four(four(float32(0.0)))
    column = thread % columns
    for _ in range(columns):
        y = multiply_add(y, read_rows(block, s_at + column, columns), read_four(block, x_at + column, across * columns))
        column = column + 1 if column + 1 < columns else 0
    to = at + back.layers[layer, 7] + output * n_in + first
    outputs, inputs = n_out - output, n_in - first
    add_four_rows(slopes, to, n_in, across, outputs, inputs, fresh, (y[0], y[1], y[2], y[3]))
    if outputs > 4:
        add_four_rows(slopes, to + 4 * n_in, n_in, across, outputs - 4, inputs, fresh, (y[4], y[5], y[6], y[7]))


def add_four_rows(slopes, at, n_in, across, outputs, inputs, fresh, y):
    """Add four rows of FOUR slopes, those that exist, to those from index `at` on; `fresh`: there is nothing yet."""
    if not fresh:
        # All are read before the first is written, in the time of one load. Eight rows at once would need too many registers.
        one = float32(1.0)
        y = (
            plus(y[0], one, read_there(slopes, at, across, inputs, outputs > 0)),
            plus(y[1], one, read_there(slopes, at + n_in, across, inputs, outputs > 1)),
            plus(y[2], one, read_there(slopes, at + 2 * n_in, across, inputs, outputs > 2)),
            plus(y[3], one, read_there(slopes, at + 3 * n_in, across, inputs, outputs > 3)),
        )
    write_there(slopes, at, across, inputs, outputs > 0, y[0])
    write_there(slopes, at + n_in, across, inputs, outputs > 1, y[1])
    write_there(slopes, at + 2 * n_in, across, inputs, outputs > 2, y[2])
    write_there(slopes, at + 3 * n_in, across, inputs, outputs > 3, y[3])


def four_weight_slopes(network, back, layer, block, slopes, at, fresh, output, first, thread):
    """Add the slopes of the weights from FOUR inputs, a quarter of them apart, of those that exist, to one output."""
    columns, n_in = network.columns, back.layers[layer, 2]
    across = (n_in + FOUR - 1) // FOUR
    s_at = (back.layers[layer, 5] + output) * columns
    x_at = (back.layers[layer, 4] + first) * columns
    y = four(float32(0.0))
    column = thread % columns
    for _ in range(columns):
        y = plus(y, read(block, s_at + column), read_four(block, x_at + column, across * columns))
        column = column + 1 if column + 1 < columns else 0
    to, inputs = at + back.layers[layer, 7] + output * n_in + first, n_in - first
    if not fresh:
        y = plus(y, float32(1.0), read_there(slopes, to, across, inputs, True))
    write_there(slopes, to, across, inputs, True, y)


def compute_slopes(network, back, layer, block, thread, threads):
    """Replace the inputs of a layer by their slopes, by this thread's share: of all columns, for the slopes of the layer's outputs."""
    n_in, apart = back.layers[layer, 2], network.columns // FOUR
    if n_in < TALL:
        for item in range(thread, n_in * network.columns, threads):
            one_slope(network, back, layer, block, item // network.columns, item % network.columns)
    elif (n_in + TALL - 1) // TALL * apart > threads // FOUR:
        for item in range(thread, (n_in + TALL - 1) // TALL * apart, threads):
            tall_slopes(network, back, layer, block, item // apart * TALL, item % apart)
    else:  # so few columns that most threads would have nothing to do
        for item in range(thread, n_in * apart, threads):
            four_slopes(network, back, layer, block, item // apart, item % apart)


def one_slope(network, back, layer, block, given, column):
    """Replace input `given` of one column by its slope."""
    columns, w, s = network.columns, back.layers[layer, 0] + given, back.layers[layer, 5] * network.columns + column
    y = float32(0.0)
    for _ in range(back.layers[layer, 3]):
        y += read(back.weights, w) * read(block, s)
        w += back.layers[layer, 1]
        s += columns
    at = (back.layers[layer, 4] + given) * columns + column
    write(block, at, y * derivative(read(block, at), back.layers[layer, 6]))


def four_slopes(network, back, layer, block, given, column):
    """Replace input `given` of FOUR columns a quarter of the block apart by its slopes."""
    columns, apart, w = network.columns, network.columns // FOUR, back.layers[layer, 0] + given
    s = back.layers[layer, 5] * columns + column
    y = four(float32(0.0))
    for _ in range(back.layers[layer, 3]):
        y = plus(y, read(back.weights, w), read_four(block, s, apart))
        w += back.layers[layer, 1]
        s += columns
    through(block, (back.layers[layer, 4] + given) * columns + column, apart, back.layers[layer, 6], y)


def tall_slopes(network, back, layer, block, given, column):
    """Replace inputs `given` .. `given` + TALL - 1, those that exist, of FOUR columns a quarter of the block apart, by their slopes."""
    columns, apart, activation = network.columns, network.columns // FOUR, back.layers[layer, 6]
    start, width, n_in, n_out = back.layers[layer, 0], back.layers[layer, 1], back.layers[layer, 2], back.layers[layer, 3]
    y = four(four(float32(0.0))) + four(four(float32(0.0)))
    y = accumulate(back.weights, start + given, width, block, back.layers[layer, 5] * columns + column, columns, n_out, y)
    at, left = (back.layers[layer, 4] + given) * columns + column, n_in - given
    through(block, at, apart, activation, y[0])
    if left > 1:
        through(block, at + columns, apart, activation, y[1])
    if left > 2:
        through(block, at + 2 * columns, apart, activation, y[2])
    if left > 3:
        through(block, at + 3 * columns, apart, activation, y[3])
    if left > 4:
        through(block, at + 4 * columns, apart, activation, y[4])
    if left > 5:
        through(block, at + 5 * columns, apart, activation, y[5])
    if left > 6:
        through(block, at + 6 * columns, apart, activation, y[6])
    if left > 7:
        through(block, at + 7 * columns, apart, activation, y[7])


def through(block, at, apart, activation, y):
    """Replace FOUR activations, from index `at` on, by `y` times the derivative of their activation function."""
    x = read_four(block, at, apart)
    slopes = (
        y[0] * derivative(x[0], activation),
        y[1] * derivative(x[1], activation),
        y[2] * derivative(x[2], activation),
        y[3] * derivative(x[3], activation),
    )
    write_four(block, at, apart, slopes)


def derivative(y, activation):
    """Return the derivative of the activation function that has given `y`."""
    if activation == TANH:
        return float32(1.0) - y * y
    return (float32(1.0) if y > float32(0.0) else float32(0.0)) if activation == RELU else float32(1.0)


def add_row_sums(network, back, block, slopes, at, fresh, thread, threads):
    """Add the sums of the rows in `back.sums`, this thread's share, to `slopes` from index `at` on; `fresh`: there is nothing yet."""
    columns = back.columns
    for n in range(thread, back.sums.shape[0], threads):
        row, to = back.sums[n, 0] * back.stride, at + back.sums[n, 1]
        total = float32(0.0)
        column = thread % columns
        for _ in range(columns):
            total += read(block, row + column)
            column = column + 1 if column + 1 < columns else 0
        write(slopes, to, total if fresh else read(slopes, to) + total)


def read_rows(block, at, columns):
    """Return eight elements of one column, from index `at` on."""
    return (
        read(block, at),
        read(block, at + columns),
        read(block, at + 2 * columns),
        read(block, at + 3 * columns),
        read(block, at + 4 * columns),
        read(block, at + 5 * columns),
        read(block, at + 6 * columns),
        read(block, at + 7 * columns),
    )


def read_there(slopes, at, across, inputs, there):
    """Return FOUR slopes, `across` from each other, from index `at` on, 0 for those that do not exist."""
    return (
        read(slopes, at) if there else float32(0.0),
        read(slopes, at + across) if there and inputs > across else float32(0.0),
        read(slopes, at + 2 * across) if there and inputs > 2 * across else float32(0.0),
        read(slopes, at + 3 * across) if there and inputs > 3 * across else float32(0.0),
    )


def write_there(slopes, at, across, inputs, there, y):
    """Write those of FOUR slopes that exist, `across` from each other, from index `at` on."""
    if there:
        write(slopes, at, y[0])
        if inputs > across:
            write(slopes, at + across, y[1])
        if inputs > 2 * across:
            write(slopes, at + 2 * across, y[2])
        if inputs > 3 * across:
            write(slopes, at + 3 * across, y[3])
