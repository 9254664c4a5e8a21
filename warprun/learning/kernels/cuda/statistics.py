"""Running statistics of observations and rewards in kernels (CUDA): torch needs a hundred small operations for them.

The sums are float64, about what the mean was before, so that they lose nothing. Blocks write sums of their own, which one block adds and
takes into the statistics, as in `normalization.RunningStatistics`.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels.mlp_cuda import read, write
from warprun.learning.formulas import merged, normalized_reward, varies
from warprun.learning.kernels.cuda.sums import add_up
from warprun.learning.normalization import ObservationNormalizer, RewardNormalizer, RunningStatistics
from warprun.simulation.cuda_launch import launch, module_for, on_device, want
from warprun.simulation.trajectory import Trajectory

THREADS = 256
MOST_BLOCKS = 512
"""Blocks that sum rows."""

float32, float64 = np.float32, np.float64


class Running(NamedTuple):
    """Running statistics of F numbers, and what normalises by them; kernels get device arrays in place of the tensors."""

    mean: torch.Tensor
    """[F] float64."""
    variance: torch.Tensor
    """[F] float64."""
    rows: torch.Tensor
    """[1] float64: how many have been taken in."""
    shift: torch.Tensor
    """[F] float32: the mean."""
    scale: torch.Tensor
    """[F] float32: 1 / standard deviation, or 1 for what does not vary but for rounding."""


def sum_numbers(rows, features, mean, first, step):
    """Return the sum of (number - mean) and that of its squares, over the numbers of one feature from index `first` on, `step` apart."""
    total, square = float64(0.0), float64(0.0)
    about = mean[first % features]
    for m in range(first, rows.size, step):
        x = float64(read(rows, m)) - about
        total += x
        square += x * x
    return total, square


def sum_returns(reward, terminated, truncated, returns, continues, mean, gamma, steps, actors, column):
    """Continue the discounted return of a column, and return the sum of (return - mean) and that of its squares."""
    columns = returns.size
    envs, env, about = columns // actors, column // actors, mean[0]
    total, square = float64(0.0), float64(0.0)
    running = read(returns, column) if continues[0] else float32(0.0)
    for t in range(steps):
        found = read(reward, t * columns + column) + gamma * running
        x = float64(found) - about
        total += x
        square += x * x
        ended = read(terminated, t * envs + env) or read(truncated, t * envs + env)
        running = float32(0.0) if ended else found
    write(returns, column, running)
    return total, square


def merge_sums(running, f, count, total, square):
    """Take `count` numbers of feature `f` into the statistics, given the sums about the mean."""
    offset = total / count
    variance = square / count - offset * offset
    mean, variance = merged(running.mean[f], running.variance[f], running.rows[0], offset, variance, count)
    running.mean[f], running.variance[f] = mean, variance
    running.shift[f] = float32(mean)
    running.scale[f] = float32(float64(1.0) / sqrt(variance)) if varies(mean, variance) else float32(1.0)


KERNEL = '''"""Running statistics on CUDA; written by warprun."""

from numba import cuda, float32, float64

THREADS, NUMBERS = {threads}, 2 * {threads}


@cuda.jit(cache=CACHE, fastmath=False)
def moments(rows, features, mean, sums):
    thread = cuda.threadIdx.x
    shared = cuda.shared.array(NUMBERS, float64)
    # Threads in whole rows: each sums one feature.
    active = THREADS // features * features
    total, square = float64(0.0), float64(0.0)
    if thread < active:
        total, square = sum_numbers(rows, features, mean, cuda.blockIdx.x * active + thread, cuda.gridDim.x * active)
    shared[thread], shared[THREADS + thread] = total, square
    cuda.syncthreads()
    if thread < features:
        total, square = float64(0.0), float64(0.0)
        for m in range(thread, active, features):
            total += shared[m]
            square += shared[THREADS + m]
        sums[cuda.blockIdx.x * 2 * features + thread] = total
        sums[cuda.blockIdx.x * 2 * features + features + thread] = square


@cuda.jit(cache=CACHE, fastmath=False)
def returns(reward, terminated, truncated, running_returns, continues, mean, gamma, steps, actors, sums):
    thread, column = cuda.threadIdx.x, cuda.grid(1)
    shared = cuda.shared.array(NUMBERS, float64)
    total, square = float64(0.0), float64(0.0)
    if column < running_returns.size:
        total, square = sum_returns(
            reward, terminated, truncated, running_returns, continues, mean, gamma, steps, actors, column
        )
    shared[thread], shared[THREADS + thread] = total, square
    add_up(shared, 0, thread, THREADS)
    add_up(shared, THREADS, thread, THREADS)
    if thread == 0:
        sums[2 * cuda.blockIdx.x], sums[2 * cuda.blockIdx.x + 1] = shared[0], shared[THREADS]


@cuda.jit(cache=CACHE, fastmath=False)
def merge(sums, blocks, count, features, running):
    thread = cuda.threadIdx.x
    shared = cuda.shared.array(NUMBERS, float64)
    active = THREADS // features * features
    f, part, parts = thread % features, thread // features, THREADS // features
    total, square = float64(0.0), float64(0.0)
    if thread < active:
        for b in range(part, blocks, parts):
            total += sums[b * 2 * features + f]
            square += sums[b * 2 * features + features + f]
    shared[thread], shared[THREADS + thread] = total, square
    cuda.syncthreads()
    if thread < features:
        total, square = float64(0.0), float64(0.0)
        for m in range(thread, active, features):
            total += shared[m]
            square += shared[THREADS + m]
        merge_sums(running, thread, float64(count), total, square)
    cuda.syncthreads()
    if thread == 0:
        running.rows[0] += float64(count)


@cuda.jit(cache=CACHE, fastmath=False)
def rewards(reward, terminated, running, gamma, columns, actors, out):
    m = cuda.grid(1)
    if m < reward.size:
        flag = m // columns * (columns // actors) + m % columns // actors
        out[m] = normalized_reward(read(reward, m), read(terminated, flag), running.shift[0], running.scale[0], gamma)
'''


class CudaStatistics:
    """Takes rollouts of one process into running statistics of `features` numbers, THREADS at most."""

    def __init__(self, statistics: RunningStatistics, shift: torch.Tensor, scale: torch.Tensor) -> None:
        """`shift` and `scale` [F] get what normalises by the statistics."""
        self.features, self.statistics = len(shift), statistics
        assert self.features <= THREADS
        self.running = Running(statistics.mean, statistics.variance, statistics.count.view(1), shift, scale)
        functions = (add_up, sum_numbers, sum_returns, merge_sums, normalized_reward, read)
        self.module = module_for("statistics_cuda", KERNEL.format(threads=THREADS), {f.__name__: f for f in functions})

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        want(self.module, "merge", (on_device(self.running.mean), 1, 1, self.features, on_device(self.running)))

    def _merge(self, sums: torch.Tensor, blocks: int, count: int) -> None:
        launch(self.module, "merge", (1, THREADS), (on_device(sums), blocks, count, self.features, on_device(self.running)))
        self.statistics.forget(count)


class CudaObservations(CudaStatistics):
    """Takes observations into the statistics of a normaliser of one process, as `ActorCriticPolicy.observe` does."""

    def __init__(self, normalizer: ObservationNormalizer) -> None:
        super().__init__(normalizer.statistics, normalizer.shift, normalizer.scale)

    def compile_ahead(self) -> None:
        mean = on_device(self.running.mean)
        want(self.module, "moments", (on_device(self.running.shift), self.features, mean, mean))
        super().compile_ahead()

    def __call__(self, rows: torch.Tensor) -> None:
        """Take in `rows` [B, F], and normalise by the statistics from now on."""
        blocks = min(MOST_BLOCKS, -(-rows.numel() // THREADS))
        sums = rows.new_empty(blocks * 2 * self.features, dtype=torch.float64)
        given = on_device(rows.reshape(-1)), self.features, on_device(self.running.mean), on_device(sums)
        launch(self.module, "moments", (blocks, THREADS), given)
        self._merge(sums, blocks, len(rows))


class CudaRewards(CudaStatistics):
    """Normalises the rewards of rollouts from one source, as `RewardNormalizer` does."""

    def __init__(self, normalizer: RewardNormalizer, name: str) -> None:
        """`name` is that of the group."""
        of_one = torch.zeros(2, device=normalizer.returns.device)
        super().__init__(normalizer.statistics, of_one[:1], of_one[1:])
        self.normalizer, self.name = normalizer, name

    def compile_ahead(self) -> None:
        flat, state = on_device(self.running.shift), self.normalizer.returns.view(-1)
        ended, gamma, running = on_device(state.bool()), np.float32(0.0), on_device(self.running)
        given = (flat, ended, ended, on_device(state), ended, on_device(self.running.mean), gamma, 1, 1, on_device(self.running.mean))
        want(self.module, "returns", given)
        super().compile_ahead()
        want(self.module, "rewards", (flat, ended, running, gamma, 1, 1, flat))

    def __call__(self, trajectory: Trajectory) -> torch.Tensor:
        """Take in the rewards and return them normalised, [T, N, A]."""
        reward = trajectory.groups[self.name].reward
        steps, envs, actors = reward.shape
        gamma, columns = np.float32(self.normalizer.gamma), envs * actors
        blocks = -(-columns // THREADS)
        sums, flat = reward.new_empty(2 * blocks, dtype=torch.float64), on_device(reward.reshape(-1))
        terminated, truncated = (on_device(ends.reshape(-1)) for ends in (trajectory.terminated, trajectory.truncated))
        state = on_device(self.normalizer.returns.view(-1)), on_device(trajectory.continues.view(-1)), on_device(self.running.mean)
        launch(self.module, "returns", (blocks, THREADS), (flat, terminated, truncated, *state, gamma, steps, actors, on_device(sums)))
        self._merge(sums, blocks, reward.numel())
        out = torch.empty_like(reward, memory_format=torch.contiguous_format)
        given = flat, terminated, on_device(self.running), gamma, columns, actors, on_device(out.view(-1))
        launch(self.module, "rewards", (-(-reward.numel() // THREADS), THREADS), given)
        return out
