"""Experience replay in CPU kernels: loops over what `kernels.replay` computes of one row."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType

import numpy as np
import torch

from warprun.kernels.bound import Call, kernel_module
from warprun.learning.draws import Stream
from warprun.learning.kernels.draws import key_of
from warprun.learning.kernels.replay import (
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
from warprun.learning.tensors import converted
from warprun.simulation.cpu import as_numpy
from warprun.simulation.trajectory import GroupTrajectory, Trajectory

float32, float64 = np.float32, np.float64


def store_step(part, ring, tree, place, rollout):
    """Write step `part` of the rollout that `place.steps` already includes to its rows; new transitions get the largest priority."""
    (horizon, n_envs, size), t = rollout.reward.shape, part
    step = place.steps[0] - horizon + t
    begin = step * place.actors % place.rows
    if place.linked:
        link(place, step, rollout.source[0], t > 0 or rollout.continues[0])
    elif t == 0 and not rollout.continues[0]:
        before = (step - 1) * place.actors % place.rows
        for row in range(before, before + place.actors):
            cut_off(ring, row)
    for n in range(n_envs):
        for a in range(size):
            store_row(ring, tree, rollout, begin + n * size + a, t, n, a, 0, 1)
    if tree.prioritized:
        first, last = begin, begin + place.actors - 1
        for level in range(tree.levels.size - 1):
            first, last = first // BRANCHES, last // BRANCHES
            for node in range(first, last + 1):
                sum_node(tree, level, node)


def draw_batch(ring, tree, place, stream, beta, n_step, gamma, batch):
    """Draw rows, by priority if the tree has priorities, and fill `batch` with their transitions."""
    key, size, count = key_of(stream), min(place.steps[0] * place.actors, place.rows), batch.row.size
    if tree.prioritized:
        largest = float64(0.0)
        for b in range(count):
            batch.row[b] = priority_row(tree, b, count, key)
            weight = importance(tree, batch.row[b], size, beta[()])
            batch.weight[b] = weight
            largest = max(largest, weight)
        for b in range(count):
            batch.weight[b] = float32(float64(batch.weight[b]) / largest)
    else:
        for b in range(count):
            batch.row[b] = uniform_row(b, size, key)
    gather_batch(ring, place, n_step, gamma, batch)


def gather_batch(ring, place, n_step, gamma, batch):
    """Fill `batch` with the transitions of up to n steps that begin in its rows [B]."""
    for b in range(batch.row.size):
        gather_row(ring, place, n_step, gamma, batch, b, 0, 1)


def put_priorities(tree, rows, errors, alpha, eps):
    """Set the priorities of rows [B], each by the largest of its errors, and compute the sums above them again."""
    for b in range(rows.size):
        tree.priority[rows[b]] = float32(0.0)
    for b in range(rows.size):
        priority = priority_of(errors[b], alpha, eps)
        tree.priority[rows[b]] = max(tree.priority[rows[b]], priority)
        tree.largest[0] = max(tree.largest[0], priority)
    reach = 1
    for level in range(tree.levels.size - 1):
        reach *= BRANCHES
        for b in range(rows.size):
            sum_node(tree, level, rows[b] // reach)


@cache
def module() -> ModuleType:
    """Return the compiled kernels."""
    return kernel_module("replay", {"store": [store_step], "draw": [draw_batch], "put": [put_priorities]})


class CpuReplay:
    """The operations on replay memory; the next draw overwrites the batch of the last one."""

    def __init__(self, replay: Replay) -> None:
        self._replay, self._batch = replay, replay.batch_memory()
        self._memory = tuple(converted(part, as_numpy) for part in (replay.ring, replay.tree, position(replay.place)))
        self._calls: dict[str, tuple[Call, tuple[object, ...]]] = {}
        """By the name of the kernel: its last call, and what it was made for."""

    def store(self, trajectory: Trajectory, group: GroupTrajectory) -> None:
        def arguments() -> tuple[object, ...]:
            return *self._memory, converted(rollout_of(trajectory, group), as_numpy)

        self._call("store", arguments, trajectory)(0, trajectory.horizon, 0)

    def draw(self, number: torch.Tensor) -> TransitionBatch:
        def arguments() -> tuple[object, ...]:
            own, batch = self._replay, converted(self._batch, as_numpy)
            return *self._memory, Stream(own.seed, number).words(), own.beta.tensor.numpy(), own.n_step, own.gamma, batch

        self._call("draw", arguments, number)(0, 1, 0)
        return self._batch

    def update_priorities(self, row: torch.Tensor, error: torch.Tensor) -> None:
        alpha, eps = self._replay.config.alpha, self._replay.config.eps
        self._call("put", lambda: (self._memory[1], row.numpy(), error.numpy(), alpha, eps), row, error)(0, 1, 0)

    def _call(self, kernel: str, arguments: Callable[[], tuple[object, ...]], *given: object) -> Call:
        """Return the last call of a kernel if it was made for the same objects, else a new one."""
        call, known = self._calls.get(kernel, (None, ()))
        if call is None or any(new is not old for new, old in zip(given, known, strict=True)):
            call = Call(getattr(module(), kernel), *arguments())
            self._calls[kernel] = call, given
        return call
