"""Advantages and returns of a rollout in kernels (CUDA); `cpu.returns` is the same on CPU.

A column is one actor of one environment. A block computes the next values of COLUMNS columns, then a thread the advantages of one column
over all steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels.mlp import Network, layers_of
from warprun.kernels.mlp_cuda import BlockNetwork, load_columns, read, write
from warprun.learning.batch import Estimate, Spread
from warprun.learning.formulas import explained, normalized_reward
from warprun.learning.kernels.cuda.gradient import COLUMNS, TOGETHER, bound, threads_of
from warprun.learning.kernels.cuda.statistics import CudaRewards, merge_sums, merged_sums, scale_of, sum_blocks
from warprun.learning.kernels.cuda.sums import add_up
from warprun.learning.operations import TorchOperations
from warprun.learning.targets import TARGETS, Discount, Step
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import launch, module_for, on_device, want
from warprun.simulation.cuda_layers import block_network, chosen
from warprun.simulation.trajectory import Trajectory

THREADS = 256
"""Threads of the block that adds the sums of the others."""
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
    """[T * N], or [T * R] if actors leave, bool."""
    truncated: torch.Tensor
    """[T * N] bool."""
    steps: int
    columns: int
    envs: int
    owners: int
    """Flags of a step in `terminated`."""
    actors: int
    ending: int
    """Actors that share a flag of `terminated`."""
    features: int


class Flags(NamedTuple):
    """Where the flags of a column are. Kernels divide once for it: a GPU has no instruction that does."""

    terminated: int
    truncated: int


def flags_of(rollout, column):
    """Return where the flags of a column are within a step."""
    return Flags(column // rollout.ending, column // rollout.actors)


def follow(rollout, following, begin, n, columns, thread, threads):
    """Write V of the next observation within the rollout of all steps but the last, 0 where terminated: a thread those of one column."""
    column, together = begin + thread % columns, threads // columns
    if thread % columns < n and thread < together * columns:
        flags = flags_of(rollout, column)
        for t in range(thread // columns, rollout.steps - 1, together):
            at = t * rollout.columns + column
            write(following, at, float32(0.0) if terminated(rollout, flags, t) else read(rollout.value, at + rollout.columns))


def terminated(rollout, flags, t):
    """Return whether step `t` of a column is its last one."""
    return read(rollout.terminated, t * rollout.owners + flags.terminated)


def truncated(rollout, flags, t):
    """Return whether the episode of a column is cut off at step `t`."""
    return read(rollout.truncated, t * rollout.envs + flags.truncated)


def next_truncated(rollout, flags, t):
    """Return the first step from `t` on at which a column is truncated, or the number of steps."""
    while t < rollout.steps and not truncated(rollout, flags, t):
        t += 1
    return t


def mean_and_variance(total, square, count):
    """Return the mean and the unbiased variance of `count` rows from their sum and that of their squares."""
    variance = (square - total * total / float64(count)) / float64(max(1, count - 1))
    return float32(total / float64(count)), float32(max(variance, float64(0.0)))


KERNEL = '''"""Next values, advantages by $target, and their moments, on CUDA; written by warprun."""

from numba import cuda, float32, float64

COLUMNS, STRIDE, THREADS, SUMMING = $columns, $stride, $threads, $summing
SUMS, NUMBERS, PART = $sums, $sums * $columns, $summing // $sums


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def advantages(given, rollout, reward, log_ratio, p, following, advantage, returns, sums$given):
    thread = cuda.threadIdx.x
    block, shared = cuda.shared.array(0, float32), cuda.shared.array(NUMBERS, float64)
$prepare    # With the number of columns as a constant.
    network = BlockNetwork(
        given.weights, given.layers, COLUMNS, STRIDE, given.policy_row, given.logits, given.value_row, given.log_std,
        given.normalizes, given.mean, given.scale,
    )
    begin = cuda.blockIdx.x * COLUMNS
    n, column = min(COLUMNS, rollout.columns - begin), begin + thread
    flags = flags_of(rollout, column)
    follow(rollout, following, begin, n, COLUMNS, thread, THREADS)
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
                ended = terminated(rollout, flags, t)
                write(following, t * rollout.columns + column, float32(0.0) if ended else read(block, network.value_row * STRIDE + thread))
            t = next_truncated(rollout, flags, 0 if turn == 0 else t + 1)
            found = 1 if t < rollout.steps else 0
        turn += 1
        more = cuda.syncthreads_or(found)
    if thread < n:
        # float64, because the variance may be small compared with the mean.
        a_sum, a_square, r_sum, r_square = float64(0.0), float64(0.0), float64(0.0), float64(0.0)
        horizon, after = rollout.steps, float32(0.0)
        turns = $turns
        for turn in range(turns):
            t = $t
            at = t * rollout.columns + column
            ends = terminated(rollout, flags, t) or truncated(rollout, flags, t) or t == horizon - 1
            step = Step($reward, read(rollout.value, at), read(following, at), ends, $ratio)
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
        shared[COLUMNS + thread] = a_square
        shared[2 * COLUMNS + thread] = r_sum
        shared[3 * COLUMNS + thread] = r_square
    cuda.syncthreads()
    if thread < SUMS:
        total = float64(0.0)
        for m in range(n):
            total += shared[thread * COLUMNS + m]
        sums[cuda.blockIdx.x * SUMS + thread] = total


@cuda.jit(cache=CACHE, fastmath=False)
def spread(sums, blocks, count, out$given):
    number, part = cuda.threadIdx.x // PART, cuda.threadIdx.x % PART
    shared = cuda.shared.array(SUMMING, float64)
    total = float64(0.0)
    for b in range(part, blocks, PART):
        total += sums[b * SUMS + number]
    shared[cuda.threadIdx.x] = total
    add_up(shared, number * PART, part, PART)
    if cuda.threadIdx.x == 0:
        out[0], out[1] = mean_and_variance(shared[0], shared[PART], count)
        out[2], out[3] = mean_and_variance(shared[2 * PART], shared[3 * PART], count)
        out[4] = explained(out[1], out[3])
$merge'''


BACKWARD = {"turns": "horizon", "t": "horizon - 1 - turn", "before": ""}
"""The last step comes first, and `after` is what it gave."""
FORWARD = {
    "turns": "horizon * min(p.n_step, horizon)",
    "t": "turn % horizon",
    "before": "after = read(rollout.value if turn < horizon else returns, min(t + 1, horizon - 1) * rollout.columns + column)",
}
"""See `Target.windowed`."""


AS_THEY_ARE = {"given": "", "prepare": "", "reward": "read(reward, at)", "merge": ""}
"""Rewards in the units of the values."""
NORMALIZED = {
    "given": ", running, returned",
    "prepare": """    # Every block takes the rollout into the statistics for itself; `spread` writes them when all have read them.
    if thread < COLUMNS:
        shared[thread], shared[COLUMNS + thread] = sum_blocks(returned, 1, 0, thread, COLUMNS)
    cuda.syncthreads()
    total, square = float64(0.0), float64(0.0)
    for m in range(COLUMNS):
        total += shared[m]
        square += shared[COLUMNS + m]
    mean, variance = merged_sums(running, 0, float64(rollout.steps * rollout.columns), total, square)
    shift, scale = float32(mean), scale_of(mean, variance)
