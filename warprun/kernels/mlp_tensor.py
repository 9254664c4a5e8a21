"""Fully connected networks in one CUDA block on tensor cores: what `mlp_cuda` and `mlp_cuda_backward` compute, in fewer instructions.

The block is the same, but for its stride: element [row, column] is at row * stride + column, and the stride is 8 or 24 more than a multiple
of 32, so that the lanes of a warp read different banks. Columns are a multiple of `warp.COLUMNS`. Every function here computes the share of
a warp, so `threads` is a multiple of 32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warprun.kernels import warp
from warprun.kernels.mlp import RELU, TANH, Layer
from warprun.kernels.warp import COLUMNS, ROWS, TERMS, WORDS

float32 = np.float32

STEP = 2 * WORDS
"""Words of ROWS x TERMS weights in two parts."""
SHARE = 32
"""Rows and columns of a weight gradient that a warp computes together."""
PADDING = 8
"""Stride of a block less its columns."""

ONE, TWO, FOUR = (tuple([float32(0.0)] * (8 * tall)) for tall in (1, 2, 4))
"""Accumulators of so many times ROWS rows."""

SQUARE, FLAT, TALL = (tuple([float32(0.0)] * (4 * tall * (wide + 1))) for tall, wide in ((2, 4), (1, 4), (2, 1)))
"""Accumulators of a weight gradient, for SHARE or fewer outputs and inputs, and of the biases of the outputs (`warp.outer_products`)."""
ONE_PLACE, TWO_PLACES, FOUR_PLACES = (tuple([0] * count) for count in (1, 2, 4))
"""Indices of so many times 8 rows."""


def pack_layers(table: Sequence[Layer]) -> tuple[np.ndarray, np.ndarray]:
    """Return the source of each number of the weights, [W, 2] int32 (see `Packing`), and the table of layers, [layer, 7] int32: start
    of the words, start of the biases, n_in, n_out, first input row, first output row, activation."""
    sources, layers, end = [np.zeros((0, 2), np.int32)], [], 0
    for layer in table:
        words = _words(layer.weight, layer.n_out, layer.n_in, layer.n_in, 1)
        biases = np.full((-(-padded_tiles(layer.n_out) * ROWS // 32) * 32, 2), -1, np.int32)
        biases[:, 0] = layer.bias + np.minimum(np.arange(len(biases)), layer.n_out - 1)
        layers.append((end, end + len(words), layer.n_in, layer.n_out, layer.in_row, layer.out_row, layer.activation))
        sources += [words, biases]
        end += len(words) + len(biases)
    return np.concatenate(sources), np.array(layers, np.int32)


def pack_backward(table: Sequence[Layer]) -> tuple[np.ndarray, np.ndarray]:
    """Return the same for the backward pass, and its table of layers, [layer, 9] int32: start of the words, 0, n_in, n_out, first input
    row, first output row, activation of the inputs, and where weights and biases are in the flat parameters."""
    sources, layers, end = [np.zeros((0, 2), np.int32)], [], 0
    activations = {layer.out_row: layer.activation for layer in table}
    for layer in table:
        words = _words(layer.weight, layer.n_in, layer.n_out, 1, layer.n_in)
        activation = activations.get(layer.in_row, 0)
        layers.append((end, 0, layer.n_in, layer.n_out, layer.in_row, layer.out_row, activation, layer.weight, layer.bias))
        sources.append(words)
        end += len(words)
    return np.concatenate(sources), np.array(layers, np.int32)


def bias_rows(table: Sequence[Layer]) -> list[tuple[int, int]]:
    """Return nothing: `add_weight_slopes` adds the slopes of biases too."""
    return []


def padded_tiles(rows: int) -> int:
    """Return how many times ROWS rows a table has, so that warps which compute several of them (`height`) find all."""
    tiles = -(-rows // ROWS)
    return tiles if tiles <= 2 else -(-tiles // 4) * 4


def _words(first: int, rows: int, terms: int, row_stride: int, term_stride: int) -> np.ndarray:
    """Return the sources of the words of a matrix [rows, terms] of parameters; what is behind its end is some parameter."""
    sizes = (padded_tiles(rows), -(-terms // TERMS), 2, 32, 4, 2)
    tile, step, part, lane, register, half = np.ogrid[tuple(slice(size) for size in sizes)]
    row = ROWS * tile + lane // 4 + 8 * (register % 2)
    term = TERMS * step + warp.term_of(register // 2, half, lane % 4)
    place = first + np.minimum(row, rows - 1) * row_stride + np.minimum(term, terms - 1) * term_stride
    rests = (part == 1) & (half == 0)
    return np.broadcast_to(np.where(rests, ~place, place), sizes).reshape(-1, 2).astype(np.int32)


def split_word(low, high, rest):
    """Return two numbers as a word of bfloat16, see `warp.split_word`."""
    return warp.split_word(low, high, rest)


def compute_layer(network, layer, block, thread, threads):
    """Compute this warp's share of a layer's outputs for all columns of the block."""
    tiles, pairs, warps = (network.layers[layer, 3] + ROWS - 1) // ROWS, network.columns // COLUMNS, threads // 32
    tall = height(tiles, pairs, warps)
    for item in range(thread // 32, (tiles + tall - 1) // tall * pairs, warps):
        tile, column = item // pairs * tall, item % pairs * COLUMNS
        if tall == 4:
            compute_rows(FOUR, network, layer, block, tile, column, thread % 32)
        elif tall == 2:
            compute_rows(TWO, network, layer, block, tile, column, thread % 32)
        else:
            compute_rows(ONE, network, layer, block, tile, column, thread % 32)


def height(tiles, pairs, warps):
    """Return how many times ROWS rows a warp computes together: as many as leave no warp without work."""
    if tiles > 2 and (tiles + 3) // 4 * pairs >= warps:
        return 4
    return 2 if tiles > 1 and (tiles + 1) // 2 * pairs >= warps else 1


def compute_rows(like, network, layer, block, tile, column, lane):
    """Compute outputs from ROWS * `tile` on, as many as accumulators have rows, of COLUMNS columns."""
    start, bias, n_in, n_out = network.layers[layer, 0], network.layers[layer, 1], network.layers[layer, 2], network.layers[layer, 3]
    activation, row, stride = network.layers[layer, 6], ROWS * tile + lane // 4, network.stride
    y = warp.begin(like, network.weights, bias + row)
    y = add_products(y, network.weights, start, tile, block, network.layers[layer, 4], n_in, stride, column, lane)
    if activation == TANH:
        y = warp.tanh(y)
    elif activation == RELU:
        y = warp.relu(y)
    warp.store(y, block, (network.layers[layer, 5] + row) * stride + column + lane % 4 * 2, stride, n_out - row)


def add_products(y, weights, start, tile, block, first, terms, stride, column, lane):
    """Return y plus the products of weights, whose words begin at `start`, and the `terms` rows of a block from `first` on."""
    steps, t = (terms + TERMS - 1) // TERMS, lane % 4
    apart = steps * STEP
    w, x = start + tile * apart + lane * 4, (first + t) * stride + column + lane // 4
    for _ in range(terms // TERMS):
        y = warp.products(y, weights, w, apart, block, x, stride)
        w += STEP
        x += TERMS * stride
    left = terms % TERMS
    if left > 0:
        y = warp.last_products(y, weights, w, apart, block, x, stride, x - t * stride, left - t)
    return y


def compute_slopes(network, back, layer, block, thread, threads):
    """Replace the inputs of a layer by their slopes, by this warp's share: of all columns, for the slopes of the layer's outputs."""
    tiles, pairs, warps = (back.layers[layer, 2] + ROWS - 1) // ROWS, network.columns // COLUMNS, threads // 32
    tall = height(tiles, pairs, warps)
    for item in range(thread // 32, (tiles + tall - 1) // tall * pairs, warps):
        tile, column = item // pairs * tall, item % pairs * COLUMNS
        if tall == 4:
            slopes_of_rows(FOUR, network, back, layer, block, tile, column, thread % 32)
        elif tall == 2:
            slopes_of_rows(TWO, network, back, layer, block, tile, column, thread % 32)
        else:
            slopes_of_rows(ONE, network, back, layer, block, tile, column, thread % 32)


def slopes_of_rows(like, network, back, layer, block, tile, column, lane):
    """Replace inputs from ROWS * `tile` on, as many as accumulators have rows, of COLUMNS columns by their slopes."""
    start, n_in, n_out, activation = back.layers[layer, 0], back.layers[layer, 2], back.layers[layer, 3], back.layers[layer, 6]
    row, stride = ROWS * tile + lane // 4, network.stride
    y = add_products(like, back.weights, start, tile, block, back.layers[layer, 5], n_out, stride, column, lane)
    at, left = (back.layers[layer, 4] + row) * stride + column + lane % 4 * 2, n_in - row
    if activation == TANH:
        y = warp.through_tanh(y, warp.load(like, block, at, stride, left))
    elif activation == RELU:
        y = warp.through_relu(y, warp.load(like, block, at, stride, left))
    warp.store(y, block, at, stride, left)


def add_weight_slopes(network, back, layer, block, slopes, at, fresh, thread, threads):
    """Add this warp's share of a layer's gradient to `slopes` from index `at` on, that of the biases too; `fresh`: there is nothing yet."""
    n_in, n_out = back.layers[layer, 2], back.layers[layer, 3]
    high = (n_out + SHARE - 1) // SHARE
    if n_in <= 8:
        for item in range(thread // 32, high, threads // 32):
            add_share(TALL, FOUR_PLACES, ONE_PLACE, network, back, layer, block, slopes, at, fresh, item * SHARE, 0, thread % 32)
    else:
        wide = (n_in + SHARE - 1) // SHARE
        if n_out <= ROWS:
            for item in range(thread // 32, wide, threads // 32):
                add_share(FLAT, TWO_PLACES, FOUR_PLACES, network, back, layer, block, slopes, at, fresh, 0, item * SHARE, thread % 32)
        else:
            for item in range(thread // 32, high * wide, threads // 32):
                output, given = item // wide * SHARE, item % wide * SHARE
                add_share(SQUARE, FOUR_PLACES, FOUR_PLACES, network, back, layer, block, slopes, at, fresh, output, given, thread % 32)


def add_share(y, rows, columns, network, back, layer, block, slopes, at, fresh, output, given, lane):
    """Add the slopes of the weights from some inputs, from `given` on, to some outputs: as many as accumulators `y`, `rows` and `columns`
    are for."""
    n_in, n_out, stride, g, t = back.layers[layer, 2], back.layers[layer, 3], network.stride, lane // 4, lane % 4
    first, begin = back.layers[layer, 5], back.layers[layer, 4]
    rows = warp.place_rows(rows, first + output + g, first + n_out, stride, 2 * t)
    columns = warp.place_rows(columns, begin + given + g, begin + n_in, stride, 2 * t)
    for column in range(0, network.columns, TERMS):
        y = warp.outer_products(y, block, rows, columns, column)
    start = at + back.layers[layer, 7]
    to = start + (output + g) * n_in + given + 2 * t
    if not fresh and n_out - output >= SHARE and n_in - given >= SHARE and (start | n_in) % 2 == 0:
        warp.add_whole_outer(y, columns, slopes, to, n_in)
    else:
        warp.add_outer(y, columns, slopes, to, n_in, n_out - output - g, n_in - given - 2 * t, fresh)
    if given == 0 and t == 0:
        warp.add_outer_sums(y, columns, slopes, at + back.layers[layer, 8] + output + g, n_out - output - g, fresh)
