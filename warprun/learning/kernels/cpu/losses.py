"""Losses of the off-policy agents on one block of transitions, as functions for kernels: targets, errors, derivatives of the loss.

Each computes the same as the torch code in `algorithms.dqn`, `algorithms.td3` or `algorithms.sac`. A function gets its
networks, `settings`, the batch and the first transition of its block. It writes activations and derivatives of the
trained network to block number `used` of its memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.kernels.mlp import backward_to_input, forward
from warprun.kernels.sampling import gaussian_log_density, limited_log_std
from warprun.learning.draws import key_of, normal_of
from warprun.math import exp, softplus, tanh

VALUE, LOSS = 0, 1
"""Columns of `Workspace.terms`."""

float32 = np.float32
LOG_2 = np.float32(np.log(2.0))


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


class Workspace(NamedTuple):
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
    infer(online, batch.obs, begin, n, block)
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
    """DDPG and TD3: squared errors of all critics from the smallest target; `smoothing` is (std, clip, stream)."""
    actor, target, online = nets
    act, block = actor.blocks[thread, 0], online.blocks[thread, used]
    infer(actor, batch.next_obs, begin, n, act)
    load(batch.next_obs, begin, n, block, 0)
    load_smoothed(act, actor.outputs, smoothing, begin, n, batch, block)
    forward(target.parameters, target.layers, block)
    for c in range(n):
        smallest = block[row_of_smallest(block, target.outputs, c), c]
        memory.target[thread, c] = batch.reward[begin + c] + batch.discount[begin + c] * smallest
    squared_errors(online, float32(1.0), batch, begin, n, thread, used, memory, terms)


def soft_critics(nets, drawing, batch, begin, n, thread, used, memory, terms):
    """SAC: half the squared errors of all critics from the smallest soft target.

    `drawing` is (log temperature [1], stream).
    """
    actor, target, online = nets
    act, block, target_value = actor.blocks[thread, 0], online.blocks[thread, used], memory.target[thread]
    infer(actor, batch.next_obs, begin, n, act)
    load(batch.next_obs, begin, n, block, 0)
    load_drawn(act, actor.outputs, drawing[1], begin, n, batch, block, target_value)  # their log-densities for now
    forward(target.parameters, target.layers, block)
    temperature = exp(drawing[0][0])
    for c in range(n):
        soft_value = block[row_of_smallest(block, target.outputs, c), c] - temperature * target_value[c]
        target_value[c] = batch.reward[begin + c] + batch.discount[begin + c] * soft_value
    squared_errors(online, float32(0.5), batch, begin, n, thread, used, memory, terms)


def squared_errors(online, scale, batch, begin, n, thread, used, memory, terms):
    """Write derivatives of `scale` times the squared errors of all critics from `memory.target`, and add to `terms`.

    `memory.error` gets the largest absolute error of all critics.
    """
    block, derivatives, target_value = (
        online.blocks[thread, used],
        online.derivatives[thread, used],
        memory.target[thread],
    )
    weight, share = float32(2.0) * scale / float32(batch.reward.size), float32(1.0) / float32(online.outputs.size)
    load(batch.action, begin, n, block, batch.obs.shape[1])
    infer(online, batch.obs, begin, n, block)
    for c in range(n):
        memory.error[begin + c] = float32(0.0)
    for row in online.outputs:
        derivatives[row] = float32(0.0)
        for c in range(n):
            error = block[row, c] - target_value[c]
            derivatives[row, c] = error * batch.weight[begin + c] * weight
            memory.error[begin + c] = max(memory.error[begin + c], abs(error))
            terms[VALUE] += block[row, c] * share
            terms[LOSS] += scale * batch.weight[begin + c] * error * error


def actor(nets, settings, batch, begin, n, thread, used, memory, terms):
    """DDPG and TD3: the negative value of the actor's actions by the first critic."""
    critics, trained = nets
    block, derivatives = critics.blocks[thread, 0], critics.derivatives[thread, 0]
    act, act_derivatives = trained.blocks[thread, used], trained.derivatives[thread, used]
    features, row = batch.obs.shape[1], critics.outputs[0]
    layers = critics.layers[: critics.layers.shape[0] // critics.outputs.size]
    infer(trained, batch.obs, begin, n, act)
    load(batch.obs, begin, n, block, 0)
    for d in range(trained.outputs.size):
        copy_row(act, trained.outputs[d], block, features + d)
    forward(critics.parameters, layers, block)
    derivatives[row] = float32(0.0)
    for c in range(n):
        derivatives[row, c] = float32(-1.0) / float32(batch.reward.size)
        terms[LOSS] -= block[row, c]
    backward_to_input(critics.parameters, layers, block, derivatives, memory.zeros)
    for d in range(trained.outputs.size):
        copy_row(derivatives, features + d, act_derivatives, trained.outputs[d])


def soft_actor(nets, drawing, batch, begin, n, thread, used, memory, terms):
    """SAC: the temperature times the log-density of the actor's actions, less their value by the critic of the smaller one.

    `terms[VALUE]` gets the entropies. For a draw u = mean + std noise and a = tanh u, the derivative of the log-density
    by u is 2 a, and that by log std is -1 besides what comes through u (`learning.distributions.squashed`).
    """
    critics, trained = nets
    block, derivatives = critics.blocks[thread, 0], critics.derivatives[thread, 0]
    act, act_derivatives = trained.blocks[thread, used], trained.derivatives[thread, used]
    log_density, features, count = memory.target[thread], batch.obs.shape[1], batch.reward.size
    size, layers = trained.outputs.size // 2, critics.layers.shape[0] // critics.outputs.size
    weight, temperature = float32(1.0) / float32(count), exp(drawing[0][0])
    infer(trained, batch.obs, begin, n, act)
    load(batch.obs, begin, n, block, 0)
    load_drawn(act, trained.outputs, drawing[1], begin, n, batch, block, log_density)
    forward(critics.parameters, critics.layers, block)
    for row in critics.outputs:
        derivatives[row] = float32(0.0)
    for c in range(n):
        row = row_of_smallest(block, critics.outputs, c)
        derivatives[row, c] = -weight
        terms[VALUE] -= log_density[c]
        terms[LOSS] += temperature * log_density[c] - block[row, c]
    for row in trained.outputs:
        act_derivatives[row] = float32(0.0)
    for k in range(critics.outputs.size):
        backward_to_input(critics.parameters, critics.layers[k * layers : (k + 1) * layers], block, derivatives, memory.zeros)
        for d in range(size):
            for c in range(n):
                act_derivatives[trained.outputs[d], c] += derivatives[features + d, c]
    key = key_of(drawing[1])
    for d in range(size):
        mean, log_std = trained.outputs[d], trained.outputs[size + d]
        for c in range(n):
            action, limited = block[features + d, c], limited_log_std(act[log_std, c])
            spread = exp(limited) * normal_of(key, (begin + c) * size + d, count * size)
            by_u = (float32(1.0) - action * action) * act_derivatives[mean, c] + float32(2.0) * temperature * weight * action
            act_derivatives[mean, c] = by_u
            by_log_std = by_u * spread - temperature * weight
            act_derivatives[log_std, c] = by_log_std if limited == act[log_std, c] else float32(0.0)


def load(source, begin, n, block, row):
    """Write rows `begin`..`begin + n` of `source` [B, F] to the columns of `block`, from row `row` on."""
    for f in range(source.shape[1]):
        for c in range(n):
            block[row + f, c] = source[begin + c, f]


def infer(net, source, begin, n, block):
    """Compute activations for rows `begin`..`begin + n` of `source` [B, F]; `block` has the other inputs already."""
    load(source, begin, n, block, 0)
    forward(net.parameters, net.layers, block)


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


def row_of_smallest(block, outputs, c):
    """Return the row of the smallest output of column `c`, the first of equal ones."""
    smallest = outputs[0]
    for k in range(1, outputs.size):
        if block[outputs[k], c] < block[smallest, c]:
            smallest = outputs[k]
    return smallest


def load_drawn(act, outputs, stream, begin, n, batch, block, log_density):
    """Write actions that the squashed policy with the outputs in `act` draws to `block`, and their log-densities.

    The same as `learning.distributions.squashed`, with the draws of `draws.normals`.
    """
    key, size, count, row = key_of(stream), outputs.size // 2, batch.reward.size, batch.obs.shape[1]
    for c in range(n):
        log_density[c] = float32(0.0)
    for d in range(size):
        mean, log_std = outputs[d], outputs[size + d]
        for c in range(n):
            noise, limited = normal_of(key, (begin + c) * size + d, count * size), limited_log_std(act[log_std, c])
            u = act[mean, c] + exp(limited) * noise
            log_slope = float32(2.0) * (LOG_2 - u - softplus(float32(-2.0) * u))
            log_density[c] += gaussian_log_density(noise, limited) - log_slope
            block[row + d, c] = tanh(u)


def load_smoothed(act, outputs, smoothing, begin, n, batch, block):
    """Write the actions in `act` to `block`, with clipped noise if its standard deviation is positive."""
    key, size, count, row = key_of(smoothing[2]), outputs.size, batch.reward.size, batch.obs.shape[1]
    std, clip = float32(smoothing[0]), float32(smoothing[1])
    for d in range(size):
        copy_row(act, outputs[d], block, row + d)
        if std > float32(0.0):
            for c in range(n):
                noise = std * normal_of(key, (begin + c) * size + d, count * size)
                action = block[row + d, c] + min(max(noise, -clip), clip)
                block[row + d, c] = min(max(action, float32(-1.0)), float32(1.0))
