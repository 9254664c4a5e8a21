"""Next values and advantages of a rollout in kernels (CUDA); `cpu.returns` is the same on CPU.

A column is one actor of one environment. A block computes the values of COLUMNS columns, a thread the advantages of one column over all
steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels.mlp import Network, layers_of
from warprun.kernels.mlp_cuda import BlockNetwork, block_network, columns_for, compute_layer, load_columns, read, write
from warprun.learning.batch import Estimate, Spread
from warprun.learning.kernels.cuda.gradient import BOUND, COLUMNS, threads_of
from warprun.learning.operations import TorchOperations
from warprun.learning.targets import TARGETS, Discount, Step
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import launch, module_for, on_device, want
from warprun.simulation.trajectory import Trajectory

THREADS = 64
"""Threads of a block that computes advantages."""
SUMS = 4
"""Sums over rows: of advantages and their squares, of returns and theirs."""

float32, float64 = np.float32, np.float64


class Rollout(NamedTuple):
    """A rollout of T steps of R = N*A columns in the form that the kernels take, flat; they get device arrays in place of the tensors."""

    obs: torch.Tensor
    """[R * F]: after the last step."""
    final_obs: torch.Tensor
    """[K * R * F]: at the k-th truncation."""
    value: torch.Tensor
    """[T * R]."""
    terminated: torch.Tensor
    """[T * N] bool."""
    truncated: torch.Tensor
    """[T * N] bool."""
    steps: int
    columns: int
    actors: int
    features: int


def follow(rollout, following, begin, n, thread, threads):
    """Write V of the next observation within the rollout of all steps but the last, 0 where terminated."""
    for m in range(thread, (rollout.steps - 1) * n, threads):
        t, column = m // n, begin + m % n
        at = t * rollout.columns + column
        ended = read(rollout.terminated, t * (rollout.columns // rollout.actors) + column // rollout.actors)
        write(following, at, float32(0.0) if ended else read(rollout.value, at + rollout.columns))


def next_truncated(rollout, column, t):
    """Return the first step from `t` on at which a column is truncated, or the number of steps."""
    envs, env = rollout.columns // rollout.actors, column // rollout.actors
    while t < rollout.steps and not read(rollout.truncated, t * envs + env):
        t += 1
    return t


def after_last(rollout, column, value):
    """Return what follows the last step of a column: `value`, or 0 where terminated."""
    envs = rollout.columns // rollout.actors
    return float32(0.0) if read(rollout.terminated, (rollout.steps - 1) * envs + column // rollout.actors) else value


def mean_and_variance(total, square, count):
    """Return the mean and the unbiased variance of `count` rows from their sum and that of their squares."""
    variance = (square - total * total / float64(count)) / float64(max(1, count - 1))
    return float32(total / float64(count)), float32(max(variance, float64(0.0)))


KERNEL = '''"""Next values, and advantages by $target, on CUDA; written by warprun."""

from numba import cuda, float32, float64

COLUMNS, THREADS = $columns, $threads
SUMMING, SUMS, NUMBERS = $summing, $sums, $summing * $sums


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def next_values(given, rollout, following):
    thread = cuda.threadIdx.x
    block = cuda.shared.array(0, float32)
    # With the number of columns as a constant.
    network = BlockNetwork(
        given.weights, given.layers, COLUMNS, given.policy_row, given.logits, given.value_row, given.log_std,
        given.normalizes, given.mean, given.scale,
    )
    begin = cuda.blockIdx.x * COLUMNS
    n, column = min(COLUMNS, rollout.columns - begin), begin + thread
    follow(rollout, following, begin, n, thread, THREADS)
    t, more = rollout.steps - 1, 1
    turn = 0
    # First the values after the last step, then those of final observations, as long as a column of the block has one.
    while more != 0:
        if turn == 0:
            load_columns(network, rollout.obs, begin, n, rollout.features, block, thread, THREADS)
        else:
            load_columns(network, rollout.final_obs, (turn - 1) * rollout.columns + begin, n, rollout.features, block, thread, THREADS)
        cuda.syncthreads()
        for layer in range(network.layers.shape[0]):
            compute_layer(network, layer, block, thread, THREADS)
            cuda.syncthreads()
        found = 0
        if thread < n:
            if t < rollout.steps:
                value = read(block, network.value_row * COLUMNS + thread)
                write(following, t * rollout.columns + column, after_last(rollout, column, value) if turn == 0 else value)
            t = next_truncated(rollout, column, 0 if turn == 0 else t + 1)
            found = 1 if t < rollout.steps else 0
        turn += 1
        more = cuda.syncthreads_or(found)


@cuda.jit(cache=CACHE, fastmath=False)
def advantages(rollout, reward, following, log_ratio, p, advantage, returns, sums):
    thread, column = cuda.threadIdx.x, cuda.grid(1)
    shared = cuda.shared.array(NUMBERS, float64)
    # float64, because the variance may be small compared with the mean.
    a_sum, a_square, r_sum, r_square = float64(0.0), float64(0.0), float64(0.0), float64(0.0)
    if column < rollout.columns:
        envs, env, horizon = rollout.columns // rollout.actors, column // rollout.actors, rollout.steps
        after = float32(0.0)
        turns = $turns
        for turn in range(turns):
            t = $t
            at, flag = t * rollout.columns + column, t * envs + env
            ends = read(rollout.terminated, flag) or read(rollout.truncated, flag) or t == horizon - 1
            step = Step(read(reward, at), read(rollout.value, at), read(following, at), ends, $ratio)
            $before
            after, a, r = target(after, step, p)
            write(advantage, at, a)
            write(returns, at, r)
            if turn >= turns - horizon:
                a_sum += float64(a)
                a_square += float64(a) * float64(a)
                r_sum += float64(r)
                r_square += float64(r) * float64(r)
    shared[thread] = a_sum
    shared[SUMMING + thread] = a_square
    shared[2 * SUMMING + thread] = r_sum
    shared[3 * SUMMING + thread] = r_square
    cuda.syncthreads()
    if thread < SUMS:
        total = float64(0.0)
        for m in range(SUMMING):
            total += shared[thread * SUMMING + m]
        sums[cuda.blockIdx.x * SUMS + thread] = total


@cuda.jit(cache=CACHE, fastmath=False)
def spread(sums, blocks, count, out):
    thread = cuda.threadIdx.x
    shared = cuda.shared.array(32, float64)
    total = float64(0.0)
    for b in range(thread // SUMS, blocks, 8):
        total += sums[b * SUMS + thread % SUMS]
    shared[thread] = total
    cuda.syncthreads()
    if thread < SUMS // 2:
        first, second = float64(0.0), float64(0.0)
        for m in range(8):
            first += shared[m * SUMS + 2 * thread]
            second += shared[m * SUMS + 2 * thread + 1]
        out[2 * thread], out[2 * thread + 1] = mean_and_variance(first, second, count)
'''


BACKWARD = {"turns": "horizon", "t": "horizon - 1 - turn", "before": ""}
"""The last step comes first, and `after` is what it gave."""
FORWARD = {
    "turns": "horizon * min(p.n_step, horizon)",
    "t": "turn % horizon",
    "before": "after = read(rollout.value if turn < horizon else returns, min(t + 1, horizon - 1) * rollout.columns + column)",
}
"""See `Target.windowed`."""


class CudaReturns:
    """Computes advantages and returns with one network."""

    def __init__(self, network: Network, reference: TorchOperations) -> None:
        """`reference` are the operations of the group by torch."""
        config, device = reference.config, reference.entropy_coef.device
        self.name, self.target, self.discount = reference.group.name, TARGETS[config.advantage], Discount.of(config)
        columns = columns_for(network.rows, COLUMNS)
        self.network, self.index = block_network(network, reference.policy.space.outputs, columns, device)
        self.parameters = torch.as_tensor(network.parameters)
        self.threads = threads_of(layers_of(network))
        self.shared_bytes = 4 * network.rows * columns
        functions = (follow, next_truncated, after_last, mean_and_variance, load_columns, compute_layer, read, write)
        numbers = {"columns": columns, "threads": self.threads, "summing": THREADS, "sums": SUMS}
        texts = FORWARD if self.target.windowed else BACKWARD
        ratio = "read(log_ratio, at)" if self.target.uses_ratio else "float32(0.0)"
        source = fill(KERNEL, target=config.advantage, ratio=ratio, **texts, **{name: str(number) for name, number in numbers.items()})
        names = {f.__name__: f for f in functions} | {"target": self.target.formula, "BlockNetwork": BlockNetwork, "Step": Step}
        self.module = module_for(f"returns_{config.advantage}_cuda", source, names | {"BOUND": BOUND})

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        value = self.network.weights.new_zeros(1)
        ended, flat, sums = value.bool(), on_device(value), on_device(value.double())
        rollout = on_device(Rollout(value, value, value, ended, ended, 1, 1, 1, 1))
        want(self.module, "next_values", (on_device(self.network), rollout, flat))
        want(self.module, "advantages", (rollout, flat, flat, flat, self.discount, flat, flat, sums))
        want(self.module, "spread", (sums, 1, 1, flat))

    def next_value(self, trajectory: Trajectory) -> torch.Tensor:
        """Return V of the observation after each step, [T, N, A]: where truncated the final one, where terminated 0."""
        group = trajectory.groups[self.name]
        out = torch.empty_like(group.value, memory_format=torch.contiguous_format)
        self._follow(_rollout(trajectory, self.name), out)
        # The kernel knows ends that all actors share.
        return out if group.alive is None else out.masked_fill_(trajectory.ends(self.name)[0], 0.0)

    def __call__(self, trajectory: Trajectory, reward: torch.Tensor, log_ratio: torch.Tensor | None) -> Estimate:
        """Return advantages and returns, [T, N, A]."""
        reward, following = reward.contiguous(), self.next_value(trajectory)
        rollout, advantage, returns = _rollout(trajectory, self.name), torch.empty_like(reward), torch.empty_like(reward)
        blocks = -(-rollout.columns // THREADS)
        sums, out = reward.new_empty(blocks * SUMS, dtype=torch.float64), reward.new_empty(SUMS)
        ratio = reward if log_ratio is None else log_ratio.contiguous()
        flat = [on_device(tensor.view(-1)) for tensor in (reward, following, ratio, advantage, returns)]
        given = (on_device(rollout), *flat[:3], self.discount, *flat[3:], on_device(sums))
        launch(self.module, "advantages", (blocks, THREADS), given)
        # Of actors that had left, advantage and return are 0: reward, values and what follows are.
        launch(self.module, "spread", (1, 8 * SUMS), (on_device(sums), blocks, trajectory.groups[self.name].rows, on_device(out)))
        return Estimate(advantage, returns, Spread(*out.unbind()))

    def _follow(self, rollout: Rollout, out: torch.Tensor) -> None:
        torch.index_select(self.parameters, 0, self.index, out=self.network.weights)
        grid = (-(-rollout.columns // self.network.columns), self.threads)
        given = (on_device(self.network), on_device(rollout), on_device(out.view(-1)))
        launch(self.module, "next_values", grid, given, self.shared_bytes)


def _rollout(trajectory: Trajectory, name: str) -> Rollout:
    group = trajectory.groups[name]
    steps, envs, actors = group.value.shape
    return Rollout(
        obs=group.obs[-1].reshape(-1),
        final_obs=group.final_obs.reshape(-1),
        value=group.value.reshape(-1),
        terminated=trajectory.terminated.reshape(-1),
        truncated=trajectory.truncated.reshape(-1),
        steps=steps,
        columns=envs * actors,
        actors=actors,
        features=group.obs.shape[-1],
    )
