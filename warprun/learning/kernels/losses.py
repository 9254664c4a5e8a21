"""Losses of the off-policy agents on a tile of transitions, for kernels: targets, errors, derivatives of the loss.

Each computes the same as the torch code in `algorithms.dqn`, `algorithms.td3` or `algorithms.sac`, on a CPU and on CUDA: it is written with
the operations of a tile (`kernels.cpu.tiles`, `kernels.cuda.tiles`). A loss gets the networks that it reads and, as the last one, the
network that it trains; it leaves the activations of this one and the slopes of its outputs in the tile. A target network has the memory of
the network that it follows. Outputs are read before slopes are written: on a GPU they are in the same place.

`batch.error` [B] gets the temporal-difference errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from warprun.kernels.made import made
from warprun.kernels.sampling import gaussian_log_density, limited_log_std
from warprun.learning.formulas import rescaled, unscaled
from warprun.learning.kernels.cpu.tiles import (
    add_term,
    clear_slopes,
    columns,
    forward,
    forward_first,
    get_input,
    get_input_slope,
    get_output,
    get_scratch,
    load,
    set_input,
    set_scratch,
    set_slope,
    slopes_to_input,
    stream_key,
)
from warprun.learning.kernels.draws import normal_of
from warprun.math import exp, softplus, tanh

VALUE, LOSS = 0, 1
"""Terms."""
TARGET, BEST, BASE, TARGETS = range(4)
"""Rows of the scratch memory of critics; from TARGETS on there are targets of quantiles, then slopes of quantiles."""
LOG_DENSITY, SLOPES = 0, 1
"""The same of actors; the slopes of all components begin at the second one."""

float32 = np.float32
LOG_2 = np.float32(np.log(2.0))


class QHead(NamedTuple):
    """How the values of actions follow from the outputs of a network, which have the number of actions as the setting `actions`."""

    prepare: Callable[..., None]
    """prepare(tile, net, actions) keeps what `value` needs, after a forward pass."""
    value: Callable[..., float]
    """value(tile, net, k, c) returns the value of action `k` in column `c`."""
    set_slopes: Callable[..., None]
    """set_slopes(tile, net, actions, chosen, c, slope) sets those of these outputs: `slope` is that of the value of action `chosen`."""
    first: int
    """Outputs beside those of the actions, before them."""


@made
def q_values_by(head: QHead, eps: float | None) -> Callable[..., None]:
    """Return the loss of DQN for values of actions by `head`, which are rescaled with `eps` (`formulas.rescaled`), or as they are."""
    prepare, value_of, set_slopes = head.prepare, head.value, head.set_slopes

    def q_values(tile, nets, settings, batch):
        """DQN: the Huber loss of the values of the actions in the batch; `settings` are (double, actions)."""
        (target, online), (double, actions) = nets, settings
        weight, begin = float32(1.0) / float32(batch.reward.size), tile.begin
        find_next(tile, nets, double, actions, batch)
        for c in columns(tile):
            next_value = to_value(value_of(tile, target, int(get_scratch(tile, BEST, c)), c))
            set_scratch(tile, TARGET, c, to_output(batch.reward[begin + c] + batch.discount[begin + c] * next_value))
        load(tile, online, batch.obs, 0)
        forward(tile, online)
        prepare(tile, online, actions)
        for c in columns(tile):
            set_scratch(tile, BEST, c, value_of(tile, online, batch.action[begin + c, 0], c))
        clear_slopes(tile, online)
        for c in columns(tile):
            value = get_scratch(tile, BEST, c)
            difference = value - get_scratch(tile, TARGET, c)
            clipped = min(max(difference, float32(-1.0)), float32(1.0))
            set_slopes(tile, online, actions, batch.action[begin + c, 0], c, clipped * batch.weight[begin + c] * weight)
            batch.error[begin + c] = difference
            add_term(tile, VALUE, c, to_value(value))
            add_term(tile, LOSS, c, batch.weight[begin + c] * clipped * (difference - float32(0.5) * clipped))

    def to_value(x):
        return x if eps is None else unscaled(x, eps)

    def to_output(x):
        return x if eps is None else rescaled(x, eps)

    find_next = next_actions_by(head)
    return q_values


def next_actions_by(head: QHead) -> Callable[..., None]:
    """Return what leaves the outputs of the target network for the next observations, and keeps the best actions there."""
    prepare, value_of = head.prepare, head.value

    def find_best(tile, net, actions):
        """Keep the number of the action of largest value of each column, the first of equal ones."""
        for c in columns(tile):
            best = 0
            for k in range(1, actions):
                if value_of(tile, net, k, c) > value_of(tile, net, best, c):
                    best = k
            set_scratch(tile, BEST, c, float32(best))

    def find_next(tile, nets, double, actions, batch):
        target, online = nets
        load(tile, online, batch.next_obs, 0)
        # Double DQN: the online network selects the action, the target network evaluates it.
        if double:
            forward(tile, online)
            prepare(tile, online, actions)
            find_best(tile, online, actions)
        forward(tile, target)
        prepare(tile, target, actions)
        if not double:
            find_best(tile, target, actions)

    return find_next


@made
def quantiles_by(head: QHead, quantiles: int) -> Callable[..., None]:
    """Return the loss of QR-DQN for values of actions by `head` and so many quantiles of each."""
    prepare, value_of, set_slopes, first = head.prepare, head.value, head.set_slopes, head.first
    find_next = next_actions_by(head)

    def quantile_values(tile, nets, settings, batch):
        """QR-DQN: the quantile Huber loss of the quantiles of the actions in the batch, see `algorithms.dqn.quantile_loss`."""
        (target, online), (double, actions) = nets, settings
        weight, begin, share = float32(1.0) / float32(batch.reward.size), tile.begin, float32(1.0) / float32(quantiles)
        find_next(tile, nets, double, actions, batch)
        for c in columns(tile):
            best = int(get_scratch(tile, BEST, c))
            base = value_of(tile, target, best, c) - mean_deviation(tile, target, first, actions, best, c)
            for j in range(quantiles):
                quantile = base + get_output(tile, target, first + actions + best * quantiles + j, c)
                set_scratch(tile, TARGETS + j, c, batch.reward[begin + c] + batch.discount[begin + c] * quantile)
        load(tile, online, batch.obs, 0)
        forward(tile, online)
        prepare(tile, online, actions)
        for c in columns(tile):
            chosen = batch.action[begin + c, 0]
            value, of_row, target_mean, slope_sum = value_of(tile, online, chosen, c), float32(0.0), float32(0.0), float32(0.0)
            base = value - mean_deviation(tile, online, first, actions, chosen, c)
            for i in range(quantiles):
                quantile = base + get_output(tile, online, first + actions + chosen * quantiles + i, c)
                tau, slope = (float32(i) + float32(0.5)) * share, float32(0.0)
                for j in range(quantiles):
                    u = get_scratch(tile, TARGETS + j, c) - quantile
                    side, clipped = float32(1.0) - tau if u < float32(0.0) else tau, min(max(u, float32(-1.0)), float32(1.0))
                    slope -= side * clipped * share
                    of_row += side * clipped * (u - float32(0.5) * clipped) * share
                set_scratch(tile, TARGETS + quantiles + i, c, slope * batch.weight[begin + c] * weight)
                slope_sum += slope * batch.weight[begin + c] * weight
            for j in range(quantiles):
                target_mean += get_scratch(tile, TARGETS + j, c) * share
            batch.error[begin + c] = value - target_mean
            add_term(tile, VALUE, c, value)
            add_term(tile, LOSS, c, batch.weight[begin + c] * of_row)
            set_scratch(tile, TARGET, c, slope_sum)
        clear_slopes(tile, online)
        for c in columns(tile):
            chosen, slope_sum = batch.action[begin + c, 0], get_scratch(tile, TARGET, c)
            set_slopes(tile, online, actions, chosen, c, slope_sum)
            for i in range(quantiles):
                slope = get_scratch(tile, TARGETS + quantiles + i, c) - slope_sum * share
                set_slope(tile, online, first + actions + chosen * quantiles + i, c, slope)

    def mean_deviation(tile, net, first, actions, k, c):
        total = float32(0.0)
        for i in range(quantiles):
            total += get_output(tile, net, first + actions + k * quantiles + i, c)
        return total / float32(quantiles)

    return quantile_values


def no_preparation(tile, net, actions):
    """Keep nothing."""


def output_value(tile, net, k, c):
    """Return output `k`: the value of the action."""
    return get_output(tile, net, k, c)


def output_slope(tile, net, actions, chosen, c, slope):
    """Set the slope of the output of an action; the others are 0."""
    set_slope(tile, net, chosen, c, slope)


def mean_advantage(tile, net, actions):
    """Keep the value of the state less the mean of the advantages."""
    for c in columns(tile):
        total = float32(0.0)
        for k in range(actions):
            total += get_output(tile, net, 1 + k, c)
        set_scratch(tile, BASE, c, get_output(tile, net, 0, c) - total / float32(actions))


def dueling_value(tile, net, k, c):
    """Return the value of the state plus the advantage of action `k` over the mean."""
    return get_scratch(tile, BASE, c) + get_output(tile, net, 1 + k, c)


def dueling_slopes(tile, net, actions, chosen, c, slope):
    """Set the slopes of the value of the state and of all advantages."""
    set_slope(tile, net, 0, c, slope)
    for k in range(actions):
        of_chosen = slope if k == chosen else float32(0.0)
        set_slope(tile, net, 1 + k, c, of_chosen - slope / float32(actions))


PLAIN = QHead(no_preparation, output_value, output_slope, 0)
DUELING = QHead(mean_advantage, dueling_value, dueling_slopes, 1)


def q_loss(dueling: bool, quantiles: int | None, eps: float | None) -> tuple[Callable[..., None], int]:
    """Return the loss of DQN on a tile, and the rows of scratch memory that it needs."""
    head = DUELING if dueling else PLAIN
    return (q_values_by(head, eps), TARGETS) if quantiles is None else (quantiles_by(head, quantiles), TARGETS + 2 * quantiles)


def critics(tile, nets, smoothing, batch):
    """DDPG and TD3: squared errors of all critics from the smallest target; `smoothing` is (std, clip, stream)."""
    actor, target, online = nets
    load(tile, actor, batch.next_obs, 0)
    forward(tile, actor)
    load(tile, target, batch.next_obs, 0)
    load_smoothed(tile, actor, smoothing, batch, target)
    forward(tile, target)
    for c in columns(tile):
        smallest = get_output(tile, target, smallest_output(tile, target, c), c)
        set_scratch(tile, TARGET, c, batch.reward[tile.begin + c] + batch.discount[tile.begin + c] * smallest)
    squared_errors(tile, online, float32(1.0), batch)


def soft_critics(tile, nets, drawing, batch):
    """SAC: half the squared errors of all critics from the smallest soft target; `drawing` is (log temperature [1], stream)."""
    actor, target, online = nets
    load(tile, actor, batch.next_obs, 0)
    forward(tile, actor)
    load(tile, target, batch.next_obs, 0)
    load_drawn(tile, actor, drawing[1], batch, target)
    forward(tile, target)
    temperature = exp(drawing[0][0])
    for c in columns(tile):
        smallest = get_output(tile, target, smallest_output(tile, target, c), c)
        soft_value = smallest - temperature * get_scratch(tile, LOG_DENSITY, c)
        set_scratch(tile, TARGET, c, batch.reward[tile.begin + c] + batch.discount[tile.begin + c] * soft_value)
    squared_errors(tile, online, float32(0.5), batch)


def squared_errors(tile, online, scale, batch):
    """Write derivatives of `scale` times the squared errors of all critics from the targets; an error is the largest of all critics."""
    weight, share = float32(2.0) * scale / float32(batch.reward.size), float32(1.0) / float32(online.outputs.number)
    begin = tile.begin
    load(tile, online, batch.action, batch.obs.shape[1])
    load(tile, online, batch.obs, 0)
    forward(tile, online)
    for c in columns(tile):
        batch.error[begin + c] = float32(0.0)
    for k in range(online.outputs.number):
        for c in columns(tile):
            value = get_output(tile, online, k, c)
            difference = value - get_scratch(tile, TARGET, c)
            set_slope(tile, online, k, c, difference * batch.weight[begin + c] * weight)
            batch.error[begin + c] = max(batch.error[begin + c], abs(difference))
            add_term(tile, VALUE, c, value * share)
            add_term(tile, LOSS, c, scale * batch.weight[begin + c] * difference * difference)


def actor(tile, nets, settings, batch):
    """DDPG and TD3: the negative value of the actor's actions by the first critic."""
    critics, trained = nets
    features = batch.obs.shape[1]
    load(tile, trained, batch.obs, 0)
    forward(tile, trained)
    load(tile, critics, batch.obs, 0)
    for d in range(trained.outputs.number):
        for c in columns(tile):
            set_input(tile, critics, features + d, c, get_output(tile, trained, d, c))
    forward_first(tile, critics)
    for c in columns(tile):
        add_term(tile, LOSS, c, -get_output(tile, critics, 0, c))
    clear_slopes(tile, critics)
    for c in columns(tile):
        set_slope(tile, critics, 0, c, float32(-1.0) / float32(batch.reward.size))
    slopes_to_input(tile, critics, 0)
    for d in range(trained.outputs.number):
        for c in columns(tile):
            set_slope(tile, trained, d, c, get_input_slope(tile, critics, features + d, c))


