"""Running statistics of observations and rewards in kernels (CUDA): torch needs a hundred small operations for them.

The sums are float64, about what the mean was before, so that they lose nothing. Blocks write sums of their own, which one block adds and
takes into the statistics, as in `normalization.RunningStatistics`.
"""

from __future__ import annotations

from math import sqrt
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels.mlp_cuda import read, write
from warprun.learning.formulas import merged, varies
from warprun.learning.kernels.cuda.sums import add_up_pairs
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

    @staticmethod
    def of(statistics: RunningStatistics, shift: torch.Tensor, scale: torch.Tensor) -> Running:
        """Return statistics; `shift` and `scale` [F] get what normalises by them."""
        return Running(statistics.mean, statistics.variance, statistics.count.view(1), shift, scale)


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


def sum_blocks(sums, features, f, part, parts):
    """Return the sums that every `parts`-th block, from `part` on, has left of feature `f`."""
    total, square = float64(0.0), float64(0.0)
    for b in range(part, sums.size // (2 * features), parts):
        total += sums[b * 2 * features + f]
        square += sums[b * 2 * features + features + f]
    return total, square


def merged_sums(running, f, count, total, square):
    """Return mean and variance of feature `f` with `count` numbers more, given the sums about the mean."""
    offset = total / count
    return merged(running.mean[f], running.variance[f], running.rows[0], offset, square / count - offset * offset, count)


def scale_of(mean, variance):
    """Return 1 / standard deviation, or 1 for what does not vary but for rounding."""
    return float32(float64(1.0) / sqrt(variance)) if varies(mean, variance) else float32(1.0)


def merge_sums(running, f, count, total, square):
    """Take `count` numbers of feature `f` into the statistics, given the sums about the mean."""
    mean, variance = merged_sums(running, f, count, total, square)
    running.mean[f], running.variance[f] = mean, variance
    running.shift[f], running.scale[f] = float32(mean), scale_of(mean, variance)


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
    add_up_pairs(shared, THREADS, THREADS // features, features, thread)
    if thread < features:
        sums[cuda.blockIdx.x * 2 * features + thread] = shared[thread]
        sums[cuda.blockIdx.x * 2 * features + features + thread] = shared[THREADS + thread]


@cuda.jit(cache=CACHE, fastmath=False)
def returns(reward, terminated, truncated, running_returns, continues, mean, gamma, steps, actors, sums):
    thread = cuda.threadIdx.x
    shared = cuda.shared.array(NUMBERS, float64)
    total, square = float64(0.0), float64(0.0)
    for column in range(cuda.grid(1), running_returns.size, cuda.gridsize(1)):
        of_column = sum_returns(reward, terminated, truncated, running_returns, continues, mean, gamma, steps, actors, column)
        total += of_column[0]
        square += of_column[1]
    shared[thread], shared[THREADS + thread] = total, square
    add_up_pairs(shared, THREADS, THREADS, 1, thread)
    if thread == 0:
        sums[2 * cuda.blockIdx.x], sums[2 * cuda.blockIdx.x + 1] = shared[0], shared[THREADS]


@cuda.jit(cache=CACHE, fastmath=False)
def merge(sums, count, features, running):
    thread = cuda.threadIdx.x
    shared = cuda.shared.array(NUMBERS, float64)
    active = THREADS // features * features
    total, square = float64(0.0), float64(0.0)
    if thread < active:
        total, square = sum_blocks(sums, features, thread % features, thread // features, THREADS // features)
    shared[thread], shared[THREADS + thread] = total, square
    add_up_pairs(shared, THREADS, THREADS // features, features, thread)
    if thread < features:
        merge_sums(running, thread, float64(count), shared[thread], shared[THREADS + thread])
    cuda.syncthreads()
    if thread == 0:
        running.rows[0] += float64(count)
'''


def statistics_module() -> ModuleType:
    """Return the kernels."""
    functions = (add_up_pairs, merge_sums, read, sum_blocks, sum_numbers, sum_returns)
    return module_for("statistics_cuda", KERNEL.format(threads=THREADS), {f.__name__: f for f in functions})


class CudaObservations:
    """Takes observations into the statistics of a normaliser of one process, as `ActorCriticPolicy.observe` does."""

    def __init__(self, normalizer: ObservationNormalizer) -> None:
        """`normalizer` has THREADS features at most."""
        self.statistics, self.features = normalizer.statistics, len(normalizer.shift)
        self.running = Running.of(normalizer.statistics, normalizer.shift, normalizer.scale)
        self.module = statistics_module()

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        mean = on_device(self.running.mean)
        want(self.module, "moments", (on_device(self.running.shift), self.features, mean, mean))
        want(self.module, "merge", (mean, 1, self.features, on_device(self.running)))

    def __call__(self, rows: torch.Tensor) -> None:
        """Take in `rows` [B, F], and normalise by the statistics from now on."""
        blocks = min(MOST_BLOCKS, -(-rows.numel() // THREADS))
        sums = on_device(rows.new_empty(blocks * 2 * self.features, dtype=torch.float64))
        launch(self.module, "moments", (blocks, THREADS), (on_device(rows.reshape(-1)), self.features, on_device(self.running.mean), sums))
        launch(self.module, "merge", (1, THREADS), (sums, len(rows), self.features, on_device(self.running)))
        self.statistics.forget(len(rows))


class CudaRewards:
    """The statistics by which `CudaReturns` normalises rewards of rollouts from one source, as `RewardNormalizer` does."""

    def __init__(self, normalizer: RewardNormalizer, name: str) -> None:
        """`name` is that of the group."""
        self.normalizer, self.name, self.statistics = normalizer, name, normalizer.statistics
        of_one = torch.zeros(2, device=normalizer.returns.device)
        self.running = Running.of(normalizer.statistics, of_one[:1], of_one[1:])
        self.module = statistics_module()

    def compile_ahead(self) -> None:
        """Let another process compile the kernel (`kernels.ahead`)."""
        flat, state, mean = on_device(self.running.shift), self.normalizer.returns.view(-1), on_device(self.running.mean)
        ended = on_device(state.bool())
        want(self.module, "returns", (flat, ended, ended, on_device(state), ended, mean, float32(0.0), 1, 1, mean))

    def sums(self, trajectory: Trajectory) -> torch.Tensor:
        """Continue the discounted returns, and return the sums of blocks over (return - mean) and its square, in turns."""
        reward = trajectory.groups[self.name].reward
        steps, envs, actors = reward.shape
        blocks = min(MOST_BLOCKS, -(-envs * actors // THREADS))
        sums, flat = reward.new_empty(2 * blocks, dtype=torch.float64), on_device(reward.reshape(-1))
        terminated, truncated = (on_device(ends.reshape(-1)) for ends in (trajectory.terminated, trajectory.truncated))
        state = on_device(self.normalizer.returns.view(-1)), on_device(trajectory.continues.view(-1)), on_device(self.running.mean)
        given = (flat, terminated, truncated, *state, float32(self.normalizer.gamma), steps, actors, on_device(sums))
        launch(self.module, "returns", (blocks, THREADS), given)
        return sums
