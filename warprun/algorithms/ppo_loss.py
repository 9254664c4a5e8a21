"""The loss of PPO for one row: Schulman et al. 2017, eq. 9."""

from __future__ import annotations

from typing import NamedTuple

from warprun.math import exp, maximum, minimum, where


class Coefficients(NamedTuple):
    """Numbers of the loss."""

    clip: float
    clip_value: float
    value_coef: float


class Terms(NamedTuple):
    """Terms of the loss of a row, which are shown."""

    policy: float
    value: float
    approx_kl: float
    """r - 1 - log r, r the ratio of probabilities: its mean is KL(old || new), unbiased and never negative (Schulman 2020, "k3")."""
    clip_fraction: float


def ppo_loss(log_prob, value, row, p):  # type: ignore[no-untyped-def]
    """Return the loss's derivatives by log_prob and value, and its terms: eq. 9 of Schulman et al. 2017 with 1/2 in the value's loss.

    The advantage is normalized. `p.clip_value` infinite: values are not clipped.
    """
    log_ratio = log_prob - row.log_prob
    ratio = exp(log_ratio)
    clipped = minimum(maximum(ratio, 1.0 - p.clip), 1.0 + p.clip)
    policy = maximum(-row.advantage * ratio, -row.advantage * clipped)
    by_log_prob = where(-row.advantage * ratio < -row.advantage * clipped, 0.0, -row.advantage * ratio)

    error = value - row.returns
    moved = minimum(maximum(value - row.value, -p.clip_value), p.clip_value)
    clipped_error = row.value + moved - row.returns
    farther = (abs(value - row.value) > p.clip_value) & (clipped_error * clipped_error > error * error)
    value_loss = 0.5 * where(farther, clipped_error * clipped_error, error * error)
    by_value = where(farther, 0.0, p.value_coef * error)
    return by_log_prob, by_value, Terms(policy, value_loss, ratio - 1.0 - log_ratio, where(abs(ratio - 1.0) > p.clip, 1.0, 0.0))
