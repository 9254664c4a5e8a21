"""Losses of DQN, DDPG and TD3 on one block of transitions, as functions for kernels: targets, errors, derivatives of the loss.

Each computes the same as the torch code in `algorithms.dqn` or `algorithms.td3`. A function gets its networks, `settings`, the batch and
the first transition of its block. It writes activations and derivatives of the trained network to block number `used` of its memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.kernels.mlp import backward_to_input, forward
from warprun.learning.replay.draws import key_of, normal_of

VALUE, LOSS = 0, 1
"""Columns of `Memory.terms`."""

float32, uint32 = np.float32, np.uint32


class Net(NamedTuple):
    """A network and its working memory; networks with the same layers may share the memory."""

    parameters: NDArray[np.float32]
    """[P]."""
    layers: NDArray[np.int64]
    """[layer, 7], see `warprun.kernels.mlp`."""
    outputs: NDArray[np.int64]
    """[outputs]: their rows in a block."""
    blocks: NDArray[np.float32]
    """[thread, block, row, column]: activations."""
    derivatives: NDArray[np.float32]
    """[thread, block, row, column]: derivatives of the loss by the activations."""
    gradient: NDArray[np.float32]
    """[share, P]."""


class Memory(NamedTuple):
    """Working memory in addition to that of the networks."""

    target: NDArray[np.float32]
    """[thread, column]."""
    best: NDArray[np.int64]
    """[thread, column]: actions with the largest value."""
    zeros: NDArray[np.float32]
    """[row]."""
    terms: NDArray[np.float64]
    """[share, 2]: sums of the values and of the losses of transitions."""
    error: NDArray[np.float32]
    """[B]: the temporal-difference errors."""


class Smoothing(NamedTuple):
    """Noise on the target policy's actions: standard deviation, largest noise, and the random stream."""

    std: float
    clip: float
    seed_low: np.uint32
    seed_high: np.uint32
    number: NDArray[np.int64]
    """[]: number of the draw."""


def q_values(nets, double, batch, begin, n, thread, used, memory, terms):
    """DQN: the Huber loss of the values of the actions in the batch."""
    target, online = nets
    block, derivatives = online.blocks[thread, used], online.derivatives[thread, used]
    target_value, best = memory.target[thread], memory.best[thread]
    first, weight = online.outputs[0], float32(1.0) / float32(batch.reward.size)
    load(batch.next_obs, begin, n, block, 0)
    # Double DQN: the online network selects the action, the target network evaluates it.
    if double:
        forward(online.parameters, online.layers, block)
        find_best(block, online.outputs, n, best)
    forward(target.parameters, target.layers, block)
    if not double:
        find_best(block, online.outputs, n, best)
    for c in range(n):
        target_value[c] = batch.reward[begin + c] + batch.discount[begin + c] * block[first + best[c], c]
    load(batch.obs, begin, n, block, 0)
    forward(online.parameters, online.layers, block)
    derivatives[first : first + online.outputs.size] = float32(0.0)
    for c in range(n):
        chosen = first + batch.action[begin + c, 0]
        error = block[chosen, c] - target_value[c]
        clipped = min(max(error, float32(-1.0)), float32(1.0))
        derivatives[chosen, c] = clipped * batch.weight[begin + c] * weight
        memory.error[begin + c] = error
        terms[VALUE] += block[chosen, c]
        terms[LOSS] += batch.weight[begin + c] * clipped * (error - float32(0.5) * clipped)


