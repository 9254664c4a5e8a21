"""Fully connected networks on blocks of columns: forward and backward passes in the L1 and L2 caches. Functions for kernels.

A network is a table of layers over one flat parameter array. It works on one block of activations [row, column]: the rows of the input,
then those of each layer's output. Nothing is allocated; a block of a 64-64 network takes 35 kB.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.kernels.made import made
from warprun.kernels.simd import COLUMNS, add_row_sums, multiply, outer
from warprun.kernels.vectors import NARROW
from warprun.math import tanh
from warprun.spec import OBS_LIMIT

float32 = np.float32

LIMIT = np.float32(OBS_LIMIT)
LINEAR, TANH, RELU = 0, 1, 2


class Layer(NamedTuple):
    """One row of the table: the offsets of a layer's parameters, inputs and outputs."""

    weight: int
    """Offset of the weights [n_out, n_in] in the parameters."""
    bias: int
    """Offset of the biases [n_out] in the parameters."""
    n_in: int
    n_out: int
    in_row: int
    """First row of the inputs in a block; the observation begins at row 0."""
    out_row: int
    """First row of the outputs in a block."""
    activation: int
    """LINEAR, TANH or RELU, or a recurrent layer of `warprun.kernels.memory`."""


class Carry(NamedTuple):
    """The numbers that a network remembers of an episode, in the order of `learning.recurrent.Recurrent`."""

    size: int
    """0: the network has no memory."""
    places: NDArray[np.int64]
    """[cell]: the first number of each recurrent layer."""
    ages: NDArray[np.int64]
    """Numbers that count the steps since all was forgotten, if it is after `sequence` steps; else [0]."""
    sequence: int


NO_CARRY = Carry(0, np.zeros(0, np.int64), np.zeros(0, np.int64), 0)


class Outputs(NamedTuple):
    """The rows of a network's outputs in a block, or of those of several that share their inputs: `first`, `first` + `apart`, ..."""

    number: int
    first: int
    apart: int


class Network(NamedTuple):
    """A network as kernels take it."""

    parameters: NDArray[np.float32]
    """[P] float32, shared with torch."""
    layers: NDArray[np.int64]
    """[layer, 7] int64, the rows of `Layer`."""
    policy_row: int
    """First row of the policy's outputs in a block."""
    value_row: int
    rows: int
    """Rows of a block."""
    log_std: int
    """Offset of the log standard deviations in the parameters, the last ones of a Box policy."""
    mean: NDArray[np.float32]
    """[F] of the observations, or [0] if they are not normalised."""
    scale: NDArray[np.float32]
    """[F] or [0]: 1 / standard deviation."""
    carry: Carry = NO_CARRY


def layers_of(network: Network) -> list[Layer]:
    """Return the table of layers."""
    return [Layer(*(int(n) for n in row)) for row in network.layers]


class Memory(NamedTuple):
    """Memory of the threads for networks with memory, [thread, ...] float32 each; [thread, 0] without."""

    biases: np.ndarray
    """What the sums of recurrent layers begin with."""
    keep: np.ndarray
    """[thread, COLUMNS]: 0 where an episode begins with this step, else 1."""
    ages: np.ndarray
    """[thread, part * COLUMNS]: steps since all was forgotten (`Carry.ages`)."""
    work: np.ndarray
    """Of the widest layer, see `kernels.memory.step_forward`."""


class Inference(NamedTuple):
    """The arguments with which a rollout kernel computes the network of one group."""

    network: Network
    blocks: np.ndarray
    """[thread, part, row * COLUMNS] float32: memory for activations. Actors that are computed together are a part; without memory all parts
    have the same block, else the block of a part also has what its actors remember."""
    logits: np.ndarray
    """[thread, P, actor, lane] float32: policy outputs of a tile."""
    kept: np.ndarray
    """[tile, step, row, COLUMNS] float32: the activations of a whole rollout (`Trajectory.activations`), or [0, 0, 0, 0]."""
    first: np.ndarray
    """[environment * actor, C] float32: what actors remember before a rollout; C = 0 without memory."""
    after: np.ndarray
    """[step, environment * actor, C] float32: the same after its last step, and after each that cuts off an episode."""
    memory: Memory


