"""Sampling of actions from the outputs of a policy: scalar functions for kernels, compiled like those of environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from warprun.math import exp, log, tanh
from warprun.random import normal, randint, uniform
from warprun.spec import SQUASHED_LOG_STD, ActionKind, PolicyKind

float32 = np.float32

HALF_LOG_2_PI = np.float32(0.9189385332046727)
"""log(sqrt(2 pi))."""
FORBIDDEN = np.float32(-1e30)
"""Logit of a masked action: finite, so that probability 0 times its logarithm is 0."""
LOG_STD_MIN, LOG_STD_MAX = (np.float32(limit) for limit in SQUASHED_LOG_STD)


def to_bounds(action, low, high):
    """Clip an action to the policy's range -1..1 and map it to low..high; the result stays in that range despite rounding."""
    inside = min(max(action, float32(-1.0)), float32(1.0))
    share = (inside + float32(1.0)) * float32(0.5)
    # Not low + share (high - low): the difference of large bounds overflows.
    mapped = low * (float32(1.0) - share) + high * share
    return min(max(mapped, low), high)


def sample_choice(rng, index, logits, actor, column, first, n):
    """Draw one of the `n` choices with logits[first : first + n, actor, column]; return (choice, log-probability).

    Forbidden choices have logit -inf. The draw inverts the cumulative distribution with uniform draw `index`.
    """
    top = _largest(logits, actor, column, first, n)
    total = float32(0.0)
    for k in range(first, first + n):
        total += exp(logits[k, actor, column] - top)
    left = uniform(rng, index, 0.0, 1.0) * total
    choice = first
    for k in range(first, first + n):
        weight = exp(logits[k, actor, column] - top)
        # The last choice of positive weight that `left` reaches. A remainder from rounding goes to the last such choice.
        choice = k if weight > float32(0.0) and left >= float32(0.0) else choice
        left -= weight
    return choice - first, logits[choice, actor, column] - top - log(total)


def best_choice(rng, index, logits, actor, column, first, n):
    """Return the most probable choice, the first one on a tie, and its log-probability."""
    top = _largest(logits, actor, column, first, n)
    total = float32(0.0)
    choice = first
    for k in range(first + n - 1, first - 1, -1):
        total += exp(logits[k, actor, column] - top)
        choice = k if logits[k, actor, column] == top else choice
    return choice - first, -log(total)


def _largest(logits, actor, column, first, n):
    top = logits[first, actor, column]
    for k in range(first + 1, first + n):
        top = max(top, logits[k, actor, column])
    return top


def sample_gaussian(rng, index, mean, log_std):
    """Draw from a normal distribution; return (action, log-density)."""
    z = normal(rng, index)
    return mean + exp(log_std) * z, gaussian_log_density(z, log_std)


def best_gaussian(rng, index, mean, log_std):
    """Return the mean and its log-density."""
    return mean, gaussian_log_density(float32(0.0), log_std)


def explore_choice(rng, index, values, actor, column, first, n, exploration):
    """Return an action of the epsilon-greedy policy: random with probability epsilon = exploration[0], else the choice of highest value.

    Random actions are uniform over the allowed ones of `n` choices; forbidden ones have value -inf. Component `index` uses the draws
    4 index .. 4 index + 3.
    """
    best, _ = best_choice(rng, index, values, actor, column, first, n)
    allowed = 0
    for k in range(first, first + n):
        allowed += 1 if values[k, actor, column] > -np.inf else 0
    left = randint(rng, 4 * index + 1, max(allowed, 1))
    other = best
    for k in range(first, first + n):
        possible = values[k, actor, column] > -np.inf
        other = k - first if possible and left == 0 else other
        left -= 1 if possible else 0
    return other if uniform(rng, 4 * index, 0.0, 1.0) < exploration[0] else best


def explore_real(rng, index, mean, noise, exploration):
    """Return an action within -1..1 and its exploration noise, which the caller passes to the next step.

    The action is uniform with probability exploration[0], else the mean plus noise.
    """
    noise = next_noise(rng, index, noise, exploration)
    action = mean + noise
    # Not min and max, which on some targets turn NaN into a number: the NaN of a diverged policy must stay visible.
    action = float32(-1.0) if action < float32(-1.0) else action
    action = float32(1.0) if action > float32(1.0) else action
    anything = uniform(rng, 4 * index + 1, -1.0, 1.0)
    return anything if uniform(rng, 4 * index, 0.0, 1.0) < exploration[0] else action, noise