def critics(nets, smoothing, batch, begin, n, thread, used, memory, terms):
    """DDPG and TD3: squared errors of all critics from the smallest target; `memory.error` gets the largest absolute error."""
    actor_target, target, online = nets
    act, block, derivatives = actor_target.blocks[thread, 0], online.blocks[thread, used], online.derivatives[thread, used]
    target_value, features, count = memory.target[thread], batch.obs.shape[1], batch.reward.size
    weight, share = float32(2.0) / float32(count), float32(1.0) / float32(online.outputs.size)
    load(batch.next_obs, begin, n, act, 0)
    forward(actor_target.parameters, actor_target.layers, act)
    load(batch.next_obs, begin, n, block, 0)
    load_smoothed(act, actor_target.outputs, smoothing, begin, n, count, block, features)
    forward(target.parameters, target.layers, block)
    for c in range(n):
        smallest = block[target.outputs[0], c]
        for k in range(1, target.outputs.size):
            smallest = min(smallest, block[target.outputs[k], c])
        target_value[c] = batch.reward[begin + c] + batch.discount[begin + c] * smallest
        memory.error[begin + c] = float32(0.0)
    load(batch.obs, begin, n, block, 0)
    load(batch.action, begin, n, block, features)
    forward(online.parameters, online.layers, block)
    for k in range(online.outputs.size):
        row = online.outputs[k]
        derivatives[row] = float32(0.0)
        for c in range(n):
            error = block[row, c] - target_value[c]
            derivatives[row, c] = error * batch.weight[begin + c] * weight
            memory.error[begin + c] = max(memory.error[begin + c], abs(error))
            terms[VALUE] += block[row, c] * share
            terms[LOSS] += batch.weight[begin + c] * error * error


def actor(nets, settings, batch, begin, n, thread, used, memory, terms):
    """DDPG and TD3: the negative value of the actor's actions by the first critic."""
    critic, trained = nets
    block, derivatives = critic.blocks[thread, 0], critic.derivatives[thread, 0]
    act, act_derivatives = trained.blocks[thread, used], trained.derivatives[thread, used]
    features, row = batch.obs.shape[1], critic.outputs[0]
    load(batch.obs, begin, n, act, 0)
    forward(trained.parameters, trained.layers, act)
    load(batch.obs, begin, n, block, 0)
    for d in range(trained.outputs.size):
        copy_row(act, trained.outputs[d], block, features + d)
    forward(critic.parameters, critic.layers, block)
    derivatives[row] = float32(0.0)
    for c in range(n):
        derivatives[row, c] = float32(-1.0) / float32(batch.reward.size)
        terms[LOSS] -= block[row, c]
    backward_to_input(critic.parameters, critic.layers, block, derivatives, memory.zeros)
    for d in range(trained.outputs.size):
        copy_row(derivatives, features + d, act_derivatives, trained.outputs[d])


def load(source, begin, n, block, row):
    """Write rows `begin`..`begin + n` of `source` [B, F] to the columns of `block`, from row `row` on."""
    for f in range(source.shape[1]):
        for c in range(n):
            block[row + f, c] = source[begin + c, f]


def copy_row(source, row, out, out_row):
    """Copy a row of a block to a row of another block; a slice assignment would make a temporary copy, because rows may overlap."""
    for c in range(out.shape[1]):
        out[out_row, c] = source[row, c]


def find_best(block, outputs, n, best):
    """Write the index of the largest output of each column, the first of equal ones, to `best`."""
    for c in range(n):
        best[c] = 0
        for k in range(1, outputs.size):
            if block[outputs[k], c] > block[outputs[best[c]], c]:
                best[c] = k


def load_smoothed(act, outputs, smoothing, begin, n, count, block, row):
    """Write the actions in `act` to `block` from row `row` on, with clipped noise if `smoothing.std` is positive."""
    key = key_of(smoothing.seed_low, smoothing.seed_high, uint32(smoothing.number[()]))
    std, clip = float32(smoothing.std), float32(smoothing.clip)
    for d in range(outputs.size):
        copy_row(act, outputs[d], block, row + d)
        if std > float32(0.0):
            for c in range(n):
                noise = std * normal_of(key, (begin + c) * outputs.size + d, count * outputs.size)
                action = block[row + d, c] + min(max(noise, -clip), clip)
                block[row + d, c] = min(max(action, float32(-1.0)), float32(1.0))
