"""What DQN, DDPG and TD3 do to one block of transitions, as functions for kernels: targets, errors, slopes of the loss.

Each says the same as the torch of `dqn` or `deterministic`. A function gets the networks it needs, `settings` of its own, the batch and
where its block begins in it; it leaves activations and slopes of the network that is trained in `used`, a block of that network's memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from warprun.kernels.mlp import backward_to_input, forward
from warprun.learning.replay.draws import key_of, normal_of

VALUE, LOSS = 0, 1
"""What blocks add up in `terms`."""

float32 = np.float32


class Net(NamedTuple):
    """A network and the memory to compute it on; one with other parameters but the same layers may share the memory."""

    parameters: Any
    """[P]."""
    layers: Any
    """[layer, 7] int64, see `warprun.kernels.mlp`."""
    outputs: Any
    """[outputs] int64: their rows in a block."""
    blocks: Any
    """[thread, block, row, column]: activations."""
    slopes: Any
    """The same for derivatives."""
    gradient: Any
    """[share, P]."""


class Memory(NamedTuple):
    """What threads write on beside the networks' own."""

    target: Any
    """[thread, column]."""
    choice: Any
    """[thread, column] int64."""
    zeros: Any
    """[row]."""
    terms: Any
    """[share, 2] float64."""
    error: Any
    """[B]: the temporal-difference errors."""


class Smoothing(NamedTuple):
    """Noise on the target's actions: its deviation, where it is clipped, and the counter of its draw."""

    std: float
    clip: float
    seed_low: np.uint32
    seed_high: np.uint32
    number: np.uint32


def choices(nets, double, batch, begin, n, thread, used, memory, terms):
    """DQN: the Huber loss of the values of the choices that were made."""
    target, online = nets
    block, slopes = online.blocks[thread, used], online.slopes[thread, used]
    goal, choice = memory.target[thread], memory.choice[thread]
    first, weight = online.outputs[0], float32(1.0) / float32(batch.reward.size)
    put(batch.next_obs, begin, n, block, 0)
    # Double: the online network chooses, then the target network says what the choice is worth.
    if double:
        forward(online.parameters, online.layers, block)
        choose(block, online.outputs, n, choice)
    forward(target.parameters, target.layers, block)
    if not double:
        choose(block, online.outputs, n, choice)
    for c in range(n):
        goal[c] = batch.reward[begin + c] + batch.discount[begin + c] * block[first + choice[c], c]
    put(batch.obs, begin, n, block, 0)
    forward(online.parameters, online.layers, block)
    slopes[first : first + online.outputs.size] = float32(0.0)
    for c in range(n):
        chosen = first + batch.action[begin + c, 0]
        error = block[chosen, c] - goal[c]
        near = min(max(error, float32(-1.0)), float32(1.0))
        slopes[chosen, c] = near * batch.weight[begin + c] * weight
        memory.error[begin + c] = error
        terms[VALUE] += block[chosen, c]
        terms[LOSS] += batch.weight[begin + c] * near * (error - float32(0.5) * near)


def critics(nets, smoothing, batch, begin, n, thread, used, memory, terms):
    """DDPG and TD3: the squared errors of all critics against the least of their targets; `memory.error` gets the largest absolute one."""
    actor_target, target, online = nets
    act, block, slopes = actor_target.blocks[thread, 0], online.blocks[thread, used], online.slopes[thread, used]
    goal, features, count = memory.target[thread], batch.obs.shape[1], batch.reward.size
    weight, share = float32(2.0) / float32(count), float32(1.0) / float32(online.outputs.size)
    put(batch.next_obs, begin, n, act, 0)
    forward(actor_target.parameters, actor_target.layers, act)
    put(batch.next_obs, begin, n, block, 0)
    put_smoothed(act, actor_target.outputs, smoothing, begin, n, count, block, features)
    forward(target.parameters, target.layers, block)
    for c in range(n):
        least = block[target.outputs[0], c]
        for k in range(1, target.outputs.size):
            least = min(least, block[target.outputs[k], c])
        goal[c] = batch.reward[begin + c] + batch.discount[begin + c] * least
        memory.error[begin + c] = float32(0.0)
    put(batch.obs, begin, n, block, 0)
    put(batch.action, begin, n, block, features)
    forward(online.parameters, online.layers, block)
    for k in range(online.outputs.size):
        row = online.outputs[k]
        slopes[row] = float32(0.0)
        for c in range(n):
            error = block[row, c] - goal[c]
            slopes[row, c] = error * batch.weight[begin + c] * weight
            memory.error[begin + c] = max(memory.error[begin + c], abs(error))
            terms[VALUE] += block[row, c] * share
            terms[LOSS] += batch.weight[begin + c] * error * error


def actor(nets, settings, batch, begin, n, thread, used, memory, terms):
    """DDPG and TD3: minus the value of the actor's actions by the first critic."""
    critic, trained = nets
    block, slopes = critic.blocks[thread, 0], critic.slopes[thread, 0]
    act, act_slopes = trained.blocks[thread, used], trained.slopes[thread, used]
    features, row = batch.obs.shape[1], critic.outputs[0]
    put(batch.obs, begin, n, act, 0)
    forward(trained.parameters, trained.layers, act)
    put(batch.obs, begin, n, block, 0)
    for d in range(trained.outputs.size):
        copy_row(act, trained.outputs[d], block, features + d)
    forward(critic.parameters, critic.layers, block)
    slopes[row] = float32(0.0)
    for c in range(n):
        slopes[row, c] = float32(-1.0) / float32(batch.reward.size)
        terms[LOSS] -= block[row, c]
    backward_to_input(critic.parameters, critic.layers, block, slopes, memory.zeros)
    for d in range(trained.outputs.size):
        copy_row(slopes, features + d, act_slopes, trained.outputs[d])


def put(source, begin, n, block, row):
    """Bring columns `begin` .. of `source` [B, F] into `block` from `row` on."""
    for f in range(source.shape[1]):
        for c in range(n):
            block[row + f, c] = source[begin + c, f]


def copy_row(source, row, out, out_row):
    """Copy a row of a block to one of another; an assignment of rows would make a copy on the way, in case they overlap."""
    for c in range(out.shape[1]):
        out[out_row, c] = source[row, c]


def choose(block, outputs, n, choice):
    """Write the number of the largest output of each column, the first of several, to `choice`."""
    for c in range(n):
        choice[c] = 0
        for k in range(1, outputs.size):
            if block[outputs[k], c] > block[outputs[choice[c]], c]:
                choice[c] = k


def put_smoothed(act, outputs, smoothing, begin, n, count, block, row):
    """Bring the actions in `act` into `block` from `row` on, with clipped noise where there is any."""
    key = key_of(smoothing.seed_low, smoothing.seed_high, smoothing.number)
    std, clip = float32(smoothing.std), float32(smoothing.clip)
    for d in range(outputs.size):
        copy_row(act, outputs[d], block, row + d)
        if std > float32(0.0):
            for c in range(n):
                noise = std * normal_of(key, (begin + c) * outputs.size + d, count * outputs.size)
                action = block[row + d, c] + min(max(noise, -clip), clip)
                block[row + d, c] = min(max(action, float32(-1.0)), float32(1.0))
