"""Gradient steps of DQN, DDPG and TD3 in kernels (CPU), equal to the torch of `dqn` and `deterministic`.

Batches of replay are small and so are the networks: torch would spend its time between operations. A batch is cut into shares by a rule
that knows only its size, a thread computes one share after the other in blocks of COLUMNS rows, and one kernel adds the gradients in the
order of the shares, clips them, moves the parameters by Adam and the target after them.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from warprun.agents.critics import Trained
from warprun.agents.replay import Transitions
from warprun.agents.replay_cpu import bits_of, key_of
from warprun.engine import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.engine.mlp import RELU, TANH, Layer, backward, forward
from warprun.engine.simd import COLUMNS, multiply
from warprun.engine.threads import threads as threads_of_process
from warprun.math import cos, log, sqrt

SHARE_BLOCKS = 2
"""Blocks of COLUMNS rows in a share: every share has a gradient of its own, which has to be added."""
VALUE, LOSS = 0, 1
"""What shares sum up in Memory.terms."""

float32, uint32 = np.float32, np.uint32


class Net(NamedTuple):
    """A network on blocks, see `warprun.engine.mlp`."""

    parameters: Any
    """[P]."""
    layers: Any
    """[layer, 8] int64."""
    outputs: Any
    """[outputs] int64: their rows in a block."""


class Memory(NamedTuple):
    """What threads write on."""

    act: Any
    """[thread, SHARE_BLOCKS, row, COLUMNS]: activations of an actor."""
    act_slopes: Any
    judge: Any
    """[thread, SHARE_BLOCKS, row, COLUMNS]: activations of critics or of the values of choices."""
    judge_slopes: Any
    spare: Any
    """[thread, row, COLUMNS]."""
    zeros: Any
    target: Any
    """[thread, COLUMNS]."""
    act_gradient: Any
    """[share, P]."""
    judge_gradient: Any
    terms: Any
    """[share, 2] float64."""


class Batch(NamedTuple):
    """Transitions as arrays, and where their temporal-difference errors go."""

    obs: Any
    action: Any
    reward: Any
    discount: Any
    next_obs: Any
    weight: Any
    error: Any


class Moments(NamedTuple):
    """The state of Adam."""

    mean: Any
    square: Any
    steps: Any


class AdamNumbers(NamedTuple):
    """The settings of a step, float32 but for the rate."""

    rate: Any  # float64
    beta1: Any
    beta2: Any
    eps: Any
    max_norm: Any
    tau: Any
    """How far the target follows; 0: not at all."""


class Smoothing(NamedTuple):
    """Noise on the target's actions."""

    std: Any
    clip: Any
    seed_low: Any
    seed_high: Any
    number: Any


