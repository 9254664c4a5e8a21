"""How actions are drawn from what a policy gives: scalar functions for kernels, compiled like the environment's."""

from __future__ import annotations

import numpy as np

from warprun.math import exp, log
from warprun.random import normal, uniform

float32 = np.float32


def to_bounds(action, low, high):
    """Map an action in the policy's units, -1..1 and clipped there, to low..high."""
    inside = min(max(action, float32(-1.0)), float32(1.0))
    return low + (inside + float32(1.0)) * float32(0.5) * (high - low)


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
        # The last choice with a weight that `left` reaches; rounding can leave a rest, which stays with it.
        choice = k if weight > float32(0.0) and left >= float32(0.0) else choice
        left -= weight
    return choice - first, logits[choice, actor, column] - top - log(total)


def best_choice(rng, index, logits, actor, column, first, n):
    """Return the most probable choice (the first of equals) and its log-probability."""
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


def gaussian_log_density(z, log_std):
    """Return the log-density at `z` standard deviations from the mean."""
    return float32(-0.5) * z * z - log_std - float32(0.9189385332046727)  # log(sqrt(2 pi))
