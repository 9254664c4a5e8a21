"""Fully connected networks in one CUDA block: activations of a few actors in shared memory. Functions for kernels, and their tables.

The activations of a block are a flat array, with row r of column c at r * columns + c: the rows of the input, then those of each layer's
output. Weights are copied to a separate [in, out] array before every rollout, so that a warp reads consecutive weights, which
stay in the L1 cache. A thread computes TALL outputs of FOUR columns at a time: 12 loads feed 32 multiply-adds, because loads are the
bottleneck. Layers with fewer outputs, usually the last, use one thread per output and column. The caller puts a barrier between layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from warprun.kernels.mlp import RELU, TANH, Layer, Network, normalized
from warprun.math import tanh

if TYPE_CHECKING:
    import torch

float32 = np.float32

TALL = 8
FOUR = 4
SHARED_BYTES = 48 * 1024
"""Shared memory that a block can use on every GPU."""
LINE = 32
"""float32 elements of a cache line, to which the weights of each layer are aligned."""


def whole_word(low, high, rest):
    """Stand for `mlp_tensor.split_word` where no weights have such words, as the GPU has no instruction that splits a number."""
    return low


class BlockNetwork(NamedTuple):
    """A network in the form that CUDA kernels take; they get device arrays in place of the tensors."""

    weights: torch.Tensor
    """[W] float32, in the order of `pack_layers`."""
    layers: torch.Tensor
    """[layer, 7] int32, see `pack_layers`."""
    columns: int
    """Columns of the block."""
    stride: int
    """Elements from a row of the block to the next."""
    policy_row: int
    """First row of the policy's outputs."""
    logits: int
    """Number of rows of the policy's outputs."""
    value_row: int
    """Row of the value; -1 if the network has none."""
    log_std: int
    """Start in `weights` of the policy outputs that do not depend on the observation, the log standard deviations."""
    normalizes: bool
    mean: torch.Tensor
    """[F] float32, of the observations; [1] unless `normalizes`."""
    scale: torch.Tensor
    """[F] float32: 1 / standard deviation; [1] unless `normalizes`."""


class BlockInference(NamedTuple):
    """The arguments with which a rollout kernel computes the network of one group."""

    network: BlockNetwork
    logits: torch.Tensor
    """[N * A * P] float32: policy outputs."""


