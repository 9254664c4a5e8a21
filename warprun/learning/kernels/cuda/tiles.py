"""Tiles of transitions on CUDA, in the shared memory of a block: the operations of which losses are made.

`kernels.cpu.tiles` has the same names for a CPU; `for_cuda` gives a loss these. All networks of a loss have rows of one shared array, in
which element [row, column] is at row * stride + column. Between two products of matrices a thread computes whole columns, which needs no
barrier. `load` and the products have barriers of their own, but a loss must not read an input before `forward` has run.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import NamedTuple

import numpy as np
import torch
from numba import cuda

from warprun.kernels.made import made
from warprun.kernels.mlp import Outputs, normalized
from warprun.kernels.mlp_cuda import compute_narrow_layer, read, write
from warprun.kernels.mlp_cuda_backward import BlockBackward, add_row_sums, add_weight_slopes, compute_slopes, derivative
from warprun.learning.draws import Stream, seed_words
from warprun.learning.kernels.cpu import tiles as on_cpu
from warprun.learning.kernels.draws import mix
from warprun.learning.rebinding import rebound
from warprun.simulation.cuda_launch import SIMULATED, on_device
from warprun.simulation.cuda_layers import Layers

float32, int64, uint32, uint64 = np.float32, np.int64, np.uint32, np.uint64


class Weights(NamedTuple):
    """A network, or several that share their inputs (a stack); kernels get device arrays in place of the tensors."""

    weights: torch.Tensor
    """[W] float32, in the order of `mlp_cuda.pack_layers`."""
    weights_back: torch.Tensor
    """[V] float32, in the order of `mlp_cuda_backward.pack_backward`."""
    beside: torch.Tensor
    """[D] float32: the parameters of no layer."""
    layers: torch.Tensor
    """[layer, 7] int32, see `mlp_cuda.BlockNetwork`; rows are those of the shared array."""
    back: torch.Tensor
    """[layer, 9] int32, see `mlp_cuda_backward.BlockBackward`."""
    outputs: Outputs
    """Rows of the shared array."""
    first: int
    """Row of the first input."""
    slopes: int
    """Row of the slope of the first input; of a network that is trained these are not computed."""
    normalizes: bool
    mean: torch.Tensor
    """[F] float32, of the observations; [1] unless `normalizes`."""
    scale: torch.Tensor
    """[F] float32: 1 / standard deviation; [1] unless `normalizes`."""


class Net(NamedTuple):
    """The same on the columns of a tile, as the functions of `mlp_cuda` and of `mlp_cuda_backward` take it."""

    weights: torch.Tensor
    beside: torch.Tensor
    layers: torch.Tensor
    back: BlockBackward
    outputs: Outputs
    first: int
    slopes: int
    columns: int
    stride: int
    normalizes: bool
    mean: torch.Tensor
    scale: torch.Tensor


class Tile(NamedTuple):
    """A tile of a batch."""

    begin: int
    """Its first transition in the batch."""
    n: int
    """Its transitions, of the first columns."""
    block: torch.Tensor
    """The shared array."""
    columns: int
    stride: int
    thread: int
    threads: int
    terms: int
    """Row of the first term."""
    scratch: int
    """First row of the memory of `set_scratch`."""
    weight: np.float32
    """1 / the transitions of the batch."""


class Words(NamedTuple):
    """A `draws.Stream` as kernels take it."""

    low: np.uint32
    high: np.uint32
    number: torch.Tensor
    """[1] int64."""


def words(stream: Stream) -> Words:
    """Return a random stream as kernels take it."""
    low, high = seed_words(stream.seed)
    return Words(np.uint32(low), np.uint32(high), on_device(stream.number.view(1)))  # type: ignore[arg-type]


def barrier():
    """Wait for the other threads of the block."""
    cuda.syncthreads()


if SIMULATED:
    barrier = cuda.jit(device=True)(barrier)


def columns(tile):
    """Return the columns that this thread computes."""
    return range(tile.thread, tile.n, tile.threads)


def load(tile, net, source, row):
    """Write the tile's rows of `source` [B, F] to the inputs of `net` from number `row` on."""
    barrier()
    features = source.shape[1]
    for m in range(tile.thread, tile.n * features, tile.threads):
        write(tile.block, (net.first + row + m % features) * tile.stride + m // features, source[tile.begin + m // features, m % features])


def observe(tile, net, rows):
    """Load the observations of the tile's rows, normalised, and compute the activations of `net`: the first operation of a loss."""
    features = rows.obs.shape[1]
    for m in range(tile.thread, tile.n * features, tile.threads):
        column, f = m // features, m % features
        x = rows.obs[uint64(row_at(tile, rows, column)), uint64(f)]
        if net.normalizes:
            x = normalized(x, read(net.mean, f), read(net.scale, f))
        write(tile.block, (net.first + f) * tile.stride + column, x)
    forward(tile, net)


def row_at(tile, rows, c):
    """Return the row in column `c`."""
    return read(rows.order, tile.begin + c) if rows.ordered else int64(tile.begin + c)


def keep_picked(tile, rows, source, row):
    """Keep the numbers of `source` [R] of the tile's rows in row `row`, see `get_scratch`."""
    for c in columns(tile):
        set_scratch(tile, row, c, float32(source[row_at(tile, rows, c)]))


def keep_advantages(tile, rows, mean, scale, row):
    """Keep the advantages of the tile's rows less `mean`, times `scale`, in row `row`."""
    for c in columns(tile):
        set_scratch(tile, row, c, (rows.advantage[tile.begin + c] - mean) * scale)


def forward(tile, net):
    """Compute the activations of `net` from its inputs."""
    compute_layers(net, net.layers.shape[0], tile.block, tile.thread, tile.threads)


def forward_first(tile, net):
    """Compute the activations of the first network of a stack."""
    compute_layers(net, net.layers.shape[0] // net.outputs.number, tile.block, tile.thread, tile.threads)


def compute_layers(net, count, block, thread, threads):
    """Compute the first `count` layers."""
    for layer in range(count):
        barrier()
        compute_narrow_layer(net, layer, block, thread, threads)
    barrier()


def get_input(tile, net, row, c):
    """Return input `row` of column `c`."""
    return read(tile.block, (net.first + row) * tile.stride + c)


def set_input(tile, net, row, c, x):
    """Set input `row` of column `c`."""
    write(tile.block, (net.first + row) * tile.stride + c, x)


def get_output(tile, net, k, c):
    """Return output `k` of column `c`."""
    return read(tile.block, (net.outputs.first + k * net.outputs.apart) * tile.stride + c)


def set_output(tile, net, k, c, x):
    """Replace output `k` of column `c`."""
    write(tile.block, (net.outputs.first + k * net.outputs.apart) * tile.stride + c, x)


def parameter(net, n):
    """Return parameter `n` of those that belong to no layer."""
    return read(net.beside, n)


def clear_slopes(tile, net):
    """Set the slopes of all outputs to 0. They take the place of the outputs, which must be linear."""
    for k in range(net.outputs.number):
        for c in columns(tile):
            write(tile.block, (net.outputs.first + k * net.outputs.apart) * tile.stride + c, float32(0.0))


def clear_rest(tile, net):
    """Set the slopes of the outputs of columns without a transition to 0."""
    for k in range(net.outputs.number):
        for c in range(tile.n + tile.thread, tile.columns, tile.threads):
            write(tile.block, (net.outputs.first + k * net.outputs.apart) * tile.stride + c, float32(0.0))


def set_slope(tile, net, k, c, x):
    """Set the slope of output `k` of column `c`, once: it takes the place of the output, through its activation function."""
    at = (net.outputs.first + k * net.outputs.apart) * tile.stride + c
    write(tile.block, at, x * derivative(read(tile.block, at), net.layers[net.layers.shape[0] - 1, 6]))


def slopes_to_input(tile, net, k):
    """Compute the slopes of the inputs from those of the output of network `k` of a stack."""
    count = net.layers.shape[0] // net.outputs.number
    for n in range(count):
        barrier()
        compute_slopes(net, net.back, (k + 1) * count - 1 - n, tile.block, tile.thread, tile.threads)
    barrier()


def get_input_slope(tile, net, row, c):
    """Return the slope of input `row` of column `c`, see `slopes_to_input`."""
    return read(tile.block, (net.slopes + row) * tile.stride + c)


def get_scratch(tile, row, c):
    """Return number `row` that `set_scratch` has kept for column `c`."""
    return read(tile.block, (tile.scratch + row) * tile.stride + c)


def set_scratch(tile, row, c, x):
    """Keep number `row` of column `c`."""
    write(tile.block, (tile.scratch + row) * tile.stride + c, x)


def add_term(tile, k, c, x):
    """Add the number of column `c` to term `k`, of which the mean over the batch is shown."""
    at = (tile.terms + k) * tile.stride + c
    write(tile.block, at, read(tile.block, at) + float32(x) * tile.weight)


def stream_key(stream):
    """Return the key of the draw that a random stream is at."""
    return mix(uint32(mix(uint32(uint32(stream.number[0]) + stream.low)) ^ stream.high))


def clear_terms(tile, count):
    """Set the terms of all columns to 0."""
    for m in range(tile.thread, count * tile.stride, tile.threads):
        write(tile.block, tile.terms * tile.stride + m, float32(0.0))


def clear_kept(tile, rows):
    """Set the slopes of parameters that belong to no layer to 0, of columns without a row."""
    for d in range(rows.number):
        for c in range(tile.n + tile.thread, tile.columns, tile.threads):
            write(tile.block, (tile.scratch + rows.row + d) * tile.stride + c, float32(0.0))


def add_gradient(tile, net, slopes, at, fresh):
    """Add the gradient of the parameters, and the terms, to `slopes` from index `at` on; `fresh`: there is nothing yet."""
    for backwards in range(net.layers.shape[0]):
        layer = net.layers.shape[0] - 1 - backwards
        barrier()
        add_weight_slopes(net, net.back, layer, tile.block, slopes, at, fresh, tile.thread, tile.threads)
        barrier()
        if net.back.layers[layer, 4] != net.first:  # the inputs need no slopes
            compute_slopes(net, net.back, layer, tile.block, tile.thread, tile.threads)
    barrier()
    add_row_sums(net, net.back, tile.block, slopes, at, fresh, tile.thread, tile.threads)
    barrier()


@made
def for_cuda(function: FunctionType, layers: Layers) -> FunctionType:
    """Return a loss of tiles, an operation on them or a function that they call, with these operations in the place of those of
    `kernels.cpu.tiles`, and with these layers."""
    return rebound(function, partial(_here, layers))


def _here(layers: Layers, value: object) -> object:
    if not isinstance(value, FunctionType):
        return value
    if value in LAYERS:
        return layers[LAYERS.index(value)]
    if value.__module__ == on_cpu.__name__:
        return _here(layers, globals()[value.__name__])
    return value if value.__module__.startswith(("warprun.math", "warprun.kernels")) else for_cuda(value, layers)


LAYERS = (compute_narrow_layer, compute_slopes, add_weight_slopes)
"""What operations here call, in the order of `Layers`."""
