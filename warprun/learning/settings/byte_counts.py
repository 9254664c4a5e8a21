"""Bytes that an agent allocates, from its settings and the spaces of a group alone.

The numbers follow the allocations of `learning.on_policy`, `learning.off_policy`, `learning.replay` and `learning.kernels.cpu`.
Symbols: B rows of a gradient step, P parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from warprun.spec import ActionKind

FLOAT = 4
"""Bytes of a float32."""
COLUMNS, NARROW = 64, 16
"""Columns of a block of activations, and what those of a narrower one are a multiple of (`kernels.simd`)."""
SHARES = 16
"""Most gradients that CPU kernels sum (`learning.kernels.cpu.gradient`)."""
ON_POLICY_TILES, OFF_POLICY_TILES = 4, 2
"""Tiles of a share (`learning.kernels.choose.SHARE_TILES`, `learning.kernels.cpu.updates.SHARE_TILES`)."""
GRADIENT_BLOCKS_BYTES = 640 * 1024
"""Activations and derivatives that a thread processes at once (`learning.kernels.cpu.gradient.CACHE_BYTES`)."""
SEQUENCE_ROWS, STEPS_TOGETHER = 8192, 4
"""Steps of sequences of a tile on a CPU, and steps that go back together: their sums over columns are taken at once. Long sequences have
narrow tiles, which bounds the memory of a thread (`learning.kernels.cpu.memory`)."""
ACTIVATIONS_BYTES = 128 << 20
"""Most bytes of activations that a rollout keeps for the gradient, for each thread."""
GRADIENT_THREADS = 384
"""Threads of a multiprocessor that compute a gradient at once: as its registers allow (`learning.kernels.cuda.gradient`)."""
MULTIPROCESSORS = 160
"""Of a large GPU."""
RECURRENT_THREADS = 256
"""Most threads of a block that computes the gradients of a recurrent layer (`learning.kernels.cuda.recurrent_slopes`)."""
PARTIAL_BYTES = 128 << 20
"""Most bytes of the gradients that the blocks of a GPU sum on their own."""
SLICE_ROWS, SLICES_TOGETHER, SEQUENCES = 4096, 4, 2
"""Rows of a slice of a batch that torch computes on CPU, what the number of slices is a multiple of, and by how many times slices of
sequences are larger (`learning.slices`)."""
KEPT_BELOW = 32 << 20
"""Freed blocks below this size are kept by the process on CPU (`learning.slices.use_one_torch_thread`)."""
LOSS_TENSORS = 8
"""Tensors of all numbers of a loss that torch holds at once, forwards and backwards."""
EVALUATION_TENSORS: dict[ActionKind, int] = {"choices": 2, "reals": 3}
"""Tensors as large as the policy outputs that evaluating actions holds at once (`learning.distributions`)."""
BRANCHES = 16
"""Children of a node of the sum tree (`learning.replay`)."""


class RunSizes(NamedTuple):
    """The sizes of a run on which the memory of an agent depends, beside its settings."""

    n_envs: int
    threads: int
    """CPU threads."""
    kernel_networks: bool
    """Whether kernels compute networks without gradients."""
    kernel_gradients: bool
    """Whether kernels compute the gradients."""
    recurrent_slopes: bool
    """Whether kernels on tensor cores compute the gradients of recurrent layers, within networks of torch."""
    keeps: bool
    """That of `Plan`."""
    on_gpu: bool


Phase = Sequence[int]
"""The blocks of memory, in bytes, that are allocated for a time, together."""


class AgentMemory(NamedTuple):
    """Bytes of an agent."""

    networks: int = 0
    """Parameters, target networks, moments of optimizers, gradients and working memory of kernels, for the whole run."""
    replay: int = 0
    """Replay memory, for the whole run."""
    phases: tuple[Phase, ...] = ()
    """Memory that updates, metrics and checkpoints allocate for a time, one phase after the other."""


def of_groups(groups: Iterable[AgentMemory]) -> AgentMemory:
    """Return the memory of all groups of an agent."""
    networks, replay, phases = zip(*groups, strict=True)
    return AgentMemory(sum(networks), sum(replay), tuple(itertools.chain.from_iterable(phases)))


def working_memory(phases: Sequence[Phase], on_gpu: bool) -> int:
    """Return the bytes that phases which follow each other need: small blocks stay with the process, large ones are given back."""
    limit = 0 if on_gpu else KEPT_BELOW
    small = max((sum(block for block in phase if block < limit) for phase in phases), default=0)
    return small + max((sum(block for block in phase if block >= limit) for phase in phases), default=0)


def parameters(features: int, outputs: int, hidden: Sequence[int]) -> int:
    """Return the parameters of fully connected layers."""
    return sum((n_in + 1) * n_out for n_in, n_out in pairwise([features, *hidden, outputs]))


def recurrent(features: int, units: Sequence[int], gates: int) -> int:
    """Return the parameters of recurrent layers: weights of their inputs and of their own outputs, and a bias for each of the two."""
    return sum(gates * (n_in + n_out + 2) * n_out for n_in, n_out in pairwise([features, *units]))


def optimizer_tensors(name: str) -> int:
    """Return the tensors [P] that an optimizer keeps."""
    return 2 if name == "adam" else 1


def on_policy_gradient(n_parameters: int, units: int, rows: int, most: int, sizes: RunSizes) -> tuple[int, Phase]:
    """Return the bytes that are kept for gradients of B = `rows` rows, and what computing one allocates for a time.

    `most`: rows of a slice. `units` are the numbers of a row in all layers, inputs and outputs included.
    """
    one = FLOAT * n_parameters
    if sizes.kernel_gradients and sizes.on_gpu:
        # Blocks of one warp, the most there can be; beside their gradients the sum, and weights in two orders.
        return one * (cuda_blocks(n_parameters, 32, MULTIPROCESSORS) + 3), []
    if sizes.kernel_gradients:
        together = max(1, min(16, GRADIENT_BLOCKS_BYTES // (2 * units * COLUMNS * FLOAT)))
        blocks = 2 * sizes.threads * together * units * COLUMNS * FLOAT
        # Memory of the other shares is never written, so it is never taken.
        shares = shares_of(rows, min(together, ON_POLICY_TILES))
        return shares * one + blocks, []
    slices, slice_rows, at_once = 1, rows, 1
    if not sizes.on_gpu and rows > most:
        slices = -(-rows // most)
        slices = -(-slices // SLICES_TOGETHER) * SLICES_TOGETHER
        slice_rows, at_once = -(-rows // slices), sizes.threads
    # torch keeps the outputs of every layer for the backward pass.
    return 0, [one] * (slices + at_once) + [slice_rows * units * FLOAT] * (2 * at_once)


def sequences_of_tile(count: int, steps: int) -> int:
    """Return how many of `count` sequences a tile on a CPU holds: few have narrow tiles, so that there is one for each share."""
    most = max(NARROW, min(COLUMNS, SEQUENCE_ROWS // steps // NARROW * NARROW))
    return min(most, -(-count // (SHARES * NARROW)) * NARROW)


def sequence_gradient(n_parameters: int, block_rows: int, count: int, steps: int, threads: int) -> tuple[int, Phase]:
    """Return what `on_policy_gradient` does, for `count` sequences of a network with memory and kernels on a CPU."""
    columns = sequences_of_tile(count, steps)
    blocks = threads * (1 + steps + min(steps, STEPS_TOGETHER)) * block_rows * columns
    return FLOAT * (blocks + min(SHARES, -(-count // columns)) * n_parameters), []


def fills_blocks(rows: int) -> bool:
    """Return whether the rows of a step get blocks of their own: enough for a whole one, or for three quarters of a narrower one.

    Those of several steps together waste fewer columns, but their activations cannot be kept.
    """
    return rows >= COLUMNS or 4 * rows >= 3 * max(1, -(-rows // NARROW)) * NARROW


def activations(n_envs: int, horizon: int, units: int, threads: int) -> int:
    """Return the bytes of the activations that a rollout keeps for the gradient; 0 if they are too many, or too few to fill a block."""
    needed = FLOAT * -(-n_envs // COLUMNS) * COLUMNS * horizon * units
    return needed if fills_blocks(n_envs) and needed <= threads * ACTIVATIONS_BYTES else 0


def cuda_blocks(width: int, threads: int, multiprocessors: int) -> int:
    """Return how many blocks of `threads` threads compute a gradient on a GPU, each with `width` numbers of its own."""
    return max(1, min(multiprocessors * (GRADIENT_THREADS // threads), PARTIAL_BYTES // (FLOAT * width)))


def recurrent_blocks(inputs: int, units: int, gates: int, multiprocessors: int) -> tuple[int, int]:
    """Return how many gradients of a recurrent layer are summed by blocks of a GPU, a block for each gate, and the threads of a block."""
    threads = min(RECURRENT_THREADS, -(-2 * units // 32) * 32)
    return -(-cuda_blocks(recurrent(inputs, [units], gates), threads, multiprocessors) // gates), threads


def recurrent_gradient(inputs: int, units: int, gates: int) -> int:
    """Return the bytes that a GPU keeps for the gradients of a recurrent layer on tensor cores.

    Sums of blocks and their sum; weights of what is remembered in two orders, with two numbers for each that say what it is made of.
    """
    sums, _ = recurrent_blocks(inputs, units, gates, MULTIPROCESSORS)
    return FLOAT * ((sums + 1) * recurrent(inputs, [units], gates) + 2 * (1 + 2) * gates * units**2)


def on_policy_results(rows: int, actors: int, normalizes: bool) -> int:
    """Return the bytes that CPU kernels keep for a rollout: advantages and returns, rewards, and ends for each actor."""
    flags = 2 * rows if actors > 1 else 0
    return FLOAT * rows * (2 + normalizes) + flags * (1 + normalizes)


def shares_of(rows: int, share_tiles: int) -> int:
    """Return how many gradients CPU kernels sum for so many rows."""
    return max(1, min(SHARES, -(-rows // COLUMNS) // share_tiles))


def optimizer_step(n_parameters: int) -> Phase:
    """Return what an optimizer step allocates for a time, with the gradient."""
    return [FLOAT * n_parameters] * 5


def making(n_parameters: int, hidden: Sequence[int], orthogonal: bool) -> Phase:
    """Return what making a network allocates for a time: a flat copy, and the QR decomposition of the largest layer."""
    largest = max([a * b for a, b in pairwise(hidden)], default=0)
    return [FLOAT * n_parameters, *[FLOAT * largest] * (4 if orthogonal else 0)]


def rows_of_alive(rows: int, features: int, masked_actions: int, components: int) -> Phase:
    """Return the copy of a batch without the rows of actors that have left: at most all rows, with their numbers."""
    return [4 * rows * features, rows * masked_actions, 4 * rows * components, *[4 * rows] * 4, rows, 8 * rows]


def shuffling(rows: int) -> Phase:
    """Return what shuffling rows allocates: keys of int32 and a sorted copy, indices of int64, and buffers of the sort for both."""
    return [4 * rows, 4 * rows, 8 * rows, 8 * rows, 4 * rows, 8 * rows]


def moments(rows: int, features: int) -> Phase:
    """Return what the mean and variance of rows allocate: a copy in float64."""
    return [8 * rows * features]


def ring(capacity: int, observed: int, components: int, prioritized: bool) -> int:
    """Return the bytes of the transitions of replay memory, and of their priorities with the sums above them.

    `observed`: the bytes of both observations of a transition, and of what the policy remembered before it.
    """
    rows = capacity * (observed + FLOAT * (components + 1) + 1)
    if not prioritized:
        return rows
    nodes, sums = -(-capacity // BRANCHES), 1
    rows += FLOAT * nodes * BRANCHES
    while nodes > 1:
        sums += -(-nodes // BRANCHES) * BRANCHES
        nodes = -(-nodes // BRANCHES)
    return rows + 8 * sums


def finite_check(numbers: int) -> Phase:
    """Return what checking whether float32 numbers are finite allocates: their absolute values and three flags each."""
    return [4 * numbers, numbers, numbers, numbers]
