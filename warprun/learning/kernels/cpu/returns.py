"""Next values and advantages of a rollout in kernels (CPU): torch would pass over memory a dozen times, on one thread.

A column is one actor of one environment. A part is COLUMNS neighbouring columns over all steps.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from warprun.kernels import ahead
from warprun.kernels.bound import Call, Function, kernel_module, signature
from warprun.kernels.compile import merged_function
from warprun.kernels.mlp import Network, forward, normalize
from warprun.kernels.simd import COLUMNS, NARROW, aligned_zeros
from warprun.kernels.threads import team
from warprun.learning.batch import Estimate, Spread
from warprun.learning.kernels.cpu.statistics import Ends
from warprun.learning.operations import TorchOperations
from warprun.simulation.trajectory import Trajectory

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
    """[thread, COLUMNS] float32: advantages of the next step."""
    columns: np.ndarray
    """[thread, SUMS, COLUMNS] float64: sums of a column."""
    sums: np.ndarray
    """[part, SUMS] float64."""


ADVANTAGE, ADVANTAGE_SQUARE, RETURNS, RETURNS_SQUARE = 0, 1, 2, 3
SUMS = 4


def follow(part, thread, network, steps, memory):
    """Write V of the observation after each step of a part to `memory.following`: of the final one if truncated, 0 if terminated."""
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
        normalize(network.mean, network.scale, block)
        forward(network.parameters, network.layers, block)
        for m in range(first, last):
            flat[places[m]] = block[network.value_row, m - first]
    for t in range(horizon):
        row, terminated = out[t], steps.terminated[t, begin:end]
        for c in range(terminated.size):
            row[c] = float32(0.0) if terminated[c] else row[c]


def next_values_of_part(part, thread, network, steps, next_value, memory):
    """Write the values of `follow` to `next_value` [T, R]."""
    follow(part, thread, network, steps, memory)
    following = memory.following[thread]
    begin, end = part * COLUMNS, min((part + 1) * COLUMNS, next_value.shape[1])
    for t in range(next_value.shape[0]):
        row, value = next_value[t, begin:end], following[t]
        for c in range(row.size):  # Numba takes two seconds to compile the error message of an assignment of slices
            row[c] = value[c]


def advantages_of_part(part, thread, network, steps, reward, gamma, gae_lambda, advantage, returns, memory):
    """Write A_t = delta_t + gamma lambda A_t+1 and A_t + V_t, [T, R], and their sums; Schulman et al. 2016, eq. 16."""
    follow(part, thread, network, steps, memory)
    next_value = memory.following[thread]
    horizon, total = advantage.shape
    begin, end = part * COLUMNS, min((part + 1) * COLUMNS, total)
    sums = memory.columns[thread]
    sums[:] = 0.0
    after = memory.after[thread]
    after[:] = float32(0.0)
    decay = gamma * gae_lambda
    for t in range(horizon - 1, -1, -1):
        terminated, truncated, value = steps.terminated[t, begin:end], steps.truncated[t, begin:end], steps.value[t, begin:end]
        rewards, following = reward[t, begin:end], next_value[t]
        to_advantage, to_returns = advantage[t, begin:end], returns[t, begin:end]
        for c in range(value.size):
            delta = rewards[c] + gamma * following[c] - value[c]
            after[c] = delta + (float32(0.0) if terminated[c] | truncated[c] else decay * after[c])
            to_advantage[c] = after[c]
            to_returns[c] = after[c] + value[c]
        # float64, because the variance may be small compared with the mean.
        for c in range(value.size):
            a, r = float64(to_advantage[c]), float64(to_returns[c])
            sums[ADVANTAGE, c] += a
            sums[ADVANTAGE_SQUARE, c] += a * a
            sums[RETURNS, c] += r
            sums[RETURNS_SQUARE, c] += r * r
    for k in range(SUMS):
        memory.sums[part, k] = np.sum(sums[k])


def spread_of(count, sums, spread, explained):
    """Write mean and variance of `count` advantages and returns to `spread` (`Spread`), and the variance that the values explain."""
    for k in range(0, SUMS, 2):
        total, square = 0.0, 0.0
        for part in range(sums.shape[0]):
            total += sums[part, k]
            square += sums[part, k + 1]
        spread[k] = total / count
        spread[k + 1] = max(0.0, square - total * total / count) / max(1, count - 1)
    errors, returns = spread[1], spread[3]
    explained[0] = (returns - errors) / returns if returns > 0.0 else 0.0


KERNELS: dict[str, list[Function]] = {
    "next_values": [next_values_of_part],
    "advantages": [advantages_of_part],
    "spread": [spread_of],
}


class Bound(NamedTuple):
    """The kernel of next values for one trajectory."""

    call: Call
    ends: Ends
    memory: Workspace
    next_value: torch.Tensor
    """[T, N, A]."""


class BoundGAE(NamedTuple):
    """The kernels of advantages for one trajectory and one place of its rewards."""

    call: Call
    spread: Call
    """The kernel that makes the sums of `memory` the moments of `estimate`."""
    ends: Ends
    memory: Workspace
    estimate: Estimate
    rewards: int
    """Address of the rewards."""


class CpuReturns:
    """Computes next values and advantages of one group by kernels."""

    def __init__(self, network: Network, by_torch: TorchOperations, threads: int) -> None:
        """`by_torch` are the operations of the group by torch: only GAE has a kernel, other targets start from the next values."""
        self.network = network
        self.name, self.config, self._by_torch = by_torch.group.name, by_torch.config, by_torch
        self.team = team(threads)
        self.module = kernel_module("returns", KERNELS, merged_function)
        self._next_values: WeakKeyDictionary[Trajectory, Bound] = WeakKeyDictionary()
        self._advantages: WeakKeyDictionary[Trajectory, BoundGAE] = WeakKeyDictionary()

    def compile_ahead(self) -> None:
        """Let another process compile the kernels of the target (`kernels.ahead`)."""
        values, ends = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.bool_)
        steps = Rollout(values, values, values, ends, ends)
        number, gae = np.float32(0.0), self.config.advantage == "gae"
        between = (values, number, number, values) if gae else ()
        given = (self.network, steps, *between, values, self._memory(steps))
        ahead.want(self.module, "advantages" if gae else "next_values", signature(given))
        if gae:
            ahead.want(self.module, "spread", signature((1, self._memory(steps).sums, values[0], values[0])))

    def next_value(self, trajectory: Trajectory) -> torch.Tensor:
        """Return V of the observation after each step, [T, N, A]; the next call for this trajectory overwrites it."""
        if trajectory not in self._next_values:
            ends = Ends(trajectory, self.name)
            steps, out = _steps(trajectory, self.name, ends), torch.zeros_like(trajectory.groups[self.name].value)
            memory = self._memory(steps)
            call = Call(self.module.next_values, self.network, steps, out.flatten(1).numpy(), memory)
            self._next_values[trajectory] = Bound(call, ends, memory, out)
        bound = self._next_values[trajectory]
        self._run(bound, trajectory)
        return bound.next_value

    def advantages(self, trajectory: Trajectory, reward: torch.Tensor, log_ratio: torch.Tensor | None) -> Estimate:
        """Return advantages and returns, [T, N, A]; those of GAE are overwritten by the next call for this trajectory."""
        if self.config.advantage != "gae":
            return self._by_torch.estimate(trajectory, reward, self.next_value(trajectory), log_ratio)
        reward = reward.contiguous()
        bound = self._advantages.get(trajectory)
        if bound is None or bound.rewards != reward.data_ptr():
            bound = self._advantages[trajectory] = self._bind(trajectory, reward)
        self._run(bound, trajectory)
        rows = trajectory.groups[self.name].rows  # of actors that had left, advantage and return are 0 and add nothing
        bound.spread.change(count=rows)
        bound.spread(0, 1, 0)
        return bound.estimate

    def _bind(self, trajectory: Trajectory, reward: torch.Tensor) -> BoundGAE:
        ends, advantage, returns = Ends(trajectory, self.name), torch.zeros_like(reward), torch.zeros_like(reward)
        steps = _steps(trajectory, self.name, ends)
        memory = self._memory(steps)
        of_rows = (reward.flatten(1).numpy(), np.float32(self.config.gamma), np.float32(self.config.gae_lambda))
        given = (self.network, steps, *of_rows, advantage.flatten(1).numpy(), returns.flatten(1).numpy(), memory)
        spread, explained = torch.zeros(SUMS), torch.zeros(1)
        estimate = Estimate(advantage, returns, Spread(*spread.unbind())._replace(explained=explained[0]), lasting=True)
        moments = Call(self.module.spread, 1, memory.sums, spread.numpy(), explained.numpy())
        return BoundGAE(Call(self.module.advantages, *given), moments, ends, memory, estimate, reward.data_ptr())

    def _run(self, bound: Bound | BoundGAE, trajectory: Trajectory) -> None:
        bound.ends.refresh(trajectory)
        parts = len(bound.memory.sums)
        self.team.share(bound.call, parts, 2.0 * self.network.parameters.size * parts * COLUMNS)

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
        )


def _steps(trajectory: Trajectory, name: str, ends: Ends) -> Rollout:
    group = trajectory.groups[name]
    return Rollout(
        obs=group.obs[-1].flatten(0, 1).numpy(),
        final_obs=group.final_obs.flatten(0, 2).numpy(),
        value=group.value.flatten(1).numpy(),
        terminated=ends.terminated.numpy(),
        truncated=ends.truncated.numpy(),
    )
