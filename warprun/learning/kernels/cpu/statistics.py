"""Running statistics of observations and rewards, and normalised rewards, in kernels (CPU): torch makes dozens of small operations of them.

The sums are those of float64 numbers less a pivot, their first one, so that the squares of large means do not drown the variance. They are
added in an order that depends on the number of rows only.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from warprun.kernels import ahead
from warprun.kernels.bound import Call, Function, kernel_module, signature
from warprun.kernels.compile import merged_function
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team
from warprun.learning.formulas import merged, normalized_reward, varies
from warprun.learning.normalization import (
    ObservationNormalizer,
    RewardNormalizer,
    RunningStatistics,
    inverse_deviation,
)
from warprun.simulation.trajectory import Trajectory

SHARES = 16
"""Shares of rows, each with its own sums."""
EVERYTHING = 2**40
"""Window that holds every row that a run can have."""
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


@cache
def _module() -> ModuleType:
    made_of: dict[str, list[Function]] = {
        "moments": [moments_of_share],
        "discounted": [discounted_of_part],
        "normalized": [normalized_of_part],
        "merge": [merge_sums],
    }
    return kernel_module("statistics", made_of, merged_function)


class Ends:
    """The ends of episodes for each actor of a group, [T, N * A] bool: views of a trajectory, or copies if its actors have their own."""

    def __init__(self, trajectory: Trajectory, name: str) -> None:
        group = trajectory.groups[name]
        self._name = name
        self._copies = group.reward.shape[2] > 1 or group.alive is not None
        if self._copies:
            self._own = [torch.zeros_like(group.reward, dtype=torch.bool) for _ in range(2)]
            self.terminated, self.truncated = (flags.flatten(1) for flags in self._own)
        else:
            self.terminated, self.truncated = trajectory.terminated, trajectory.truncated

    def refresh(self, trajectory: Trajectory) -> None:
        """Copy what the last rollout has written to the trajectory, which is not kept: it is a weak key."""
        if self._copies:
            for own, flags in zip(self._own, trajectory.ends(self._name), strict=True):
                own.copy_(flags)


class Merging:
    """Takes sums into running statistics."""

    def __init__(
        self, statistics: RunningStatistics, shift: torch.Tensor, scale: torch.Tensor, shares: int, lanes: int, threads: int
    ) -> None:
        """`shift` and `scale`, [F] float32 each, are set to what numbers are normalised by from now on."""
        features = len(statistics.mean)
        self.statistics, self.shares = statistics, shares
        self.running = Running(
            mean=statistics.mean.numpy(),
            variance=statistics.variance.numpy(),
            rows=statistics.count.view(1).numpy(),
            pivot=np.zeros((threads, lanes * features)),
            sums=np.zeros((shares, 2, lanes * features)),
            shift=shift.numpy(),
            scale=scale.numpy(),
            window=float(statistics.window or EVERYTHING),
        )
        self._scale = scale
        self._shift = shift
        self._merge = Call(_module().merge, 0, self.running)

    def __call__(self, count: int) -> None:
        """Take in the sums over `count` rows, and those of the other processes."""
        if self.statistics.communicator.size == 1:
            self._merge.change(count=count)
            self._merge(0, 1, 0)
            return
        features = len(self._shift)
        sums = torch.from_numpy(self.running.sums).sum(0).view(2, -1, features).sum(1) / count
        variance = (sums[1] - sums[0] * sums[0]).clamp_(min=0.0)
        self.statistics.merge([(torch.from_numpy(self.running.pivot[0, :features]) + sums[0], variance, count)])
        self._shift.copy_(self.statistics.mean)
        self._scale.copy_(inverse_deviation(self.statistics.mean, self.statistics.variance))


class CpuObservations:
    """Takes observations into the statistics of a normaliser: the same as its statistics and `refresh` in torch."""

    def __init__(self, normalizer: ObservationNormalizer, threads: int) -> None:
        self.team = team(threads)
        self._merging = Merging(normalizer.statistics, normalizer.shift, normalizer.scale, SHARES, LANES, threads)
        self._place = (0, 0)
        """Address and number of the rows that `_call` has."""

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        running = self._merging.running
        ahead.want(_module(), "moments", signature((SHARES, np.zeros((1, 1), np.float32), running)))
        ahead.want(_module(), "merge", signature((0, running)))

    def __call__(self, obs: torch.Tensor) -> None:
        """Take in `obs` [B, F], contiguous, and normalise by the statistics from now on."""
        running, place = self._merging.running, (obs.data_ptr(), len(obs))
        if place != self._place:
            self._call, self._place = Call(_module().moments, SHARES, obs.numpy(), running), place
        self.team.share(self._call, SHARES, 4.0 * obs.numel())
        self._merging(len(obs))


class CpuRewards:
    """Normalises the rewards of rollouts: the same as `RewardNormalizer` in torch."""

    def __init__(self, normalizer: RewardNormalizer, name: str, threads: int) -> None:
        """`name` is that of the group."""
        self.normalizer, self.name = normalizer, name
        self.team = team(threads)
        self._bound: WeakKeyDictionary[Trajectory, tuple[Call, Call, Merging, Ends, torch.Tensor]] = WeakKeyDictionary()

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        numbers, flags, gamma = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.bool_), np.float32(0.0)
        running = Merging(self.normalizer.statistics, torch.zeros(1), torch.zeros(1), 1, COLUMNS, 1).running
        so_far = np.zeros(1, np.float32), np.zeros(1, np.int64), np.zeros(1, np.bool_)
        ahead.want(_module(), "discounted", signature((numbers, flags, flags, *so_far, gamma, running)))
        ahead.want(_module(), "normalized", signature((numbers, flags, gamma, running, numbers)))
        ahead.want(_module(), "merge", signature((0, running)))

    def __call__(self, trajectory: Trajectory) -> torch.Tensor:
        """Return the normalised rewards, [T, N, A]; the next call for this trajectory overwrites them."""
        if trajectory not in self._bound:
            self._bound[trajectory] = self._bind(trajectory)
        discounted, normalized, merging, ends, reward = self._bound[trajectory]
        ends.refresh(trajectory)
        rows, parts = reward.numel(), merging.shares
        self.team.share(discounted, parts, 8.0 * rows)
        merging(rows)
        self.team.share(normalized, parts, 4.0 * rows)
        return reward

    def _bind(self, trajectory: Trajectory) -> tuple[Call, Call, Merging, Ends, torch.Tensor]:
        given = trajectory.groups[self.name].reward
        out, ends = torch.from_numpy(aligned_zeros(*given.shape)), Ends(trajectory, self.name)
        gamma, columns = np.float32(self.normalizer.gamma), given.shape[1] * given.shape[2]
        shift, scale = torch.from_numpy(aligned_zeros(2, 1)).unbind()
        merging = Merging(self.normalizer.statistics, shift, scale, -(-columns // COLUMNS), COLUMNS, self.team.count)
        reward, over, cut = given.flatten(1).numpy(), ends.terminated.numpy(), ends.truncated.numpy()
        returns, source, continues = self.normalizer.returns.view(-1), trajectory.source.view(1), trajectory.continues.view(1)
        if self.normalizer.sources == 1:
            source = torch.from_numpy(np.zeros(1, np.int64))
        so_far = returns.numpy(), source.numpy(), continues.numpy()
        discounted = Call(_module().discounted, reward, over, cut, *so_far, gamma, merging.running)
        return discounted, Call(_module().normalized, reward, over, gamma, merging.running, out.flatten(1).numpy()), merging, ends, out
