"""Layers on rows of numbers, as torch has them: products with their gradients, and whole linear layers. Functions for kernels.

A row is a step of an actor. `warprun.kernels.mlp` has rows of a block side by side instead, [number, column], which takes layers of any
width; here the numbers of a row are side by side, and come in multiples of NARROW.

From the K numbers of a row come blocks of U sums. A row of `blocks` [N, 3] says which weights a block takes, and of which of the K numbers:
number of the weights, first, last + 1. A linear layer has one block of all.

    weights     [weights, K, U] forward, [weights * U, K] backward
    bias        [N, U]
    sums        flat, [block, row, unit], as their slopes
"""

from __future__ import annotations

import numpy as np

from warprun.kernels.mlp import RELU, TANH, through_activation
from warprun.kernels.simd import add_product
from warprun.math import tanh

float32 = np.float32

TILE = 32
"""Rows of a tile: enough to use what is loaded of the weights many times, few enough to share them between threads."""


def weigh(now, weights, bias, blocks, rows, sums):
    """Write the sums of all blocks for the numbers `now` [rows * K]."""
    width, units, flat = weights.shape[1], weights.shape[2], weights.reshape(weights.size)
    for n in range(blocks.shape[0]):
        into, own = sums[n * rows * units : (n + 1) * rows * units], bias[n]
        of, begin, end = blocks[n]
        for r in range(rows):
            row = into[r * units : (r + 1) * units]
            for m in range(units):
                row[m] = own[m]
        add_product(now[begin:], width, 1, flat[(of * width + begin) * units :], units, into, units, rows, end - begin, units)


def add_gradient(slopes, now, blocks, rows, d_weights, d_bias):
    """Add the gradients of weights, `d_weights` [weights * U, K], and biases, of rows that have the numbers `now` [rows * K]."""
    width, units, flat = d_weights.shape[1], d_bias.shape[1], d_weights.reshape(d_weights.size)
    for n in range(blocks.shape[0]):
        of, begin, end = blocks[n]
        given, own = slopes[n * rows * units : (n + 1) * rows * units], d_bias[n]
        add_product(given, 1, units, now[begin:], width, flat[of * units * width + begin :], width, units, rows, end - begin)
        for r in range(rows):
            row = given[r * units : (r + 1) * units]
            for m in range(units):
                own[m] += row[m]


def weigh_back(slopes, weights, blocks, rows, units, d_now):
    """Write the slopes of the numbers that the sums are made of, `d_now` [rows * K]."""
    width, flat = weights.shape[1], weights.reshape(weights.size)
    d_now[:] = float32(0.0)
    for n in range(blocks.shape[0]):
        of, begin, end = blocks[n]
        own = flat[of * units * width + begin :]
        add_product(slopes[n * rows * units :], units, 1, own, width, d_now[begin:], width, rows, units, end - begin)


def linear_forward(part, x, weights, bias, blocks, activation, y):
    """Compute a linear layer and its activation for a tile of rows, `x` [R, K], `y` [R, U]."""
    (count, width), units = x.shape, y.shape[1]
    begin = part * TILE
    rows = min(TILE, count - begin)
    out = y.reshape(y.size)[begin * units : (begin + rows) * units]
    weigh(x.reshape(x.size)[begin * width : (begin + rows) * width], weights, bias, blocks, rows, out)
    if activation == TANH:
        for m in range(out.size):
            out[m] = tanh(out[m])
    elif activation == RELU:
        for m in range(out.size):
            out[m] = max(out[m], float32(0.0))


def linear_backward(part, slope, x, weights, blocks, activation, y, d_x, d_weights, d_bias, work):
    """Write the slopes `d_x` [R, K] of a tile of rows, unless it is empty, and add to the gradients; `slope` [R, U], `work` [TILE * U]."""
    (count, width), units = x.shape, y.shape[1]
    begin = part * TILE
    rows = min(TILE, count - begin)
    sums, given = work[: rows * units], slope.reshape(slope.size)[begin * units : (begin + rows) * units]
    for m in range(sums.size):
        sums[m] = given[m]
    through_activation(activation, y.reshape(y.size)[begin * units : (begin + rows) * units], sums)
    now = slice(begin * width, (begin + rows) * width)
    add_gradient(sums, x.reshape(x.size)[now], blocks, rows, d_weights, d_bias)
    if d_x.size > 0:
        weigh_back(sums, weights, blocks, rows, units, d_x.reshape(d_x.size)[now])