def part_of(share, shares, count):
    """Return the first and the last row (exclusive) of a share."""
    blocks = -(-count // COLUMNS)
    return blocks * share // shares * COLUMNS, min(count, blocks * (share + 1) // shares * COLUMNS)


def put(source, begin, n, block, row):
    """Bring columns `begin` .. of `source` [B, F] into `block` from `row` on."""
    for f in range(source.shape[1]):
        for c in range(n):
            block[row + f, c] = source[begin + c, f]


def choices_share(share, shares, thread, target, online, double, batch, memory):
    """Compute the gradient of one share of a batch of DQN."""
    gradient, terms = memory.judge_gradient[share], memory.terms[share]
    gradient[:] = float32(0.0)
    terms[:] = 0.0
    count = batch.reward.size
    goal, used = memory.target[thread], 0
    best = memory.act[thread, 0, 0]  # row 0 of the actor's memory: DQN has no actor
    first, choices = online.outputs[0], online.outputs.size
    begin, end = part_of(share, shares, count)
    while begin < end:
        n = min(COLUMNS, end - begin)
        block, slopes = memory.judge[thread, used], memory.judge_slopes[thread, used]
        for step in range(2 if double else 1):
            # Double: the online network chooses, then the target network says what the choice is worth.
            net = online if double and step == 0 else target
            put(batch.next_obs, begin, n, block, 0)
            forward(net.parameters, net.layers, block)
            if step == 0:
                for c in range(n):
                    best[c] = float32(0.0)
                    for k in range(1, choices):
                        if block[first + k, c] > block[first + np.int64(best[c]), c]:
                            best[c] = float32(k)
        for c in range(n):
            goal[c] = batch.reward[begin + c] + batch.discount[begin + c] * block[first + np.int64(best[c]), c]
        put(batch.obs, begin, n, block, 0)
        forward(online.parameters, online.layers, block)
        slopes[first : first + choices] = float32(0.0)
        for c in range(n):
            chosen = first + batch.action[begin + c, 0]
            error = block[chosen, c] - goal[c]
            near = min(max(error, float32(-1.0)), float32(1.0))
            slopes[chosen, c] = near * batch.weight[begin + c] / float32(count)
            batch.error[begin + c] = error
            terms[VALUE] += block[chosen, c]
            terms[LOSS] += batch.weight[begin + c] * near * (error - float32(0.5) * near)
        begin += n
        used += 1
    blocks, all_slopes = memory.judge[thread, :used], memory.judge_slopes[thread, :used]
    backward(online.parameters, online.layers, blocks, all_slopes, memory.spare[thread], memory.zeros, gradient)


def critics_share(share, shares, thread, actor_target, target, online, smoothing, batch, memory):
    """Compute the gradient of one share of a batch for the critics."""
    gradient, terms = memory.judge_gradient[share], memory.terms[share]
    gradient[:] = float32(0.0)
    terms[:] = 0.0
    count, features, components = batch.reward.size, batch.obs.shape[1], batch.action.shape[1]
    goal, act, used = memory.target[thread], memory.act[thread, 0], 0
    key = key_of(smoothing.seed_low, smoothing.seed_high, smoothing.number)
    begin, end = part_of(share, shares, count)
    while begin < end:
        n = min(COLUMNS, end - begin)
        block, slopes = memory.judge[thread, used], memory.judge_slopes[thread, used]
        put(batch.next_obs, begin, n, act, 0)
        forward(actor_target.parameters, actor_target.layers, act)
        put(batch.next_obs, begin, n, block, 0)
        for d in range(components):
            for c in range(n):
                action = act[actor_target.outputs[d], c]
                if smoothing.std > float32(0.0):
                    index = (begin + c) * components + d
                    noise = smoothing.std * normal_of(key, index, count * components)
                    action += min(max(noise, -smoothing.clip), smoothing.clip)
                    action = min(max(action, float32(-1.0)), float32(1.0))
                block[features + d, c] = action
        forward(target.parameters, target.layers, block)
        for c in range(n):
            least = block[target.outputs[0], c]
            for k in range(1, target.outputs.size):
                least = min(least, block[target.outputs[k], c])
            goal[c] = batch.reward[begin + c] + batch.discount[begin + c] * least
            batch.error[begin + c] = float32(0.0)
        put(batch.obs, begin, n, block, 0)
        put(batch.action, begin, n, block, features)
        forward(online.parameters, online.layers, block)
        for k in range(online.outputs.size):
            row = online.outputs[k]
            slopes[row] = float32(0.0)
            for c in range(n):
                error = block[row, c] - goal[c]
                slopes[row, c] = float32(2.0) * error * batch.weight[begin + c] / float32(count)
                batch.error[begin + c] += error / float32(online.outputs.size)
                terms[VALUE] += block[row, c] / float32(online.outputs.size)
                terms[LOSS] += batch.weight[begin + c] * error * error
        begin += n
        used += 1
    blocks, all_slopes = memory.judge[thread, :used], memory.judge_slopes[thread, :used]
    backward(online.parameters, online.layers, blocks, all_slopes, memory.spare[thread], memory.zeros, gradient)


def actor_share(share, shares, thread, actor, critic, batch, memory):
    """Compute the gradient of one share of a batch for the actor: of -Q(s, actor(s)) by the first critic."""
    gradient, terms = memory.act_gradient[share], memory.terms[share]
    gradient[:] = float32(0.0)
    terms[:] = 0.0
    count, features, components = batch.reward.size, batch.obs.shape[1], batch.action.shape[1]
    block, slopes, used = memory.judge[thread, 0], memory.judge_slopes[thread, 0], 0
    begin, end = part_of(share, shares, count)
    while begin < end:
        n = min(COLUMNS, end - begin)
        act, act_slopes = memory.act[thread, used], memory.act_slopes[thread, used]
        put(batch.obs, begin, n, act, 0)
        forward(actor.parameters, actor.layers, act)
        put(batch.obs, begin, n, block, 0)
        for d in range(components):
            block[features + d] = act[actor.outputs[d]]
        forward(critic.parameters, critic.layers, block)
        row = critic.outputs[0]
        slopes[row] = float32(0.0)
        for c in range(n):
            slopes[row, c] = float32(-1.0) / float32(count)
            terms[LOSS] -= block[row, c]
        backward_to_input(critic.parameters, critic.layers, block, slopes, memory.zeros)
        for d in range(components):
            act_slopes[actor.outputs[d]] = slopes[features + d]
        begin += n
        used += 1
    blocks, all_slopes = memory.act[thread, :used], memory.act_slopes[thread, :used]
    backward(actor.parameters, actor.layers, blocks, all_slopes, memory.spare[thread], memory.zeros, gradient)


def backward_to_input(parameters, layers, block, slopes, zeros):
    """Fill the slopes of the input of a chain of layers; the parameters get none."""
    values, flat = block.reshape(block.size), slopes.reshape(slopes.size)
    for n in range(layers.shape[0] - 1, -1, -1):
        weight, n_in, n_out, in_row, out_row = layers[n, 0], layers[n, 2], layers[n, 3], layers[n, 4], layers[n, 5]
        out = values[out_row * COLUMNS : (out_row + n_out) * COLUMNS]
        slope = flat[out_row * COLUMNS : (out_row + n_out) * COLUMNS]
        if layers[n, 6] == TANH:
            for m in range(slope.size):
                slope[m] *= float32(1.0) - out[m] * out[m]
        elif layers[n, 6] == RELU:
            for m in range(slope.size):
                slope[m] = slope[m] if out[m] > float32(0.0) else float32(0.0)
        multiply(parameters[weight:], 1, n_in, zeros, slope, flat[in_row * COLUMNS : (in_row + n_in) * COLUMNS], n_in, n_out)


def normal_of(key, index, count):
    """Return standard normal number `index` of `count`, as `shuffle.normals` has it."""
    u = (float32(np.int32(bits_of(key, index) >> uint32(8))) + float32(0.5)) * float32(2.0**-24)
    v = (float32(np.int32(bits_of(key, count + index) >> uint32(8))) + float32(0.5)) * float32(2.0**-24)
    return sqrt(float32(-2.0) * log(u)) * cos(float32(6.283185307179586) * v)


def adam_step(gradients, parameters, target, moments, numbers):
    """Add the gradients of the shares [share, P], clip, move the parameters by Adam and the target after them; return the norm."""
    total = gradients[0]
    for share in range(1, gradients.shape[0]):
        more = gradients[share]
        for m in range(total.size):
            total[m] += more[m]
    # Eight partial sums: a single one would wait for each addition.
    squares = np.zeros(8, np.float32)
    whole = total.size // 8 * 8
    for m in range(0, whole, 8):
        for lane in range(8):
            squares[lane] += total[m + lane] * total[m + lane]
    for m in range(whole, total.size):
        squares[0] += total[m] * total[m]
    norm = sqrt(float32(np.sum(squares)))
    scale = min(float32(1.0), numbers.max_norm / (norm + float32(1e-6)))
    moments.steps[0] += 1.0
    correction1 = np.float64(1.0) - np.float64(numbers.beta1) ** moments.steps[0]
    correction2 = np.float64(1.0) - np.float64(numbers.beta2) ** moments.steps[0]
    rate, spread = float32(numbers.rate / correction1), float32(1.0 / correction2)
    keep1, keep2 = float32(1.0 - numbers.beta1), float32(1.0 - numbers.beta2)
    mean, square = moments.mean, moments.square
    for m in range(total.size):
        g = total[m] * scale
        mean[m] += keep1 * (g - mean[m])
        square[m] = float32(numbers.beta2) * square[m] + keep2 * g * g
        parameters[m] -= rate * mean[m] / (np.sqrt(square[m] * spread) + numbers.eps)
        target[m] += numbers.tau * (parameters[m] - target[m])
    return norm


SOURCE = '''"""Gradient steps of DQN, DDPG and TD3; written by warprun."""

from numba import njit


@njit(nogil=True, cache=True, **FLAGS)
def choices(first, last, thread, shares, target, online, double, batch, memory):
    for share in range(first, last):
        choices_share(share, shares, thread, target, online, double, batch, memory)


@njit(nogil=True, cache=True, **FLAGS)
def critics(first, last, thread, shares, actor_target, target, online, smoothing, batch, memory):
    for share in range(first, last):
        critics_share(share, shares, thread, actor_target, target, online, smoothing, batch, memory)


@njit(nogil=True, cache=True, **FLAGS)
def actor(first, last, thread, shares, actor, critic, batch, memory):
    for share in range(first, last):
        actor_share(share, shares, thread, actor, critic, batch, memory)


@njit(nogil=True, cache=True, **FLAGS)
def adam(gradients, parameters, target, moments, numbers):
    return adam_step(gradients, parameters, target, moments, numbers)
'''


@cache
def module() -> ModuleType:
    """Return the compiled kernels."""
    functions: dict[str, Any] = {f.__name__: f for f in (choices_share, critics_share, actor_share, adam_step)}
    return kernels.load_module("fused_updates", SOURCE, functions | {"FLAGS": kernels.FLAGS, "COLUMNS": COLUMNS})


class FusedUpdates:
    """The kernels for a batch size and the largest networks; an actor of no layers where there is none."""

    def __init__(self, actor: list[Layer], judge: list[Layer], sizes: tuple[int, int], batch_size: int, threads: int) -> None:
        self.threads = threads_of_process(threads)
        self.shares = -(-batch_size // (COLUMNS * SHARE_BLOCKS))
        self.error = np.empty(batch_size, np.float32)
        act_rows, judge_rows = (max((layer.out_row + layer.n_out for layer in table), default=1) for table in (actor, judge))
        count, most = self.threads.count, max(act_rows, judge_rows)

        def zeros(*shape: int) -> np.ndarray:
            return np.zeros(shape, np.float32)

        self.memory = Memory(
            act=zeros(count, SHARE_BLOCKS, act_rows, COLUMNS),
            act_slopes=zeros(count, SHARE_BLOCKS, act_rows, COLUMNS),
            judge=zeros(count, SHARE_BLOCKS, judge_rows, COLUMNS),
            judge_slopes=zeros(count, SHARE_BLOCKS, judge_rows, COLUMNS),
            spare=zeros(count, most, COLUMNS),
            zeros=zeros(most),
            target=zeros(count, COLUMNS),
            act_gradient=zeros(self.shares, sizes[0]),
            judge_gradient=zeros(self.shares, sizes[1]),
            terms=np.zeros((self.shares, 2)),
        )

    def batch(self, transitions: Transitions) -> Batch:
        """Return transitions as arrays."""
        obs, action, reward, discount, next_obs, weight, _ = (part.numpy() for part in transitions)
        return Batch(obs, action, reward, discount, next_obs, weight, self.error)

    def run(self, kernel: str, *given: Any) -> tuple[float, float]:
        """Run a kernel over all shares; return the means over the batch of the value and the loss."""
        function = getattr(module(), kernel)
        self.threads.share(lambda first, last, n: function(first, last, n, self.shares, *given, self.memory), self.shares)
        value, loss = self.memory.terms.sum(0) / len(self.error)
        return float(value), float(loss)

    def step(self, gradients: np.ndarray, trained: Trained, rate: float, max_norm: float | None, tau: float) -> float:
        """Move what is trained by the gradients of the shares, and its target by `tau`; return the norm of the gradient."""
        adam = trained.optimizer
        settings = adam.config
        numbers = AdamNumbers(
            np.float64(rate),
            np.float64(settings.beta1),
            np.float64(settings.beta2),
            float32(settings.eps),
            float32(np.inf if max_norm is None else max_norm),
            float32(tau),
        )
        moments = Moments(adam.mean.numpy(), adam.square.numpy(), adam.steps.view(1).numpy())  # type: ignore[union-attr]
        return float(module().adam(gradients, trained.parameters.numpy(), trained.target_parameters.numpy(), moments, numbers))


def net(parameters: torch.Tensor, table: list[Layer], outputs: list[int]) -> Net:
    """Return a network for the kernels, sharing its parameters."""
    return Net(parameters.numpy(), np.array(table, np.int64), np.array(outputs, np.int64))
