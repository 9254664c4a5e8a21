"""Next values and advantages of a rollout, a kernel each (CPU): torch would pass over memory a dozen times, on one thread.

Columns are the actors of all environments, side by side; a part is COLUMNS of them, through all steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from warprun.engine import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.engine.mlp import Network, forward, normalize
from warprun.engine.simd import COLUMNS
from warprun.engine.threads import threads as threads_of_process
from warprun.engine.trajectory import Trajectory

float32 = np.float32


class Steps(NamedTuple):
    """A rollout as the kernels take it: T steps of R = N*A columns, F features."""

    obs: Any
    """[R, F] float32: after the last step."""
    final_obs: Any
    """[K*R, F] float32: at the k-th truncation."""
    value: Any
    """[T, R] float32."""
    terminated: Any
    """[T, R] bool."""
    truncated: Any
    """[T, R] bool."""


class Memory(NamedTuple):
    """What threads write on, [thread, ...] each."""

    block: Any
    """[thread, row, COLUMNS] float32."""
    cuts: Any
    """[thread, COLUMNS] int64: truncations so far in each column."""
    waiting: Any
    """[thread, COLUMNS] int64: where the values of the observations in the block belong."""


def next_values_of_part(part, thread, network, steps, out, memory):
    """Write V of the observation that each step led to, `out` [T, R]: where truncated the final one, where terminated 0."""
    horizon, total = out.shape
    begin, end = part * COLUMNS, min((part + 1) * COLUMNS, total)
    n = end - begin
    flat = out.reshape(out.size)
    block, cuts, waiting = memory.block[thread], memory.cuts[thread], memory.waiting[thread]
    # Views from 0 on: where LLVM knows that no index is negative, it vectorises.
    for t in range(horizon - 1):
        row, value = out[t, begin:end], steps.value[t + 1, begin:end]
        for c in range(row.size):
            row[c] = value[c]
    for c in range(n):
        hold(steps.obs, begin + c, block, c)
        waiting[c] = (horizon - 1) * total + begin + c
    put_values(network, block, waiting, n, flat)
    # Final observations are few and far between, so they wait until a block is full.
    cuts[:] = 0
    count = 0
    for t in range(horizon):
        truncated = steps.truncated[t, begin:end]
        for c in range(truncated.size):
            if truncated[c]:
                hold(steps.final_obs, cuts[c] * total + begin + c, block, count)
                waiting[count] = t * total + begin + c
                cuts[c] += 1
                count += 1
                if count == COLUMNS:
                    put_values(network, block, waiting, count, flat)
                    count = 0
    if count > 0:
        put_values(network, block, waiting, count, flat)
    for t in range(horizon):
        row, terminated = out[t, begin:end], steps.terminated[t, begin:end]
        for c in range(row.size):
            row[c] = float32(0.0) if terminated[c] else row[c]


def hold(obs, row, block, column):
    """Bring row `row` of `obs` [R, F] into a column of the block."""
    for f in range(obs.shape[1]):
        block[f, column] = obs[row, f]


def put_values(network, block, waiting, count, flat):
    """Put the values of the first `count` observations in `block` where they belong."""
    normalize(network.mean, network.scale, block)
    forward(network.parameters, network.layers, block)
    for c in range(count):
        flat[waiting[c]] = block[network.value_row, c]


def advantages_of_part(part, steps, reward, next_value, gamma, gae_lambda, advantage, returns):
    """Write A_t = delta_t + gamma lambda A_t+1 and A_t + V_t, [T, R]; Schulman et al. 2016, eq. 16."""
    horizon, total = advantage.shape
    # Views from 0 on: where LLVM knows that no index is negative, it vectorises.
    begin, end = part * COLUMNS, min((part + 1) * COLUMNS, total)
    after = np.zeros(COLUMNS, np.float32)
    decay = gamma * gae_lambda
    for t in range(horizon - 1, -1, -1):
        terminated, truncated, value = steps.terminated[t, begin:end], steps.truncated[t, begin:end], steps.value[t, begin:end]
        rewards, following = reward[t, begin:end], next_value[t, begin:end]
        to_advantage, to_returns = advantage[t, begin:end], returns[t, begin:end]
        for c in range(value.size):
            delta = rewards[c] + gamma * following[c] - value[c]
            after[c] = delta + (float32(0.0) if terminated[c] | truncated[c] else decay * after[c])
            to_advantage[c] = after[c]
            to_returns[c] = after[c] + value[c]


SOURCE = '''"""Next values and advantages; written by warprun."""

from numba import njit


@njit(nogil=True, cache=True, **FLAGS)
def next_values(first, last, thread, network, steps, out, memory):
    for part in range(first, last):
        next_values_of_part(part, thread, network, steps, out, memory)


@njit(nogil=True, cache=True, **FLAGS)
def advantages(first, last, steps, reward, next_value, gamma, gae_lambda, advantage, returns):
    for part in range(first, last):
        advantages_of_part(part, steps, reward, next_value, gamma, gae_lambda, advantage, returns)
'''


class FusedReturns:
    """Computes next values and advantages with one network; the memory for it is taken once."""

    def __init__(self, network: Network, threads: int) -> None:
        self.network = network
        self.threads = threads_of_process(threads)
        functions = {"next_values_of_part": next_values_of_part, "advantages_of_part": advantages_of_part}
        self.module = kernels.load_module("returns", SOURCE, functions | {"FLAGS": kernels.FLAGS})
        places = (self.threads.count, COLUMNS)
        self.memory = Memory(
            block=np.zeros((self.threads.count, network.rows, COLUMNS), np.float32),
            cuts=np.zeros(places, np.int64),
            waiting=np.zeros(places, np.int64),
        )

    def next_value(self, trajectory: Trajectory, name: str) -> torch.Tensor:
        """Return V of the observation that each step of group `name` led to, [T, N, A]."""
        steps, out = _steps(trajectory, name), torch.empty_like(trajectory.groups[name].value)
        given = (self.network, steps, out.flatten(1).numpy(), self.memory)
        self.threads.share(lambda first, last, n: self.module.next_values(first, last, n, *given), _parts(steps))
        return out

    def gae(
        self, trajectory: Trajectory, name: str, reward: torch.Tensor, next_value: torch.Tensor, gamma: float, gae_lambda: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (advantage, return = advantage + value), [T, N, A], as `returns.gae` does."""
        steps, advantage, returns = _steps(trajectory, name), torch.empty_like(reward), torch.empty_like(reward)
        of_rows = (reward.contiguous().flatten(1).numpy(), next_value.flatten(1).numpy(), np.float32(gamma), np.float32(gae_lambda))
        given = (steps, *of_rows, advantage.flatten(1).numpy(), returns.flatten(1).numpy())
        self.threads.share(lambda first, last, _: self.module.advantages(first, last, *given), _parts(steps))
        return advantage, returns


def _steps(trajectory: Trajectory, name: str) -> Steps:
    group = trajectory.groups[name]
    actors = group.value.shape[2]
    terminated, truncated = (flag[..., None].expand(-1, -1, actors).flatten(1) for flag in (trajectory.terminated, trajectory.truncated))
    return Steps(
        obs=group.obs[-1].flatten(0, 1).numpy(),
        final_obs=group.final_obs.flatten(0, 2).numpy(),
        value=group.value.flatten(1).numpy(),
        terminated=terminated.numpy(),
        truncated=truncated.numpy(),
    )


def _parts(steps: Steps) -> int:
    return -(-steps.value.shape[1] // COLUMNS)
