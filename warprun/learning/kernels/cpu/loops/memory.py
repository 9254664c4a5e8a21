"""All steps of a tile of sequences (CPU), from a network with memory, which is also how its gradient begins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.kernels.memory import add_biases, load_carry, step_forward
from warprun.kernels.mlp import Network, Outputs, normalize

float32 = np.float32


class Unrolled(NamedTuple):
    """A network with memory, and the blocks of its steps."""

    network: Network
    """Its table of layers: see `warprun.kernels.memory`."""
    outputs: Outputs
    biases: NDArray[np.float32]
    """[thread, sums of all recurrent layers], see `add_biases`."""
    carried: NDArray[np.float32]
    """[thread, ...]: slopes of what the steps leave."""
    work: NDArray[np.float32]
    """[thread, ...], see `steps_backward`."""


class Sequences(NamedTuple):
    """B of the sequences of a rollout, and the past of their steps."""

    picked: NDArray[np.int64]
    """[B]: the sequences."""
    carry: NDArray[np.float32]
    """[sequence, H] before the first step."""
    keeps: NDArray[np.float32]
    """[T, sequence]: 0 where an episode begins, else 1."""
    width: int
    """Sequences of a tile."""
    shares: int


class Blocks(NamedTuple):
    """Memory of the threads, by the steps of the sequences."""

    values: NDArray[np.float32]
    """[thread, (1 + step) * row * column]."""
    slopes: NDArray[np.float32]
    """[thread, step * row * column] of those that go back together."""
    keeps: NDArray[np.float32]
    """[thread, step * column]."""


def unroll(net, rows, past, begin, n, blocks, keeps, biases, work):
    """Compute all steps of the `n` sequences from `begin` on: fill `blocks` [1 + step, row, column] and `keeps` [step, column]."""
    count, features, width = past.picked.size, rows.obs.shape[1], blocks.shape[2]
    network = net.network
    add_biases(network.parameters, network.layers, biases)
    blocks[0] = float32(0.0)
    for c in range(n):
        load_carry(network, past.carry[past.picked[begin + c]], blocks[0], c)
    for t in range(keeps.shape[0]):
        block, keep = blocks[1 + t], keeps[t]
        for f in range(features):
            for c in range(n):
                block[f, c] = rows.obs[rows.order[t * count + begin + c], f]
            for c in range(n, width):
                block[f, c] = float32(0.0)
        for c in range(n):
            keep[c] = past.keeps[t, past.picked[begin + c]]
        for c in range(n, width):
            keep[c] = float32(0.0)
        normalize(network, block)
        step_forward(network.parameters, network.layers, biases, blocks[t], block, keep, work)
