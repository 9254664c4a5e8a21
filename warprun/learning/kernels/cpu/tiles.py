"""Tiles of transitions on a CPU, one in each column of blocks in the caches: the operations of which losses are made.

`kernels.cuda.tiles` has the same names for a GPU. A loss (`kernels.losses`, `kernels.policy_loss`) is written with them
once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.kernels import mlp
from warprun.kernels.mlp import Outputs
from warprun.learning.kernels.draws import key_of

float32 = np.float32


class Net(NamedTuple):
    """A network, or several that share their inputs (a stack), on the columns of a tile."""

    parameters: NDArray[np.float32]
    """[P]."""
    layers: NDArray[np.int64]
    """[layer, 7], see `warprun.kernels.mlp`."""
    outputs: Outputs
    """Numbers, and no array: LLVM vectorizes no loop that reads the row of an output in each of its steps."""
    block: NDArray[np.float32]
    """[row, column]: activations."""
    slopes: NDArray[np.float32]
    """[row, column]: derivatives of the loss by the activations."""
    mean: NDArray[np.float32]
    """[F] of the observations, or [0] if they are not normalised here."""
    scale: NDArray[np.float32]
    """[F] or [0]: 1 / standard deviation."""


class Tile(NamedTuple):
    """A tile of a batch."""

    begin: int
    """Its first transition in the batch."""
    n: int
    """Its transitions, of the first columns."""
    scratch: NDArray[np.float32]
    """[row, column]."""
    terms: NDArray[np.float32]
    """[term, column]: what `add_term` adds."""
    zeros: NDArray[np.float32]
    """[row]."""
    picked: NDArray[np.uint64]
    """[column]: the row in each column, see `observe`; unsigned, so that no index can be negative, which a kernel would have to ask."""
    kept: bool
    """Whether the blocks hold activations of the rollout already."""


def columns(tile):
    """Return the columns that this thread computes."""
    return range(tile.n)


def load(tile, net, source, row):
    """Write the tile's rows of `source` [B, F] to the inputs of `net` from number `row` on."""
    for f in range(source.shape[1]):
        for c in range(tile.n):
            net.block[row + f, c] = source[tile.begin + c, f]


def observe(tile, net, rows):
    """Load the observations of the tile's rows, normalised, and compute the activations of `net`, unless they were kept."""
    for c in range(tile.n):
        tile.picked[c] = rows.order[tile.begin + c] if rows.ordered else tile.begin + c
    if not tile.kept:
        for f in range(rows.obs.shape[1]):
            for c in range(tile.n):
                net.block[f, c] = rows.obs[tile.picked[c], f]
        mlp.compute(net, net.block, tile.zeros[:0])


def row_at(tile, rows, c):
    """Return the row in column `c`, after `observe`."""
    return tile.picked[c]


def keep_picked(tile, rows, source, row):
    """Keep the numbers of `source` [R] of the tile's rows in row `row`, see `get_scratch`."""
    kept = tile.scratch[row]
    if rows.ordered:
        for c in range(tile.n):
            kept[c] = float32(source[tile.picked[c]])
    else:
        # Views that begin at 0: LLVM vectorises only if it knows that no index is negative.
        given = source[tile.begin : tile.begin + tile.n]
        for c in range(given.size):
            kept[c] = float32(given[c])


def keep_advantages(tile, rows, mean, scale, row):
    """Keep the advantages of the tile's rows less `mean`, times `scale`, in row `row`."""
    kept, given = tile.scratch[row], rows.advantage[tile.begin : tile.begin + tile.n]
    for c in range(given.size):
        kept[c] = (given[c] - mean) * scale


def forward(tile, net):
    """Compute the activations of `net` from its inputs."""
    mlp.forward(net.parameters, net.layers, net.block, tile.zeros[:0])


def forward_first(tile, net):
    """Compute the activations of the first network of a stack."""
    mlp.forward(net.parameters, net.layers[: net.layers.shape[0] // net.outputs.number], net.block, tile.zeros[:0])


def get_input(tile, net, row, c):
    """Return input `row` of column `c`."""
    return net.block[row, c]


def set_input(tile, net, row, c, x):
    """Set input `row` of column `c`."""
    net.block[row, c] = x


def get_output(tile, net, k, c):
    """Return output `k` of column `c`."""
    return net.block[net.outputs.first + k * net.outputs.apart, c]


def set_output(tile, net, k, c, x):
    """Replace output `k` of column `c`."""
    net.block[net.outputs.first + k * net.outputs.apart, c] = x


def parameter(net, n):
    """Return a parameter that belongs to no layer."""
    return net.parameters[n]


def clear_slopes(tile, net):
    """Set the slopes of all outputs, which are linear, to 0. On a GPU they take the place of the outputs."""
    for k in range(net.outputs.number):
        net.slopes[net.outputs.first + k * net.outputs.apart] = float32(0.0)


def clear_rest(tile, net):
    """Set the slopes of the outputs of columns without a transition to 0."""
    for k in range(net.outputs.number):
        net.slopes[net.outputs.first + k * net.outputs.apart, tile.n :] = float32(0.0)


def set_slope(tile, net, k, c, x):
    """Set the slope of output `k` of column `c`, once."""
    net.slopes[net.outputs.first + k * net.outputs.apart, c] = x


def slopes_to_input(tile, net, k):
    """Compute the slopes of the inputs from those of the output of network `k` of a stack."""
    layers = net.layers.shape[0] // net.outputs.number
    mlp.backward_to_input(net.parameters, net.layers[k * layers : (k + 1) * layers], net.block, net.slopes, tile.zeros)


def get_input_slope(tile, net, row, c):
    """Return the slope of input `row` of column `c`, see `slopes_to_input`."""
    return net.slopes[row, c]


def get_scratch(tile, row, c):
    """Return number `row` that `set_scratch` has kept for column `c`."""
    return tile.scratch[row, c]


def set_scratch(tile, row, c, x):
    """Keep number `row` of column `c`."""
    tile.scratch[row, c] = x


def add_term(tile, k, c, x):
    """Add the number of column `c` to term `k`, of which the mean over the batch is shown."""
    tile.terms[k, c] += x


def stream_key(stream):
    """Return the key of the draw that a random stream is at."""
    return key_of(stream)
