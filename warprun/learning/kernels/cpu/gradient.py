"""The gradient of a loss of tiles (CPU): a tile of rows after the other in blocks that stay in cache, then the sum over shares.

Rows are cut into tiles and shares by a rule that depends only on their number and on that of a step: a tile holds rows of one step, and is
as narrow as they allow. A thread computes one share after the other, and gradients are added in the order of the shares, so the number of
threads does not change a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels import ahead
from warprun.kernels import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.kernels.bound import Call, signature
from warprun.kernels.mlp import Network, Outputs, backward
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team
from warprun.learning.draws import Stream
from warprun.learning.kernels.cpu.loops.gradient import (
    SHARES,
    Cut,
    Stack,
    Workspace,
    add_kept,
    add_shares,
    add_terms,
    begin_of,
    mean_terms,
    on_blocks,
    on_own,
    run_of,
)
from warprun.learning.kernels.cpu.optimizer import split
from warprun.learning.kernels.cpu.tiles import Net, Tile, clear_rest
from warprun.learning.kernels.tile_loss import UNKNOWN, Layout, TileLoss, settings_for
from warprun.simulation.codegen.templates import fill

CACHE_BYTES = 640 * 1024
"""Activations and derivatives that a thread processes at once: most of a second-level cache of 1 MB."""
MOST_TOGETHER = 16
"""Tiles that a thread computes before their backward pass: the sums over the columns of a few cost a quarter of those of single ones."""

KERNEL = '''"""The gradient of the loss $name; written by warprun."""

from numba import njit


@njit(cache=True, **BOUND)
def gradient(first, last, thread, nets, settings, batch, cut, kept, memory):
    trained = nets[$trained]
    together = trained.blocks.shape[1] // (trained.rows * COLUMNS)
    tiles = -(-cut.step_rows // COLUMNS) * cut.steps
    for share in range(first, last):
        gradient, sums = memory.gradient[share], memory.sums[share]
        gradient[:] = float32(0.0)
        sums[:] = 0.0
        number, end = tiles * share // cut.shares, tiles * (share + 1) // cut.shares
        while number < end:
            used, n, width, before = run_of(cut, number, end, together)
            shape = (used, trained.rows, width)
            memory_of_blocks = kept[before * trained.rows :] if kept.size > 0 else trained.blocks[thread]
            blocks = memory_of_blocks[: used * trained.rows * width].reshape(shape)
            slopes = trained.slopes[thread][: used * trained.rows * width].reshape(shape)
            terms = memory.terms[thread]
            terms[:] = float32(0.0)
            for b in range(used):
                tile = Tile(
                    begin_of(cut, number + b), n, memory.scratch[thread], terms, memory.zeros, memory.picked[thread], kept.size > 0,
                )
                on = ($on)
                loss(tile, on, settings, batch)
                clear_rest(tile, on[$trained])
                add_kept(tile, memory.parameter_rows, gradient)
            add_terms(terms, sums)
            ahead = memory_of_blocks[blocks.size : 2 * blocks.size] if kept.size > 0 else memory.zeros[:0]
            backward(trained.parameters, trained.layers, blocks, slopes, memory.zeros, gradient, ahead)
            number += used
'''
FINISH = """

@njit(cache=True, **BOUND)
def finish(first, last, thread, count, shares, memory):
    add_shares(first, last, shares, memory)
    if first == 0:
        mean_terms(count, shares, memory)