def soft_actor(tile, nets, drawing, batch):
    """SAC: the temperature times the log-density of the actor's actions, less their value by the critic of the smaller one.

    The first term gets the entropies. For a draw u = mean + std noise and a = tanh u, the derivative of the log-density by u is 2 a, and
    that by log std is -1 besides what comes through u (`learning.distributions.squashed`).
    """
    critics, trained = nets
    features, count, size = batch.obs.shape[1], batch.reward.size, trained.outputs.number // 2
    weight, temperature = float32(1.0) / float32(count), exp(drawing[0][0])
    load(tile, trained, batch.obs, 0)
    forward(tile, trained)
    load(tile, critics, batch.obs, 0)
    load_drawn(tile, trained, drawing[1], batch, critics)
    forward(tile, critics)
    for c in columns(tile):
        log_density, k = get_scratch(tile, LOG_DENSITY, c), smallest_output(tile, critics, c)
        add_term(tile, VALUE, c, -log_density)
        add_term(tile, LOSS, c, temperature * log_density - get_output(tile, critics, k, c))
        set_scratch(tile, LOG_DENSITY, c, float32(k))
    clear_slopes(tile, critics)
    for c in columns(tile):
        set_slope(tile, critics, int(get_scratch(tile, LOG_DENSITY, c)), c, -weight)
    for d in range(size):
        for c in columns(tile):
            set_scratch(tile, SLOPES + d, c, float32(0.0))
    for k in range(critics.outputs.number):
        slopes_to_input(tile, critics, k)
        for d in range(size):
            for c in columns(tile):
                through = get_input_slope(tile, critics, features + d, c)
                set_scratch(tile, SLOPES + d, c, get_scratch(tile, SLOPES + d, c) + through)
    key = stream_key(drawing[1])
    for d in range(size):
        for c in columns(tile):
            log_std = get_output(tile, trained, size + d, c)
            limited, noise = limited_log_std(log_std), normal_of(key, (tile.begin + c) * size + d, count * size)
            action = get_input(tile, critics, features + d, c)
            by_u = (float32(1.0) - action * action) * get_scratch(tile, SLOPES + d, c) + float32(2.0) * temperature * weight * action
            by_log_std = by_u * (exp(limited) * noise) - temperature * weight
            set_scratch(tile, SLOPES + d, c, by_u)
            set_scratch(tile, SLOPES + size + d, c, by_log_std if limited == log_std else float32(0.0))
    for d in range(2 * size):
        for c in columns(tile):
            set_slope(tile, trained, d, c, get_scratch(tile, SLOPES + d, c))


