"""Experience replay in CUDA kernels: loops over what `kernels.replay` computes of one row.

A block of a warp stores or gathers one row. Draws, and sums of priorities, are those of a single block, as sums wait for those below them.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch

from warprun.learning.draws import Stream
from warprun.learning.kernels.cuda.tiles import stream_key, words
from warprun.learning.kernels.replay import (
    Rollout,
    cut_off,
    gather_row,
    importance,
    link,
    position,
    priority_of,
    priority_row,
    rollout_of,
    store_row,
    sum_node,
    uniform_row,
)
from warprun.learning.replay import BRANCHES, Replay, TransitionBatch
from warprun.simulation.cuda_launch import launch, module_for, on_device
from warprun.simulation.trajectory import GroupTrajectory, Trajectory

THREADS = 256
"""Threads of the single block that draws or sums."""
LANES = 32
"""Threads that share a row."""

float32, float64 = np.float32, np.float64


def sum_range(tree, level, reach, first, end, thread, threads):
    """Compute the sums of a level above rows `first` .. `end` - 1."""
    if end > first:
        for node in range(first // reach + thread, (end - 1) // reach + 1, threads):
            sum_node(tree, level, node)


def put_priority(tree, rows, errors, alpha, eps, b):
    """Set the priority of row `b` of a draw by the largest of its errors, and return it; 0 if an earlier one has the same row."""
    largest = float32(0.0)
    if b == 0 or rows[b] != rows[b - 1]:
        k = b
        while k < rows.size and rows[k] == rows[b]:
            largest = max(largest, priority_of(errors[k], alpha, eps))
            k += 1
        tree.priority[rows[b]] = largest
    return largest


def largest_of(shared, threads):
    """Return the largest number that a thread has left in `shared`."""
    largest = shared[0]
    for k in range(1, threads):
        largest = max(largest, shared[k])
    return largest


KERNELS = '''"""Replay memory on CUDA; written by warprun."""

from numba import cuda, float64

THREADS = {threads}


@cuda.jit(cache=CACHE, fastmath=False)
def store(ring, tree, place, rollout):
    horizon, n_envs, size = rollout.reward.shape
    kept = place.rows // place.actors
    item, lane = cuda.blockIdx.x, cuda.threadIdx.x
    t, n, a = item // (n_envs * size), item // size % n_envs, item % size
    step = place.steps[0] - horizon + t
    if place.linked:
        if item == 0 and lane == 0:
            for s in range(horizon):
                link(place, step + s, rollout.source[0], s > 0 or rollout.continues[0])
    elif t == 0 and lane == 0 and horizon < kept and not rollout.continues[0]:
        cut_off(ring, (step - 1) * place.actors % place.rows + n * size + a)
    if horizon - t <= kept:  # later steps take the place of the others
        store_row(ring, tree, rollout, step * place.actors % place.rows + n * size + a, t, n, a, lane, {lanes})


@cuda.jit(cache=CACHE, fastmath=False)
def sum_stored(tree, place, horizon):
    thread = cuda.threadIdx.x
    kept = place.rows // place.actors
    steps = horizon if horizon < kept else kept
    first = (place.steps[0] - steps) * place.actors % place.rows
    end = first + steps * place.actors
    reach = 1
    for level in range(tree.levels.size - 1):
        reach *= BRANCHES
        sum_range(tree, level, reach, first, min(end, place.rows), thread, THREADS)
        if end - place.rows > 0 and (end - place.rows - 1) // reach >= first // reach:
            sum_range(tree, level, reach, 0, first // reach * reach, thread, THREADS)
        else:
            sum_range(tree, level, reach, 0, end - place.rows, thread, THREADS)
        cuda.syncthreads()


@cuda.jit(cache=CACHE, fastmath=False)
def draw(tree, place, stream, beta, batch):
    thread, count = cuda.threadIdx.x, batch.row.size
    shared = cuda.shared.array(THREADS, float64)
    key, size = stream_key(stream), min(place.steps[0] * place.actors, place.rows)
    if tree.prioritized:
        largest = float64(0.0)
        for b in range(thread, count, THREADS):
            row = priority_row(tree, b, count, key)
            weight = importance(tree, row, size, beta[0])
            batch.row[b], batch.weight[b] = row, weight
            largest = max(largest, weight)
        shared[thread] = largest
        cuda.syncthreads()
        largest = largest_of(shared, THREADS)
        for b in range(thread, count, THREADS):
            batch.weight[b] = float64(batch.weight[b]) / largest
    else:
        for b in range(thread, count, THREADS):
            batch.row[b] = uniform_row(b, size, key)


@cuda.jit(cache=CACHE, fastmath=False)
def gather(ring, place, n_step, gamma, batch):
    gather_row(ring, place, n_step, gamma, batch, cuda.blockIdx.x, cuda.threadIdx.x, {lanes})


@cuda.jit(cache=CACHE, fastmath=False)
def put(tree, rows, errors, alpha, eps):
    thread = cuda.threadIdx.x
    shared = cuda.shared.array(THREADS, float64)
    largest = float64(0.0)
    for b in range(thread, rows.size, THREADS):
        largest = max(largest, float64(put_priority(tree, rows, errors, alpha, eps, b)))
    shared[thread] = largest
    cuda.syncthreads()
    if thread == 0:
        tree.largest[0] = max(float64(tree.largest[0]), largest_of(shared, THREADS))
    reach = 1
    for level in range(tree.levels.size - 1):
        reach *= BRANCHES
        for b in range(thread, rows.size, THREADS):
            if b == 0 or rows[b] // reach != rows[b - 1] // reach:
                sum_node(tree, level, rows[b] // reach)
        cuda.syncthreads()
'''
FUNCTIONS = (
    cut_off,
    gather_row,
    importance,
    largest_of,
    link,
    priority_row,
    put_priority,
    store_row,
    stream_key,
    sum_node,
    sum_range,
    uniform_row,
)


def module(threads: int) -> ModuleType:
    """Return the kernels, with blocks of so many threads."""
    named: dict[str, object] = {function.__name__: function for function in FUNCTIONS}
    return module_for("replay_cuda", KERNELS.format(threads=threads, lanes=LANES), named | {"BRANCHES": BRANCHES})


class CudaReplay:
    """The operations on replay memory; the next draw overwrites the batch of the last one."""

    def __init__(self, replay: Replay) -> None:
        device = replay.ring.reward.device
        self._replay, self._batch = replay, replay.batch_memory()
        # An empty array has no address that a kernel could get.
        self._tree, self._place = replay.tree._replace(levels=replay.tree.levels.to(device)), position(replay.place)
        if not self._tree.prioritized:
            self._tree = self._tree._replace(priority=torch.zeros(1, device=device))
        if not self._place.linked:
            nothing = torch.zeros(1, dtype=torch.int32, device=device), torch.zeros(1, dtype=torch.int64, device=device)
            self._place = self._place._replace(following=nothing[0], newest=nothing[1])
        self._module = module(THREADS)

    def store(self, trajectory: Trajectory, group: GroupTrajectory) -> None:
        rollout = Rollout(*(part.contiguous() for part in rollout_of(trajectory, group)))
        tree, place = on_device(self._tree), on_device(self._place)
        launch(self._module, "store", (group.reward.numel(), LANES), (on_device(self._replay.ring), tree, place, on_device(rollout)))
        if self._tree.prioritized:
            launch(self._module, "sum_stored", (1, THREADS), (tree, place, trajectory.horizon))

    def draw(self, number: torch.Tensor) -> TransitionBatch:
        own, place, batch = self._replay, on_device(self._place), on_device(self._batch)
        beta = on_device(own.beta.tensor.view(1))
        launch(self._module, "draw", (1, THREADS), (on_device(self._tree), place, words(Stream(own.seed, number)), beta, batch))
        given = (on_device(own.ring), place, own.n_step, float32(own.gamma), batch)
        launch(self._module, "gather", (own.batch_size, LANES), given)
        return self._batch

    def update_priorities(self, row: torch.Tensor, error: torch.Tensor) -> None:
        settings = (float64(self._replay.config.alpha), float64(self._replay.config.eps))
        launch(self._module, "put", (1, THREADS), (on_device(self._tree), on_device(row), on_device(error), *settings))
