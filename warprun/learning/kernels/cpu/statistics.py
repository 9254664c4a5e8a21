"""Running statistics of observations and rewards, and normalised rewards, in kernels (CPU): torch makes dozens of small operations of them.

The sums are those of float64 numbers less a pivot, their first one, so that the squares of large means do not drown the variance. They are
added in an order that depends on the number of rows only.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from weakref import WeakKeyDictionary

import numpy as np
import torch

from warprun.kernels import ahead
from warprun.kernels.bound import Call, Function, kernel_module, signature
from warprun.kernels.compile import merged_function
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team
from warprun.learning.kernels.cpu.loops.statistics import (
    LANES,
    Running,
    discounted_of_part,
    merge_sums,
    moments_of_share,
    normalized_of_part,
)
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