def smallest_output(tile, net, c):
    """Return the number of the smallest output of column `c`, the first of equal ones."""
    smallest = 0
    for k in range(1, net.outputs.number):
        if get_output(tile, net, k, c) < get_output(tile, net, smallest, c):
            smallest = k
    return smallest


def load_drawn(tile, actor, stream, batch, critics):
    """Draw actions of the squashed policy `actor` as inputs of `critics`, and keep their log-densities.

    The same as `learning.distributions.squashed`, with the draws of `draws.normals`.
    """
    key, size, count, features = stream_key(stream), actor.outputs.number // 2, batch.reward.size, batch.obs.shape[1]
    for c in columns(tile):
        set_scratch(tile, LOG_DENSITY, c, float32(0.0))
    for d in range(size):
        for c in columns(tile):
            noise = normal_of(key, (tile.begin + c) * size + d, count * size)
            limited = limited_log_std(get_output(tile, actor, size + d, c))
            u = get_output(tile, actor, d, c) + exp(limited) * noise
            log_slope = float32(2.0) * (LOG_2 - u - softplus(float32(-2.0) * u))
            density = get_scratch(tile, LOG_DENSITY, c) + (gaussian_log_density(noise, limited) - log_slope)
            set_scratch(tile, LOG_DENSITY, c, density)
            set_input(tile, critics, features + d, c, tanh(u))


def load_smoothed(tile, actor, smoothing, batch, critics):
    """Take the actions of `actor` as inputs of `critics`, with clipped noise if its standard deviation is positive."""
    key, size, count, features = stream_key(smoothing[2]), actor.outputs.number, batch.reward.size, batch.obs.shape[1]
    std, clip = float32(smoothing[0]), float32(smoothing[1])
    for d in range(size):
        for c in columns(tile):
            action = get_output(tile, actor, d, c)
            if std > float32(0.0):
                noise = std * normal_of(key, (tile.begin + c) * size + d, count * size)
                action = action + min(max(noise, -clip), clip)
                action = min(max(action, float32(-1.0)), float32(1.0))
            set_input(tile, critics, features + d, c, action)


def temperature_slope(log_temperature, entropy, target_entropy, slope):
    """Write the derivative of J(alpha) by log alpha, [1]; Haarnoja et al. 2018b, eq. 18."""
    slope[0] = exp(log_temperature[0]) * (entropy[0] - target_entropy)