def pack_layers(table: Sequence[Layer]) -> tuple[np.ndarray, np.ndarray]:
    """Return the source of each number of the weights, [W, 2] int32 (see `Packing`), and the table of layers, [layer, 7] int32: start
    in the weights, row width there, n_in, n_out, first input row, first output row, activation.

    A layer is one row of biases, then one row of weights per input. Rows of layers with TALL or more outputs are padded to a multiple of
    TALL; the results of the padding are not stored.
    """
    index: list[np.ndarray] = []
    layers = []
    end = 0
    for layer in table:
        width = layer.n_out if layer.n_out < TALL else -(-layer.n_out // TALL) * TALL
        rows = np.zeros((layer.n_in + 1, width), np.int64)
        rows[0, : layer.n_out] = layer.bias + np.arange(layer.n_out)
        rows[1:, : layer.n_out] = layer.weight + np.arange(layer.n_out * layer.n_in).reshape(layer.n_out, layer.n_in).T
        layers.append((end, width, layer.n_in, layer.n_out, layer.in_row, layer.out_row, layer.activation))
        index += [rows.ravel(), np.zeros(-rows.size % LINE, np.int64)]
        end += rows.size + -rows.size % LINE
    return plain(np.concatenate(index)), np.array(layers, np.int32)


def plain(index: np.ndarray) -> np.ndarray:
    """Return the sources of numbers that are parameters as they are, [W, 2] int32."""
    return np.stack((index, np.full_like(index, -1)), -1).astype(np.int32)


def threads_for(network: Network, columns: int) -> int:
    """Return how many threads compute the widest layer at once, each TALL x FOUR numbers, or a warp of them 64 x 16 on tensor cores."""
    return -(-int(np.asarray(network.layers)[:, 3].max()) // TALL) * (columns // FOUR)


def load_columns(network, obs, first, count, features, block, thread, threads):
    """Load the observations of `count` actors, from `first` on, into the first rows of the block, normalised as in `mlp.compute`."""
    for n in range(thread, count * features, threads):
        column, f = n // features, n % features
        x = read(obs, first * features + n)
        if network.normalizes:
            x = normalized(x, read(network.mean, f), read(network.scale, f))
        write(block, f * network.stride + column, x)


def compute_layer(network, layer, block, thread, threads):
    """Compute this thread's share of a layer's outputs for all columns of the block."""
    n_out = network.layers[layer, 3]
    if n_out < TALL:
        for item in range(thread, n_out * network.columns, threads):
            one_output(network, layer, block, item // network.columns, item % network.columns)
    else:
        apart = network.columns // FOUR
        for item in range(thread, (n_out + TALL - 1) // TALL * apart, threads):
            tall_outputs(network, layer, block, item // apart * TALL, item % apart)


def compute_narrow_layer(network, layer, block, thread, threads):
    """Do the same where a block may have so few columns that most threads would have nothing to do."""
    n_out, apart = network.layers[layer, 3], network.columns // FOUR
    if n_out < TALL or (n_out + TALL - 1) // TALL * apart > threads // FOUR:
        compute_layer(network, layer, block, thread, threads)
    else:
        for item in range(thread, n_out * apart, threads):
            four_outputs(network, layer, block, item // apart, item % apart)


def one_output(network, layer, block, output, column):
    """Compute one output of one column."""
    start, width, n_in = network.layers[layer, 0], network.layers[layer, 1], network.layers[layer, 2]
    w, x = start + output, network.layers[layer, 4] * network.columns + column
    y = read(network.weights, w)
    for _ in range(n_in):
        w += width
        y += read(network.weights, w) * read(block, x)
        x += network.columns
    write(block, (network.layers[layer, 5] + output) * network.columns + column, activated(y, network.layers[layer, 6]))


def four_outputs(network, layer, block, output, column):
    """Compute one output of FOUR columns a quarter of the block apart."""
    start, width, n_in = network.layers[layer, 0], network.layers[layer, 1], network.layers[layer, 2]
    columns, apart = network.columns, network.columns // FOUR
    w, x = start + output, network.layers[layer, 4] * columns + column
    y = four(read(network.weights, w))
    for _ in range(n_in):
        w += width
        y = plus(y, read(network.weights, w), read_four(block, x, apart))
        x += columns
    at = (network.layers[layer, 5] + output) * columns + column
    write_four(block, at, apart, activated_four(y, network.layers[layer, 6]))


def tall_outputs(network, layer, block, output, column):
    """Compute outputs `output` .. `output` + TALL - 1, those that exist, of FOUR columns a quarter of the block apart."""
    start, width, n_in, n_out = network.layers[layer, 0], network.layers[layer, 1], network.layers[layer, 2], network.layers[layer, 3]
    columns, apart = network.columns, network.columns // FOUR
    w_at, x_at = start + output, network.layers[layer, 4] * columns + column
    y = accumulate(network.weights, w_at + width, width, block, x_at, columns, n_in, spread(read_eight(network.weights, w_at)))
    y_at = (network.layers[layer, 5] + output) * columns + column
    write_rows(block, y_at, columns, n_out - output, y)
    # Not unrolled: 32 copies of tanh would overflow the instruction cache.
    for _ in range(min(TALL, n_out - output)):
        write_four(block, y_at, apart, activated_four(read_four(block, y_at, apart), network.layers[layer, 6]))
        y_at += columns


def accumulate(weights, w_at, width, block, x_at, columns, n, y):
    """Return y[j][c] plus the sums of w[j] * x[c] over `n` rows, at least one, of weights, `width` apart, and of FOUR columns."""
    apart = columns // FOUR
    w, x = read_eight(weights, w_at), read_four(block, x_at, apart)
    # Software pipelining: the next inputs load while the current ones are multiplied. Unrolled by two, so that no registers are copied.
    for _ in range((n - 1) // 2):
        w_at += width
        x_at += columns
        next_w, next_x = read_eight(weights, w_at), read_four(block, x_at, apart)
        y = multiply_add(y, w, x)
        w_at += width
        x_at += columns
        w, x = read_eight(weights, w_at), read_four(block, x_at, apart)
        y = multiply_add(y, next_w, next_x)
    if n % 2 == 0:
        y = multiply_add(y, w, x)
        w, x = read_eight(weights, w_at + width), read_four(block, x_at + columns, apart)
    return multiply_add(y, w, x)


def spread(w):
    """Return a row of FOUR columns for each of eight numbers."""
    return four(w[0]), four(w[1]), four(w[2]), four(w[3]), four(w[4]), four(w[5]), four(w[6]), four(w[7])


def four(x):
    """Return a row of FOUR columns with `x` in each."""
    return x, x, x, x


def multiply_add(y, w, x):
    """Return y[j][c] + w[j] * x[c] for eight rows of FOUR columns."""
    return (
        plus(y[0], w[0], x),
        plus(y[1], w[1], x),
        plus(y[2], w[2], x),
        plus(y[3], w[3], x),
        plus(y[4], w[4], x),
        plus(y[5], w[5], x),
        plus(y[6], w[6], x),
        plus(y[7], w[7], x),
    )


def plus(y, w, x):
    """Return y[c] + w * x[c] for FOUR columns."""
    return y[0] + w * x[0], y[1] + w * x[1], y[2] + w * x[2], y[3] + w * x[3]


def write_rows(block, at, columns, left, y):
    """Write eight rows of FOUR columns, or the first `left` of them, from index `at` on."""
    apart = columns // FOUR
    write_four(block, at, apart, y[0])
    if left > 1:
        write_four(block, at + columns, apart, y[1])
    if left > 2:
        write_four(block, at + 2 * columns, apart, y[2])
    if left > 3:
        write_four(block, at + 3 * columns, apart, y[3])
    if left > 4:
        write_four(block, at + 4 * columns, apart, y[4])
    if left > 5:
        write_four(block, at + 5 * columns, apart, y[5])
    if left > 6:
        write_four(block, at + 6 * columns, apart, y[6])
    if left > 7:
        write_four(block, at + 7 * columns, apart, y[7])


def read_eight(array, at):
    """Return eight consecutive elements from index `at` on."""
    return (
        read(array, at),
        read(array, at + 1),
        read(array, at + 2),
        read(array, at + 3),
        read(array, at + 4),
        read(array, at + 5),
        read(array, at + 6),
        read(array, at + 7),
    )


def read_four(array, at, apart):
    """Return four elements, `apart` from each other, from index `at` on."""
    return read(array, at), read(array, at + apart), read(array, at + 2 * apart), read(array, at + 3 * apart)


def write_four(array, at, apart, x):
    """Write four elements, `apart` from each other, from index `at` on."""
    write(array, at, x[0])
    write(array, at + apart, x[1])
    write(array, at + 2 * apart, x[2])
    write(array, at + 3 * apart, x[3])


def read(array, index):
    """Return array[index]. Numba adds a test for a negative index to signed ones, which costs more than the arithmetic of a layer."""
    return array[np.uint64(index)]


def write(array, index, x):
    """Set array[index] to `x`, with an unsigned index as in `read`."""
    array[np.uint64(index)] = x


def activated_four(x, activation):
    """Return the activation function of each of FOUR columns."""
    return activated(x[0], activation), activated(x[1], activation), activated(x[2], activation), activated(x[3], activation)


def activated(x, activation):
    """Return the activation function of `x`."""
    if activation == TANH:
        return tanh(x)
    return max(x, float32(0.0)) if activation == RELU else x


def store_outputs(network, block, first, count, outputs, policy_output, value, thread, threads):
    """Write the policy's outputs to the flat `policy_output` and the values to `value`, for `count` actors from `first` on."""
    for n in range(thread, count * outputs, threads):
        column, k = n // outputs, n % outputs
        if k < network.logits:
            y = read(block, (network.policy_row + k) * network.stride + column)
        else:
            y = read(network.weights, network.log_std + k - network.logits)
        write(policy_output, first * outputs + n, y)
    for column in range(thread, count, threads):
        y = read(block, network.value_row * network.stride + column) if network.value_row >= 0 else float32(0.0)
        write(value, first + column, y)