"""
"""What every module of a gradient ends with."""
FUNCTIONS = (Net, Tile, run_of, begin_of, on_blocks, on_own, add_terms, add_kept, add_shares, mean_terms, clear_rest, backward)


def _module(loss: Callable[..., None], shares_memory: tuple[bool, ...]) -> ModuleType:
    """Return the kernels of a loss; `shares_memory`: which networks have the memory of the trained one, the last of them."""
    on = "".join(
        f"on_blocks(nets[{k}], blocks, slopes, b), " if shared else f"on_own(nets[{k}], thread, width), "
        for k, shared in enumerate(shares_memory)
    )
    source = fill(KERNEL + FINISH, name=loss.__name__, on=on, trained=str(len(shares_memory) - 1))
    names = {each.__name__: each for each in FUNCTIONS}
    return kernels.load_module(
        loss.__name__, source, {**names, "loss": loss, "BOUND": kernels.BOUND, "COLUMNS": COLUMNS, "float32": np.float32}
    )


class Shares:
    """The gradients of the shares of a batch, and their sum; allocates its memory once. `module` has the kernel `finish`."""

    def __init__(self, module: ModuleType, loss: TileLoss, parameters: int, rows: int, threads: int) -> None:
        """`rows`: those of the largest block."""
        self.memory = Workspace(
            scratch=aligned_zeros(threads, max(1, loss.scratch), COLUMNS),
            terms=aligned_zeros(threads, loss.terms, COLUMNS),
            picked=np.zeros((threads, COLUMNS), np.uint64),
            zeros=aligned_zeros(rows),
            gradient=aligned_zeros(SHARES, parameters),
            sums=np.zeros((SHARES, loss.terms)),
            means=aligned_zeros(loss.terms),
            parameter_rows=loss.parameter_rows,
        )
        self.results = torch.from_numpy(self.memory.gradient[0]), torch.from_numpy(self.memory.means)
        """The sum [P], and the means of the terms, as of the last `add`."""
        self.finish = Call(module.finish, 1, 1, self.memory)
        self._adders, self._pieces = split(parameters, threads)

    def add(self) -> None:
        """Add the gradients of the shares and take the means over the rows that `finish` has."""
        self._adders.share(self.finish, self._pieces)


class CpuGradient:
    """Computes the gradients of a loss by the last of the networks that it takes; allocates its memory once."""

    def __init__(self, nets: Sequence[Stack], loss: TileLoss, threads: int, share_tiles: int) -> None:
        """`share_tiles`: tiles of a share, if there are not too many rows."""
        trained = nets[-1]
        self._team, self._share_tiles, self._nets = team(threads), share_tiles, tuple(nets)
        self.module = _module(loss.loss, tuple(net.blocks is trained.blocks for net in nets))
        self._sum = Shares(self.module, loss, trained.parameters.size, max(net.rows for net in nets), threads)
        self._settings = settings_for(loss.settings, lambda tensor: tensor.view(-1).numpy(), Stream.words)
        self._compute: Call | None = None
        self._batch: NamedTuple | None = None
        self._arrays: NamedTuple | None = None
        self._layout, self._count, self._shares = UNKNOWN, 0, 1
        """What `_compute` has."""

    def compile_ahead(self, batch: NamedTuple) -> None:
        ahead.want(self.module, "gradient", signature(self._call(batch, Layout()).arguments))
        ahead.want(self.module, "finish", signature(self._sum.finish.arguments))

    def __call__(self, batch: NamedTuple, count: int, layout: Layout = UNKNOWN) -> tuple[torch.Tensor, torch.Tensor]:
        if self._compute is None:
            self._compute = self._call(batch, layout)
        if batch is not self._batch or layout is not self._layout or count != self._count:
            cut = Cut.of(count, layout.step_rows).shared(self._share_tiles)
            # Minibatches of a rollout have most of their tensors in common, whose arrays torch is slow to make.
            before = zip(self._batch or batch, self._arrays or arrays_of(batch), strict=True)
            self._arrays = batch._make(array if part is old else _array_of(part) for part, (old, array) in zip(batch, before, strict=True))
            self._compute.change(batch=self._arrays, cut=cut)
            if layout is not self._layout:
                self._compute.change(kept=layout.activations.view(-1).numpy())
            self._sum.finish.change(count=count, shares=cut.shares)
            self._shares, self._batch, self._layout, self._count = cut.shares, batch, layout, count
        self._team.share(self._compute, self._shares, 6.0 * self._nets[-1].parameters.size * count)
        self._sum.add()
        return self._sum.results

    def _call(self, batch: NamedTuple, layout: Layout) -> Call:
        arrays, kept = arrays_of(batch), layout.activations.view(-1).numpy()
        return Call(self.module.gradient, self._nets, self._settings, arrays, Cut(1, 1, 1), kept, self._sum.memory)


def tiles_together(rows: int) -> int:
    """Return how many tiles with blocks of so many rows a thread computes together."""
    return max(1, min(MOST_TOGETHER, CACHE_BYTES // (2 * rows * COLUMNS * 4)))


def stack_of(network: Network, threads: int) -> Stack:
    """Return a policy with its value on working memory of its own."""
    outputs = Outputs(network.value_row - network.policy_row + 1, network.policy_row, 1)
    blocks, slopes = aligned_zeros(2, threads, tiles_together(network.rows) * network.rows * COLUMNS)
    return Stack(network.parameters, network.layers, outputs, network.rows, network.mean, network.scale, blocks, slopes)


def arrays_of(batch: NamedTuple) -> NamedTuple:
    """Return a NamedTuple of tensors as one of arrays."""
    return batch._make(map(_array_of, batch))


def _array_of(part: object) -> object:
    return part.numpy() if isinstance(part, torch.Tensor) else part