def next_noise(rng, index, noise, exploration):
    """Return the noise that follows `noise`: n' = (1 - theta) n + sigma z with sigma = exploration[1] and theta = exploration[2].

    theta = 1 is white noise, theta < 1 an Ornstein-Uhlenbeck process (Lillicrap et al. 2016, section 7).
    """
    return (float32(1.0) - exploration[2]) * noise + exploration[1] * normal(rng, 2 * index + 1)


def explore_squashed(rng, index, mean, log_std, noise, exploration):
    """Return an action within -1..1 and the noise of its draw, which the caller passes to the next step.

    The action is uniform with probability exploration[0], else tanh of a draw from a normal distribution (Haarnoja et al. 2018, app. C).
    With sigma^2 = theta (2 - theta) the noise has the variance 1: theta < 1 correlates the draws of consecutive steps, each of which still
    has the distribution of the policy (Eberhard et al. 2023 compare such noises).
    """
    noise = next_noise(rng, index, noise, exploration)
    action = tanh(mean + exp(limited_log_std(log_std)) * noise)
    anything = uniform(rng, 4 * index + 1, -1.0, 1.0)
    return anything if uniform(rng, 4 * index, 0.0, 1.0) < exploration[0] else action, noise


def best_squashed(rng, index, mean, log_std):
    """Return the tanh of the mean, and 0: agents of squashed policies read no log-densities of simulators."""
    return tanh(mean), float32(0.0)


def limited_log_std(log_std):
    """Return the log standard deviation of a squashed policy within `spec.SQUASHED_LOG_STD`; NaN stays NaN."""
    limited = LOG_STD_MIN if log_std < LOG_STD_MIN else log_std
    return LOG_STD_MAX if limited > LOG_STD_MAX else limited


def gaussian_log_density(z, log_std):
    """Return the log-density of a normal distribution at `z` standard deviations from the mean."""
    return float32(-0.5) * z * z - log_std - HALF_LOG_2_PI


def logit_derivative(log_p, chosen, entropy, d_log_prob, entropy_weight):  # type: ignore[no-untyped-def]
    """Return the derivative by a logit: d log p(a) / d l_k = [k = a] - p_k and d H / d l_k = -p_k (log p_k + H).

    `log_p` is log p_k, `chosen` is [k = a], `entropy` is H of the choice. The loss has the derivative `d_log_prob` and -`entropy_weight` H.
    """
    p = exp(log_p)
    return d_log_prob * (chosen - p) + entropy_weight * p * (log_p + entropy)


def gaussian_entropy(log_std):  # type: ignore[no-untyped-def]
    """Return the entropy of a Gaussian: 1/2 + log(sqrt(2 pi)) + log_std."""
    return log_std + (float32(0.5) + HALF_LOG_2_PI)


def gaussian_derivatives(z, scale, d_log_prob, entropy_weight):  # type: ignore[no-untyped-def]
    """Return the derivatives by the mean, z / standard deviation, and by the log standard deviation, z^2 - 1, with that of the entropy.

    `scale` is 1 / standard deviation. The loss has the derivative `d_log_prob` and -`entropy_weight` H.
    """
    return d_log_prob * z * scale, d_log_prob * (z * z - float32(1.0)) - entropy_weight


FunctionOfKind: TypeAlias = Mapping[ActionKind, Callable[..., object]]
"""Kind of the actions -> the function that draws a component of them."""
DRAWN: FunctionOfKind = {"choices": sample_choice, "reals": sample_gaussian}
"""From distributions."""
EXPLORED: Mapping[PolicyKind, FunctionOfKind] = {
    "explored": {"choices": explore_choice, "reals": explore_real},
    "squashed": {"choices": explore_choice, "reals": explore_squashed},
}
"""Of agents that explore."""
BEST: Mapping[PolicyKind, FunctionOfKind] = {
    "sampled": {"choices": best_choice, "reals": best_gaussian},
    "explored": {"choices": best_choice, "reals": best_gaussian},
    "squashed": {"choices": best_choice, "reals": best_squashed},
}
"""Without a draw."""