""",
    "reward": "normalized_reward(read(reward, at), terminated(rollout, flags, t), shift, scale, p.gamma)",
    "merge": """    cuda.syncthreads()
    of_thread = sum_blocks(returned, 1, 0, cuda.threadIdx.x, SUMMING)
    shared[cuda.threadIdx.x] = of_thread[0]
    add_up(shared, 0, cuda.threadIdx.x, SUMMING)
    total = shared[0]
    cuda.syncthreads()
    shared[cuda.threadIdx.x] = of_thread[1]
    add_up(shared, 0, cuda.threadIdx.x, SUMMING)
    if cuda.threadIdx.x == 0:
        merge_sums(running, 0, float64(count), total, shared[0])
        running.rows[0] += float64(count)
""",
}
"""Rewards that are normalised, see `statistics.CudaRewards`."""


class CudaReturns:
    """Computes advantages and returns with one network."""

    def __init__(self, network: Network, reference: TorchOperations, rewards: CudaRewards | None = None) -> None:
        """`reference` are the operations of the group by torch; `rewards`: by what rewards are normalised, None: they are already."""
        self.rewards = rewards
        config = reference.config
        self.name, self.target, self.discount = reference.group.name, TARGETS[config.advantage], Discount.of(config)
        rows = network.rows + 2 * SUMS  # with the memory of the sums, in float64
        layers = chosen(rows)
        columns = layers.columns_for(rows, COLUMNS)
        self.network, self.pack = block_network(network, reference.policy.space.outputs, columns, layers)
        self.threads = threads_of(layers_of(network), TOGETHER)
        self.shared_bytes = 4 * network.rows * layers.stride(columns)
        functions = (add_up, explained, flags_of, follow, load_columns, mean_and_variance, next_truncated, read, terminated, truncated)
        numbers = {"columns": columns, "stride": layers.stride(columns), "threads": self.threads, "summing": THREADS, "sums": SUMS}
        texts = (FORWARD if self.target.windowed else BACKWARD) | (NORMALIZED if rewards else AS_THEY_ARE)
        of_rewards = (merge_sums, merged_sums, normalized_reward, scale_of, sum_blocks)
        ratio = "read(log_ratio, at)" if self.target.uses_ratio else "float32(0.0)"
        source = fill(KERNEL, target=config.advantage, ratio=ratio, **texts, **{name: str(number) for name, number in numbers.items()})
        names = {f.__name__: f for f in (*functions, write, *of_rewards)} | {
            "target": self.target.formula,
            "BlockNetwork": BlockNetwork,
            "Step": Step,
            "compute_layer": layers.compute_layer,
        }
        self.module = module_for(f"returns_{config.advantage}_cuda", source, names | {"BOUND": bound()})

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        value = self.network.weights.new_zeros(1)
        ended, flat, sums = value.bool(), on_device(value), on_device(value.double())
        rollout = on_device(Rollout(value, value, value, ended, ended, 1, 1, 1, 1, 1, 1, 1))
        given = on_device(self.network), rollout, flat, flat, self.discount, flat, flat, flat, sums
        of_rewards = (on_device(self.rewards.running), sums) if self.rewards else ()
        want(self.module, "advantages", (*given, *of_rewards))
        want(self.module, "spread", (sums, 1, 1, flat, *of_rewards))
        if self.rewards:
            self.rewards.compile_ahead()

    def __call__(self, trajectory: Trajectory, reward: torch.Tensor, log_ratio: torch.Tensor | None) -> Estimate:
        """Return advantages and returns, [T, N, A]."""
        self.pack()
        reward = reward.contiguous()
        following, advantage, returns = (torch.empty_like(reward) for _ in range(3))
        rollout, ratio = _rollout(trajectory, self.name), reward if log_ratio is None else log_ratio.contiguous()
        blocks = -(-rollout.columns // self.network.columns)
        sums, out = reward.new_empty(blocks * SUMS, dtype=torch.float64), reward.new_empty(SUMS + 1)
        flat = [on_device(tensor.view(-1)) for tensor in (reward, ratio, following, advantage, returns)]
        given = (on_device(self.network), on_device(rollout), *flat[:2], self.discount, *flat[2:], on_device(sums))
        of_rewards = (on_device(self.rewards.running), on_device(self.rewards.sums(trajectory))) if self.rewards else ()
        launch(self.module, "advantages", (blocks, self.threads), (*given, *of_rewards), self.shared_bytes)
        # Of actors that had left, advantage and return are 0: reward, values and what follows are.
        rows = trajectory.groups[self.name].rows
        launch(self.module, "spread", (1, THREADS), (on_device(sums), blocks, rows, on_device(out), *of_rewards))
        if self.rewards:
            self.rewards.statistics.forget(rows)
        spread = Spread(*out.unbind())
        return Estimate(advantage, returns, spread if self.target.gives_errors else spread._replace(explained=None))


def _rollout(trajectory: Trajectory, name: str) -> Rollout:
    group = trajectory.groups[name]
    steps, envs, actors = group.value.shape
    terminated, _ = trajectory.ends(name)
    return Rollout(
        obs=group.obs[-1].reshape(-1),
        final_obs=group.final_obs.reshape(-1),
        value=group.value.reshape(-1),
        terminated=terminated.reshape(-1),
        truncated=trajectory.truncated.reshape(-1),
        steps=steps,
        columns=envs * actors,
        envs=envs,
        owners=envs * terminated.shape[2],
        actors=actors,
        ending=actors // terminated.shape[2],
        features=group.obs.shape[-1],
    )
