"""Sums of observations and returns, statistics that they are merged into, and normalised rewards (CPU)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.kernels.simd import COLUMNS
from warprun.learning.formulas import merged, normalized_reward, varies

LANES = 16
"""Rows whose sums are kept apart: neighbouring numbers are added as vectors."""

float32, float64 = np.float32, np.float64


class Running(NamedTuple):
    """`RunningStatistics` as arrays, and what the merged rows are described by."""

    mean: NDArray[np.float64]
    """[F]."""
    variance: NDArray[np.float64]
    """[F]."""
    rows: NDArray[np.float64]
    """[1]: rows so far."""
    pivot: NDArray[np.float64]
    """[thread, lane * F]: subtracted from the numbers before they are summed; the same for all threads."""
    sums: NDArray[np.float64]
    """[share, 2, lane * F]: of the numbers and of their squares."""
    shift: NDArray[np.float32]
    """[F]: mean by which numbers are normalised from now on."""
    scale: NDArray[np.float32]
    """[F]: 1 / standard deviation."""
    window: float
    """`RunningStatistics.window`, or a large number."""


def moments_of_share(part, thread, shares, rows, running):
    """Sum the numbers of a share of `rows` [R, F] and their squares."""
    features = rows.shape[1]
    begin, end = rows.shape[0] * part // shares * features, rows.shape[0] * (part + 1) // shares * features
    width = LANES * features
    flat, pivot = rows.reshape(rows.size)[begin:end], running.pivot[thread]
    for m in range(pivot.size):
        pivot[m] = rows[0, m % features]
    totals, squares = running.sums[part, 0], running.sums[part, 1]
    totals[:] = 0.0
    squares[:] = 0.0
    for first in range(0, flat.size, width):
        numbers = flat[first : first + width]
        for m in range(numbers.size):
            x = float64(numbers[m]) - pivot[m]
            totals[m] += x
            squares[m] += x * x


def discounted_of_part(part, thread, reward, terminated, truncated, returns, source, continues, gamma, running):
    """Sum the discounted returns so far of a part of the columns of `reward` [T, R], and their squares.

    `returns` [source * R] are the returns before the first step, and become those after the last one.
    """
    horizon, total = reward.shape
    begin, end = part * COLUMNS, min((part + 1) * COLUMNS, total)
    so_far = returns[source[0] * total + begin : source[0] * total + end]
    totals, squares = running.sums[part, 0], running.sums[part, 1]
    totals[:] = 0.0
    squares[:] = 0.0
    pivot = float64(reward[0, 0])
    running.pivot[thread, 0] = pivot
    if not continues[0]:
        so_far[:] = float32(0.0)
    for t in range(horizon):
        rewards, over, cut = reward[t, begin:end], terminated[t, begin:end], truncated[t, begin:end]
        for c in range(so_far.size):
            value = rewards[c] + gamma * so_far[c]
            x = float64(value) - pivot
            totals[c] += x
            squares[c] += x * x
            so_far[c] = float32(0.0) if over[c] | cut[c] else value


def normalized_of_part(part, reward, terminated, gamma, running, out):
    """Write the rewards of a part of the columns, less the change of the potential, over the standard deviation, to `out` [T, R]."""
    horizon, total = reward.shape
    begin, end = part * COLUMNS, min((part + 1) * COLUMNS, total)
    mean, scale = running.shift[0], running.scale[0]
    for t in range(horizon):
        given, over, wanted = reward[t, begin:end], terminated[t, begin:end], out[t, begin:end]
        for c in range(wanted.size):
            wanted[c] = normalized_reward(given[c], over[c], mean, scale, gamma)


def merge_sums(count, running):
    """Take the sums over `count` rows into the statistics (Chan et al. 1979), and normalise by them from now on."""
    features = running.mean.size
    before = running.rows[0]
    for f in range(features):
        first, second = 0.0, 0.0
        for share in range(running.sums.shape[0]):
            for m in range(f, running.sums.shape[2], features):
                first += running.sums[share, 0, m]
                second += running.sums[share, 1, m]
        offset = first / count
        variance = max(second / count - offset * offset, 0.0)
        mean = running.pivot[0, f] + offset
        mean, variance = merged(running.mean[f], running.variance[f], before, mean - running.mean[f], variance, count)
        running.mean[f], running.variance[f] = mean, variance
        running.shift[f] = mean
        running.scale[f] = 1.0 / np.sqrt(variance if varies(mean, variance) else 1.0)
    running.rows[0] = min(before + count, running.window * count)
