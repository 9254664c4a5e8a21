"""The values that the steps of a part of a rollout led to, and the moments of advantages and returns (CPU)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from warprun.kernels.memory import step_after
from warprun.kernels.mlp import Memory, compute
from warprun.kernels.simd import COLUMNS
from warprun.kernels.vectors import NARROW
from warprun.learning.formulas import explained

float32, float64 = np.float32, np.float64


class Rollout(NamedTuple):
    """A rollout in the form that the kernels take: T steps of R = N*A columns, F features."""

    obs: np.ndarray
    """[R, F] float32: after the last step."""
    final_obs: np.ndarray
    """[K*R, F] float32: at the k-th truncation."""
    value: np.ndarray
    """[T, R] float32."""
    terminated: np.ndarray
    """[T, R] bool."""
    truncated: np.ndarray
    """[T, R] bool."""
    after: np.ndarray
    """[T, R, C] float32: what the policy remembers after a step, where it is the last one or truncated; C = 0: it has no memory."""


class Workspace(NamedTuple):
    """Working memory of the threads, [thread, ...] each, and the results of the parts."""

    block: np.ndarray
    """[thread, row * COLUMNS] float32: activations of up to COLUMNS observations."""
    following: np.ndarray
    """[thread, T, COLUMNS] float32: V of the observation that each step led to."""
    cuts: np.ndarray
    """[thread, COLUMNS] int64: truncations so far in each column."""
    rows: np.ndarray
    """[thread, COLUMNS (K + 1)] int64: rows of the observations whose values are needed."""
    places: np.ndarray
    """The same shape: index of each value in `following`."""
    after: np.ndarray
    """[thread, COLUMNS] float32: what the formula gave for the next step."""
    columns: np.ndarray
    """[thread, SUMS, COLUMNS] float64: sums of a column."""
    sums: np.ndarray
    """[part, SUMS] float64."""
    memory: Memory
    carries: np.ndarray
    """[thread, COLUMNS, C] float32."""


ADVANTAGE, ADVANTAGE_SQUARE, RETURNS, RETURNS_SQUARE = 0, 1, 2, 3
SUMS = 4


def follow(take_step, part, thread, network, steps, memory):
    """Write V of the observation after each step of a part to `memory.following`: of the final one if truncated, 0 if terminated.

    `take_step` computes a block of observations.
    """
    horizon, total = steps.value.shape
    begin, end = part * COLUMNS, min((part + 1) * COLUMNS, total)
    out, cuts = memory.following[thread], memory.cuts[thread]
    rows, places = memory.rows[thread], memory.places[thread]
    # Views that begin at 0: LLVM vectorises only if it knows that no index is negative.
    for t in range(horizon - 1):
        row, value = out[t], steps.value[t + 1, begin:end]
        for c in range(value.size):
            row[c] = value[c]
    # List the observations whose values are needed: few steps are truncated.
    count = end - begin
    for c in range(count):
        rows[c] = begin + c
        places[c] = (horizon - 1) * COLUMNS + c
    cuts[:] = 0
    for t in range(horizon):
        truncated = steps.truncated[t, begin:end]
        for c in range(truncated.size):
            if truncated[c]:
                rows[count] = cuts[c] * total + begin + c
                places[count] = t * COLUMNS + c
                cuts[c] += 1
                count += 1
    flat = out.reshape(out.size)
    for first in range(0, count, COLUMNS):
        last = min(first + COLUMNS, count)
        width = -(-(last - first) // NARROW) * NARROW
        block = memory.block[thread][: network.rows * width].reshape(network.rows, width)
        for m in range(first, last):
            obs = steps.obs if m < end - begin else steps.final_obs
            for f in range(obs.shape[1]):
                block[f, m - first] = obs[rows[m], f]
        take_step(thread, network, block, steps, begin, places[first:last], memory)
        for m in range(first, last):
            flat[places[m]] = block[network.value_row, m - first]
    for t in range(horizon):
        row, terminated = out[t], steps.terminated[t, begin:end]
        for c in range(terminated.size):
            row[c] = float32(0.0) if terminated[c] else row[c]


def without_memory(thread, network, block, steps, begin, places, memory):
    """Compute the observations of a block, see `follow`."""
    compute(network, block, block.reshape(block.size)[:0])


def with_memory(thread, network, block, steps, begin, places, memory):
    """Compute the observations of a block, each after the carry of the step at its place in `Workspace.following`."""
    carries = memory.carries[thread]
    for c in range(places.size):
        given, into = steps.after[places[c] // COLUMNS, begin + places[c] % COLUMNS], carries[c]
        for m in range(into.size):
            into[m] = given[m]
    step_after(network, block, carries, 0, places.size, memory.memory, thread)


def spread_of(count, sums, spread, share):
    """Write mean and variance of `count` advantages and returns to `spread` (`Spread`), and the share that the values explain."""
    for k in range(0, SUMS, 2):
        total, square = 0.0, 0.0
        for part in range(sums.shape[0]):
            total += sums[part, k]
            square += sums[part, k + 1]
        spread[k] = total / count
        spread[k + 1] = max(0.0, square - total * total / count) / max(1, count - 1)
    share[0] = explained(spread[1], spread[3])