def forward(parameters, layers, block, ahead):
    """Compute all layers: fill the rows of `block` [rows, columns] that follow the observation.

    `ahead` is memory that is needed next, which comes into the caches meanwhile.
    """
    flat, columns = block.reshape(block.size), block.shape[1]
    for n in range(layers.shape[0]):
        n_in, n_out, out_row = layers[n, 2], layers[n, 3], layers[n, 5]
        out = flat[out_row * columns : (out_row + n_out) * columns]
        weights, start, given = parameters[layers[n, 0] :], parameters[layers[n, 1] :], flat[layers[n, 4] * columns :]
        begin, size = share_of(parameters, layers, n, ahead)
        multiply(weights, n_in, 1, start, given, out, n_out, n_in, columns, ahead[begin:], size)
        if layers[n, 6] == TANH:
            for m in range(out.size):
                out[m] = tanh(out[m])
        elif layers[n, 6] == RELU:
            for m in range(out.size):
                out[m] = max(out[m], float32(0.0))


def share_of(parameters, layers, n, ahead):
    """Return which part of `ahead` layer `n` fetches, first element and size: as much of all as its part of the parameters is."""
    begin = layers[n, 0] * ahead.size // parameters.size // NARROW * NARROW
    return begin, layers[n, 2] * layers[n, 3] * ahead.size // parameters.size


def backward(parameters, layers, blocks, slopes, zeros, gradient, ahead):
    """Add the gradient of the parameters to `gradient` [P].

    `blocks` and `slopes` are [block, rows, columns]: the activations, and the derivatives of the loss with respect to them. The caller
    fills the slopes of the outputs; those of hidden layers are computed here. `zeros` [rows] holds zeros. `ahead` is memory for the same
    number of blocks that is needed next, see `forward`.
    """
    count, columns = blocks.shape[0], blocks.shape[2]
    stride = blocks.shape[1] * columns
    all_in, all_slopes = blocks.reshape(blocks.size), slopes.reshape(slopes.size)
    for n in range(layers.shape[0] - 1, -1, -1):
        weight, bias, n_in, n_out = layers[n, 0], layers[n, 1], layers[n, 2], layers[n, 3]
        in_row, out_row = layers[n, 4], layers[n, 5]
        if not is_read(layers, out_row):
            for b in range(count):
                slope = all_slopes[b * stride + out_row * columns : b * stride + (out_row + n_out) * columns]
                through_activation(layers[n, 6], all_in[b * stride + out_row * columns :], slope)
        slope, given = all_slopes[out_row * columns :], all_in[in_row * columns :]
        add_row_sums(gradient[bias:], slope, stride, n_out, count, columns)
        outer(gradient[weight:], slope, stride, given, stride, n_out, n_in, count, columns)
        if in_row > 0:
            for b in range(count):
                slope = all_slopes[b * stride + out_row * columns :]
                into = all_slopes[b * stride + in_row * columns : b * stride + (in_row + n_in) * columns]
                of_block = ahead[b * stride : (b + 1) * stride]
                begin, size = share_of(parameters, layers, n, of_block)
                multiply(parameters[weight:], 1, n_in, zeros, slope, into, n_in, n_out, columns, of_block[begin:], size)
                # At once, while the slopes are in the first-level cache.
                through_activation(activation_of(layers, in_row), all_in[b * stride + in_row * columns :], into)


def backward_to_input(parameters, layers, block, slopes, zeros):
    """Compute the slopes of the input of a chain of layers, without a gradient of the parameters; `block`, `slopes` [rows, columns]."""
    values, flat, columns = block.reshape(block.size), slopes.reshape(slopes.size), block.shape[1]
    for n in range(layers.shape[0] - 1, -1, -1):
        weight, n_in, n_out, in_row, out_row = layers[n, 0], layers[n, 2], layers[n, 3], layers[n, 4], layers[n, 5]
        out = values[out_row * columns : (out_row + n_out) * columns]
        slope = flat[out_row * columns : (out_row + n_out) * columns]
        through_activation(layers[n, 6], out, slope)
        into = flat[in_row * columns : (in_row + n_in) * columns]
        multiply(parameters[weight:], 1, n_in, zeros, slope, into, n_in, n_out, columns, into, 0)


def is_read(layers, row):
    """Return whether a layer of the table reads what begins at row `row`."""
    found = False
    for n in range(layers.shape[0]):
        found |= layers[n, 4] == row
    return found


