"""Gradients of policies with memory (CPU): tiles of sequences, one in each column of blocks, through all steps and back.

As in `kernels.cpu.gradient`, tiles and shares follow from the number of sequences and steps alone, a thread computes one share after the
other, and gradients are added in the order of the shares. The loss of a step is that of a tile of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from warprun.kernels import ahead
from warprun.kernels import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.kernels.bound import Call, signature
from warprun.kernels.memory import BLOCKS, cells, steps_backward
from warprun.kernels.mlp import Network, Outputs, width_of
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team
from warprun.learning.batch import Batch
from warprun.learning.draws import Stream
from warprun.learning.kernels.cpu.gradient import FINISH, Shares, arrays_of
from warprun.learning.kernels.cpu.loops.gradient import SHARES, add_kept, add_shares, add_terms, mean_terms
from warprun.learning.kernels.cpu.loops.memory import Blocks, Sequences, Unrolled, unroll
from warprun.learning.kernels.cpu.tiles import Net, Tile, clear_rest
from warprun.learning.kernels.rows import example, rows_of
from warprun.learning.kernels.tile_loss import TileLoss, settings_for
from warprun.learning.operations import Moments
from warprun.learning.policy import ActorCriticPolicy
from warprun.learning.recurrent import Recurrent
from warprun.learning.settings.byte_counts import STEPS_TOGETHER, sequences_of_tile
from warprun.simulation.codegen.templates import fill

KERNEL = '''"""The gradient of the loss $name over sequences; written by warprun."""

from numba import njit


@njit(cache=True, **BOUND)
def gradient(first, last, thread, net, settings, rows, past, blocks, memory):
    network, count, steps = net.network, past.picked.size, past.keeps.shape[0]
    tiles = -(-count // past.width)
    for share in range(first, last):
        gradient, sums = memory.gradient[share], memory.sums[share]
        gradient[:] = float32(0.0)
        sums[:] = 0.0
        for number in range(tiles * share // past.shares, tiles * (share + 1) // past.shares):
            begin = number * past.width
            n = min(past.width, count - begin)
            width = width_of(n)
            size = network.rows * width
            values = blocks.values[thread][: (1 + steps) * size].reshape((1 + steps, network.rows, width))
            keeps = blocks.keeps[thread][: steps * width].reshape((steps, width))
            unroll(net, rows, past, begin, n, values, keeps, net.biases[thread], net.work[thread])
            carried = net.carried[thread]
            carried[:] = float32(0.0)
            end = steps
            while end > 0:
                before = max(0, end - TOGETHER)
                slopes = blocks.slopes[thread][: (end - before) * size].reshape((end - before, network.rows, width))
                terms = memory.terms[thread]
                terms[:] = float32(0.0)
                for t in range(before, end):
                    tile = Tile(t * count + begin, n, memory.scratch[thread], terms, memory.zeros, memory.picked[thread], True)
                    on = Net(
                        network.parameters, network.layers, net.outputs, values[1 + t], slopes[t - before], network.mean, network.scale
                    )
                    loss(tile, (on,), settings, rows)
                    clear_rest(tile, on)
                    add_kept(tile, memory.parameter_rows, gradient)
                add_terms(terms, sums)
                steps_backward(
                    network.parameters, network.layers, values[before], values[1 + before : 1 + end], slopes, keeps[before:end], carried,
                    memory.zeros, gradient, net.work[thread],
                )
                end = before

'''
FUNCTIONS = (Net, Tile, width_of, unroll, steps_backward, add_kept, add_terms, add_shares, mean_terms, clear_rest)


def _module(loss: Callable[..., None]) -> ModuleType:
    """Return the kernels of a loss."""
    name = f"{loss.__name__}_of_sequences"
    names = {each.__name__: each for each in FUNCTIONS}
    given = {**names, "loss": loss, "BOUND": kernels.BOUND, "TOGETHER": STEPS_TOGETHER, "float32": np.float32}
    return kernels.load_module(name, fill(KERNEL + FINISH, name=loss.__name__), given)


class MemoryGradient:
    """Computes the gradients of a policy with memory, as `Operations.gradient`."""

    def __init__(self, policy: ActorCriticPolicy, loss: TileLoss, threads: int) -> None:
        network = policy.kernel_network()
        self._policy, self._team = policy, team(threads)
        self.module = _module(loss.loss)
        self._net = unrolled(network, threads)
        self._sum = Shares(self.module, loss, network.parameters.size, network.rows, threads)
        self._settings = settings_for(loss.settings, lambda tensor: tensor.view(-1).numpy(), Stream.words)
        self._compute: Call | None = None
        self._blocks: dict[tuple[int, int], Blocks] = {}
        """By steps and the sequences of a tile."""
        self._keeps: WeakKeyDictionary[Batch, torch.Tensor] = WeakKeyDictionary()

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        rows = arrays_of(example(self._policy.space, self._policy.parameters.device))
        number, picked = np.zeros((1, 1), np.float32), np.zeros(1, np.int64)
        past, blocks = Sequences(picked, number, number, 1, 1), Blocks(number, number, number)
        ahead.want(self.module, "gradient", signature((self._net, self._settings, rows, past, blocks, self._sum.memory)))
        ahead.want(self.module, "finish", signature(self._sum.finish.arguments))

    def __call__(
        self, batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None, moments: Moments | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of the mean loss over sequences, `advantage` [B, T], and means of its terms."""
        assert batch.past
        (count, steps), past = advantage.shape, batch.past
        picked = torch.arange(count) if order is None else order.contiguous()
        keeps = self._keeps.get(batch)
        if keeps is None:
            recurrent = self._policy.network.policy
            assert isinstance(recurrent, Recurrent)
            self._keeps[batch] = keeps = recurrent.keeps(past.carry, past.begins.T)[0].contiguous()
        at = (picked[None] * steps + torch.arange(steps)[:, None]).view(-1)
        rows = rows_of(batch.rows(), advantage.T.contiguous().view(-1), at, moments)
        width = sequences_of_tile(count, steps)
        shares = min(SHARES, -(-count // width))
        sequences = Sequences(picked.numpy(), past.carry.contiguous().numpy(), keeps.numpy(), width, shares)
        self._run(arrays_of(rows), sequences, self._blocks_of(steps, width), shares, count * steps)
        return self._sum.results

    def _run(self, rows: NamedTuple, past: Sequences, blocks: Blocks, shares: int, count: int) -> None:
        if self._compute is None:
            self._compute = Call(self.module.gradient, self._net, self._settings, rows, past, blocks, self._sum.memory)
        self._compute.change(rows=rows, past=past, blocks=blocks)
        self._sum.finish.change(count=count, shares=shares)
        self._team.share(self._compute, shares)
        self._sum.add()

    def _blocks_of(self, steps: int, width: int) -> Blocks:
        found = self._blocks.get((steps, width))
        if found is None:
            self._blocks.clear()
            threads, size = self._team.count, self._net.network.rows * width
            values, slopes = aligned_zeros(threads, (1 + steps) * size), aligned_zeros(threads, min(steps, STEPS_TOGETHER) * size)
            found = self._blocks[steps, width] = Blocks(values, slopes, aligned_zeros(threads, steps * width))
        return found


def unrolled(network: Network, threads: int) -> Unrolled:
    """Return a policy with its value, and memory for its recurrent layers."""
    outputs = Outputs(network.value_row - network.policy_row + 1, network.policy_row, 1)
    own = cells(network.layers)
    units = own[:, 3]
    sizes = BLOCKS * int(units.sum()), 2 * int(units.sum()) * COLUMNS, 2 * int(units.max()) * COLUMNS
    memory = [aligned_zeros(threads, size) for size in sizes]
    return Unrolled(network, outputs, *memory)
