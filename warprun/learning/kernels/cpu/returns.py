"""Next values and advantages of a rollout in kernels (CPU): torch would pass over memory a dozen times, on one thread.

A column is one actor of one environment. A part is COLUMNS neighbouring columns over all steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from warprun.kernels import ahead
from warprun.kernels.bound import Call, signature
from warprun.kernels.compile import BOUND, load_module, merged_function
from warprun.kernels.memory import memory_of
from warprun.kernels.mlp import Network
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team
from warprun.learning.batch import Estimate, Spread
from warprun.learning.kernels.cpu.loops.returns import (
    ADVANTAGE,
    ADVANTAGE_SQUARE,
    RETURNS,
    RETURNS_SQUARE,
    SUMS,
    Rollout,
    Workspace,
    follow,
    spread_of,
    with_memory,
    without_memory,
)
from warprun.learning.kernels.cpu.statistics import Ends
from warprun.learning.settings.on_policy import OnPolicyConfig
from warprun.learning.targets import TARGETS, Discount, Step
from warprun.simulation.codegen.templates import fill
from warprun.simulation.trajectory import Trajectory
from warprun.spec import GroupSpec

KERNELS = '''"""Advantages by $target, and their moments; written by warprun."""

from numba import njit


@njit(cache=True, **BOUND)
def advantages(first, last, thread, network, steps, reward, log_ratio, p, advantage, returns, memory):
    horizon, total = advantage.shape
    after, sums = memory.after[thread], memory.columns[thread]
    turns = $turns
    for part in range(first, last):
        follow($take_step, part, thread, network, steps, memory)
        next_value = memory.following[thread]
        begin, end = part * COLUMNS, min((part + 1) * COLUMNS, total)
        after[:] = float32(0.0)
        sums[:] = 0.0
        for turn in range(turns):
            t = $t
            last_step = t == horizon - 1
            terminated, truncated, value = steps.terminated[t, begin:end], steps.truncated[t, begin:end], steps.value[t, begin:end]
            rewards, following, ratio = reward[t, begin:end], next_value[t], log_ratio[$ratio_row, begin:end]
            to_advantage, to_returns = advantage[t, begin:end], returns[t, begin:end]
            $before
            for c in range(value.size):
                step = Step(rewards[c], value[c], following[c], terminated[c] | truncated[c] | last_step, $ratio)
                after[c], to_advantage[c], to_returns[c] = target($carried[c], step, p)
            # float64, because the variance may be small compared with the mean.
            for c in range(value.size if turn >= turns - horizon else 0):
                a, r = float64(to_advantage[c]), float64(to_returns[c])
                sums[ADVANTAGE, c] += a
                sums[ADVANTAGE_SQUARE, c] += a * a
                sums[RETURNS, c] += r
                sums[RETURNS_SQUARE, c] += r * r
        for k in range(SUMS):
            memory.sums[part, k] = np.sum(sums[k])


@njit(cache=True, **BOUND)
def spread(first, last, thread, count, sums, spread, explained):
    spread_of(count, sums, spread, explained)
'''
"""The scan of a target, and the moments of what it gives."""
CONSTANTS = {
    "BOUND": BOUND,
    "COLUMNS": COLUMNS,
    "SUMS": SUMS,
    "ADVANTAGE": ADVANTAGE,
    "ADVANTAGE_SQUARE": ADVANTAGE_SQUARE,
    "RETURNS": RETURNS,
    "RETURNS_SQUARE": RETURNS_SQUARE,
    "Step": Step,
    "float32": np.float32,
    "float64": np.float64,
    "np": np,
}
BACKWARD = {"turns": "horizon", "t": "horizon - 1 - turn", "before": "", "carried": "after"}
"""The last step comes first, and `after` is what it gave."""
FORWARD = {
    "turns": "horizon * min(p.n_step, horizon)",
    "t": "turn % horizon",
    "before": "before = (steps.value if turn < horizon else returns)[min(t + 1, horizon - 1), begin:end]",
    "carried": "before",
}
"""See `Target.windowed`."""


@dataclass
class Bound:
    """The kernels of advantages for one trajectory."""

    call: Call
    spread: Call
    """The kernel that makes the sums of `memory` the moments of `estimate`."""
    ends: Ends
    memory: Workspace
    estimate: Estimate
    rewards: int
    """Address of the rewards that `call` has."""


class CpuReturns:
    """Computes advantages and returns of one group by kernels."""

    def __init__(self, network: Network, group: GroupSpec, config: OnPolicyConfig, threads: int) -> None:
        self.network, self.name = network, group.name
        self.team = team(threads)
        self.target, self.discount = TARGETS[config.advantage], Discount.of(config)
        texts, uses = FORWARD if self.target.windowed else BACKWARD, self.target.uses_ratio
        take_step = with_memory if network.carry.size else without_memory
        source = fill(
            KERNELS,
            target=config.advantage,
            take_step=take_step.__name__,
            ratio="ratio[c]" if uses else "float32(0.0)",
            ratio_row="t" if uses else "0",
            **texts,
        )
        names = {each.__name__: each for each in (follow, take_step, spread_of)} | CONSTANTS
        self.module = load_module(f"returns_{config.advantage}", source, names | {"target": self.target.formula}, merged_function)
        self._bound: WeakKeyDictionary[Trajectory, Bound] = WeakKeyDictionary()

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        values, ends = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.bool_)
        steps = Rollout(values, values, values, ends, ends, values[None])
        memory = self._memory(steps)
        ahead.want(self.module, "advantages", signature((self.network, steps, values, values, self.discount, values, values, memory)))
        ahead.want(self.module, "spread", signature((1, memory.sums, values[0], values[0])))

    def __call__(self, trajectory: Trajectory, reward: torch.Tensor, log_ratio: torch.Tensor | None) -> Estimate:
        """Return advantages and returns, [T, N, A]; the next call for this trajectory overwrites them."""
        reward = reward.contiguous()
        bound = self._bound.get(trajectory) or self._bound.setdefault(trajectory, self._bind(trajectory, reward))
        if bound.rewards != reward.data_ptr():  # torch has made them anew
            bound.call.change(reward=reward.flatten(1).numpy())
            bound.rewards = reward.data_ptr()
        if log_ratio is not None:
            bound.call.change(log_ratio=log_ratio.flatten(1).numpy())
        bound.ends.refresh(trajectory)
        parts = len(bound.memory.sums)
        self.team.share(bound.call, parts, 2.0 * self.network.parameters.size * parts * COLUMNS)
        rows = trajectory.groups[self.name].rows  # of actors that had left, advantage and return are 0 and add nothing
        bound.spread.change(count=rows)
        bound.spread(0, 1, 0)
        return bound.estimate

    def _bind(self, trajectory: Trajectory, reward: torch.Tensor) -> Bound:
        ends, (advantage, returns) = Ends(trajectory, self.name), (torch.from_numpy(aligned_zeros(*reward.shape)) for _ in range(2))
        steps = _steps(trajectory, self.name, ends)
        memory, given = self._memory(steps), reward.flatten(1).numpy()
        results = advantage.flatten(1).numpy(), returns.flatten(1).numpy()
        spread, explained = torch.from_numpy(np.zeros(SUMS, np.float32)), torch.from_numpy(np.zeros(1, np.float32))
        moments = Spread(*spread.unbind())._replace(explained=explained[0] if self.target.gives_errors else None)
        call = Call(self.module.advantages, self.network, steps, given, given, self.discount, *results, memory)
        of_sums = Call(self.module.spread, 1, memory.sums, spread.numpy(), explained.numpy())
        # With a ratio, a batch has log-probabilities that are new tensors in every update.
        estimate = Estimate(advantage, returns, moments, lasting=not self.target.uses_ratio)
        return Bound(call, of_sums, ends, memory, estimate, reward.data_ptr())

    def _memory(self, steps: Rollout) -> Workspace:
        threads, (horizon, columns) = self.team.count, steps.value.shape
        listed = (threads, COLUMNS * (len(steps.final_obs) // columns + 1))
        return Workspace(
            block=aligned_zeros(threads, self.network.rows * COLUMNS),
            following=aligned_zeros(threads, horizon, COLUMNS),
            cuts=np.zeros((threads, COLUMNS), np.int64),
            rows=np.zeros(listed, np.int64),
            places=np.zeros(listed, np.int64),
            after=aligned_zeros(threads, COLUMNS),
            columns=np.zeros((threads, SUMS, COLUMNS)),
            sums=np.zeros((-(-columns // COLUMNS), SUMS)),
            memory=memory_of(self.network, threads, 1),
            carries=np.zeros((threads, COLUMNS, self.network.carry.size), np.float32),
        )


def _steps(trajectory: Trajectory, name: str, ends: Ends) -> Rollout:
    group, carry = trajectory.groups[name], trajectory.carries.get(name)
    return Rollout(
        obs=group.obs[-1].flatten(0, 1).numpy(),
        final_obs=group.final_obs.flatten(0, 2).numpy(),
        value=group.value.flatten(1).numpy(),
        terminated=ends.terminated.numpy(),
        truncated=ends.truncated.numpy(),
        after=np.zeros((0, 0, 0), np.float32) if carry is None else carry.after.flatten(1, 2).numpy(),
    )