def activation_of(layers, row):
    """Return the activation function of the layer of the table whose outputs begin at row `row`; LINEAR if there is none."""
    for n in range(layers.shape[0]):
        if layers[n, 5] == row:
            return layers[n, 6]
    return LINEAR


def through_activation(activation, out, slope):
    """Multiply `slope` in place by the derivative of a layer's activation function, given its outputs `out`."""
    if activation == TANH:
        for m in range(slope.size):
            slope[m] *= float32(1.0) - out[m] * out[m]
    elif activation == RELU:
        for m in range(slope.size):
            slope[m] = slope[m] if out[m] > float32(0.0) else float32(0.0)


def width_of(rows):
    """Return the columns of a block for that many rows: no more than they need."""
    return -(-rows // NARROW) * NARROW


@made
def infer_by(take_step, begin_of_block):
    """Return the function that computes a network for a tile of environments, each part of its actors by `take_step`.

    `begin_of_block` says where the block of a part begins in `Inference.blocks`: LLVM makes more of a 0 that it sees than of a sum.
    """

    def infer(inference, thread, tile, t, n_actors, features, obs, value, ends):
        """Write the policy's outputs (`Inference.logits`) and the value for a tile of environments at step `t`.

        `obs` [lane, actor, feature] and `value` [lane, actor] are flat. As many actors as fit into a block are computed together, each in
        as many columns as the tile has environments; `ends` is what `take_step` takes besides.
        """
        network, logits, kept = inference.network, inference.logits[thread], inference.kept
        lanes = value.size // n_actors
        width = width_of(lanes)
        together = COLUMNS // width
        n_logits = network.value_row - network.policy_row
        rows, values = obs.reshape(lanes, n_actors * features), value.reshape(lanes, n_actors)
        memory = inference.blocks[thread].reshape(inference.blocks.shape[1] * network.rows * COLUMNS)
        ahead = memory[:0]
        if kept.size > 0:
            memory = kept.reshape(kept.size)[(tile * kept.shape[1] * COLUMNS + t * width) * network.rows :]
            ahead = memory[network.rows * width : 2 * network.rows * width]
        for begin in range(0, n_actors, together):
            actors, at = min(together, n_actors - begin), begin_of_block(network, begin // together)
            part = memory[at : at + network.rows * actors * width].reshape(network.rows, actors * width)
            for a in range(actors):
                for f in range(features):
                    # Views that begin at 0: LLVM vectorises only if it knows that no index is negative.
                    into = part[f, a * width : a * width + lanes]
                    for lane in range(into.size):
                        into[lane] = rows[lane, (begin + a) * features + f]
            take_step(inference, thread, t, n_actors, begin, part, ahead, ends)
            for a in range(actors):
                for k in range(n_logits):
                    outputs = part[network.policy_row + k, a * width : (a + 1) * width]
                    for lane in range(outputs.size):
                        logits[k, begin + a, lane] = outputs[lane]
                outputs = part[network.value_row, a * width : a * width + lanes]
                for lane in range(outputs.size):
                    values[lane, begin + a] = outputs[lane]
        for k in range(n_logits, logits.shape[0]):
            log_std = network.parameters[network.log_std + k - n_logits]
            for a in range(n_actors):
                for lane in range(width):
                    logits[k, a, lane] = log_std

    return infer


def same_block(network, part):
    """Return where the block of each part begins that has nothing to remember."""
    return 0


def without_memory(inference, thread, t, n_actors, begin, block, ahead, ends):
    """Compute a part of the actors from their observations, see `infer`."""
    compute(inference.network, block, ahead)


def compute(network, block, ahead):
    """Normalise the observations in the first rows of `block` [rows, columns], if the network has statistics, and compute all layers.

    `ahead`: see `forward`.
    """
    normalize(network, block)
    forward(network.parameters, network.layers, block, ahead)


def normalize(network, block):
    """Normalise the observations in the first rows of `block` [rows, columns], if the network has statistics."""
    mean, scale = network.mean, network.scale
    for f in range(mean.size):
        for column in range(block.shape[1]):
            block[f, column] = normalized(block[f, column], mean[f], scale[f])


def normalized(x, mean, scale):
    """Return a number of an observation with mean 0 and variance 1, within `spec.OBS_LIMIT`; `scale` is 1 / standard deviation."""
    return min(max((x - mean) * scale, -LIMIT), LIMIT)
