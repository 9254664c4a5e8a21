"""The gradient of a loss of tiles (CPU): how rows are cut into tiles and shares, blocks of tiles, and sums over shares."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.kernels.mlp import Outputs, width_of
from warprun.kernels.simd import COLUMNS
from warprun.learning.kernels.arguments import ParameterRows
from warprun.learning.kernels.cpu.loops.optimizer import PIECE
from warprun.learning.kernels.cpu.tiles import Net
from warprun.learning.settings.byte_counts import fills_blocks

SHARES = 16
"""Most shares of a batch, each with its own gradient: enough to balance the threads of a desktop, few enough that adding them is cheap."""

float32 = np.float32


class Stack(NamedTuple):
    """A network, or several that share their inputs, with working memory; a target network has that of the network it follows."""

    parameters: NDArray[np.float32]
    """[P]."""
    layers: NDArray[np.int64]
    """[layer, 7], see `warprun.kernels.mlp`."""
    outputs: Outputs
    rows: int
    """Of a block."""
    mean: NDArray[np.float32]
    """[F] of the observations, or [0] if they are not normalised here."""
    scale: NDArray[np.float32]
    """[F] or [0]: 1 / standard deviation."""
    blocks: NDArray[np.float32]
    """[thread, together * row * COLUMNS]: activations of tiles, one after the other."""
    slopes: NDArray[np.float32]
    """The same shape: derivatives of the loss by the activations."""


class Cut(NamedTuple):
    """How rows are cut into tiles: tiles are numbered step after step in the same columns, then those of the next columns follow."""

    steps: int
    step_rows: int
    shares: int

    @staticmethod
    def of(count: int, step_rows: int) -> Cut:
        """Return that of `count` rows: steps of the rollout are kept apart if they fill tiles."""
        return Cut(count // step_rows, step_rows, 1) if fills_blocks(step_rows) else Cut(1, count, 1)

    def tiles(self) -> int:
        """Return the number of tiles."""
        return -(-self.step_rows // COLUMNS) * self.steps

    def shared(self, share_tiles: int) -> Cut:
        """Return the same in shares of `share_tiles` tiles, if there are not too many rows; narrow tiles count as parts of whole ones."""
        whole = self.tiles() if self.step_rows >= COLUMNS else self.steps * width_of(self.step_rows) // COLUMNS
        return self._replace(shares=max(1, min(SHARES, whole // share_tiles)))


class Workspace(NamedTuple):
    """Working memory beside that of the networks, and the results of the shares."""

    scratch: NDArray[np.float32]
    """[thread, row, COLUMNS]: what a loss keeps of each row."""
    terms: NDArray[np.float32]
    """[thread, term, COLUMNS]."""
    picked: NDArray[np.uint64]
    """[thread, COLUMNS]."""
    zeros: NDArray[np.float32]
    """[row]."""
    gradient: NDArray[np.float32]
    """[share, P]; that of the first share becomes the sum."""
    sums: NDArray[np.float64]
    """[share, term]: sums over rows."""
    means: NDArray[np.float32]
    """[term]: means over rows."""
    parameter_rows: ParameterRows


def run_of(cut, number, end, together):
    """Return how many tiles from `number` on, before `end`, are computed together, their rows, their columns, and the columns before them.

    As many tiles of one width as fit into the memory; only those of the last columns may have fewer rows than COLUMNS.
    """
    full = cut.step_rows // COLUMNS * cut.steps
    used = min(together, (min(end, full) if number < full else end) - number)
    n = COLUMNS if number < full else cut.step_rows % COLUMNS
    return used, n, width_of(n), min(number, full) * COLUMNS + max(0, number - full) * width_of(n)


def begin_of(cut, number):
    """Return the first row of a tile."""
    return number % cut.steps * cut.step_rows + number // cut.steps * COLUMNS


def on_blocks(stack, blocks, slopes, b):
    """Return a network on block number `b`."""
    return Net(stack.parameters, stack.layers, stack.outputs, blocks[b], slopes[b], stack.mean, stack.scale)


def on_own(stack, thread, width):
    """Return a network that is not trained on its first block."""
    size, shape = stack.rows * width, (stack.rows, width)
    block, slopes = stack.blocks[thread][:size].reshape(shape), stack.slopes[thread][:size].reshape(shape)
    return Net(stack.parameters, stack.layers, stack.outputs, block, slopes, stack.mean, stack.scale)


def add_terms(terms, sums):
    """Add `terms` [term, column], each over all columns, to `sums` [term]."""
    for k in range(sums.size):
        total = float32(0.0)
        for c in range(terms.shape[1]):
            total += terms[k, c]
        sums[k] += total


def add_kept(tile, rows, gradient):
    """Add slopes that the loss has kept of a tile to those of parameters that belong to no layer."""
    for d in range(rows.number):
        total = float32(0.0)
        for c in range(tile.n):
            total += tile.scratch[rows.row + d, c]
        gradient[rows.parameter + d] += total


def add_shares(first, last, shares, memory):
    """Add pieces `first` .. `last` - 1 of the gradients of all shares to those of the first one."""
    begin, end = first * PIECE, min(last * PIECE, memory.gradient.shape[1])
    total = memory.gradient[0, begin:end]
    for share in range(1, shares):
        more = memory.gradient[share, begin:end]
        for m in range(total.size):
            total[m] += more[m]


def mean_terms(count, shares, memory):
    """Write the means over `count` rows."""
    for k in range(memory.means.size):
        total = 0.0
        for share in range(shares):
            total += memory.sums[share, k]
        memory.means[k] = total / count
