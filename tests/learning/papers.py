"""The losses of the papers, of which autograd gives the gradient, in any precision."""

from __future__ import annotations

from typing import NamedTuple

import torch


class A2CLoss(NamedTuple):
    """Means over rows, [] each."""

    loss: torch.Tensor
    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor


def a2c_loss(
    log_prob: torch.Tensor,
    entropy: torch.Tensor,
    value: torch.Tensor,
    advantage: torch.Tensor,
    returns: torch.Tensor,
    value_coef: float,
    entropy_coef: torch.Tensor | float,
) -> A2CLoss:
    """Return the loss of rows [R]: -E[log pi A] + value_coef E[(V - R)^2] - entropy_coef E[H]; Mnih et al. 2016, section 4.

    Unlike in `ppo_loss` there is no factor 1/2 in the value loss: value_coef = 0.5 here is value_coef = 1 there.
    """
    policy = -(log_prob * advantage).mean()
    value_error = (value - returns).square().mean()
    mean_entropy = entropy.mean()
    return A2CLoss(policy + value_coef * value_error - entropy_coef * mean_entropy, policy, value_error, mean_entropy)


class PPOLoss(NamedTuple):
    """Means over rows, [] each."""

    loss: torch.Tensor
    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    approx_kl: torch.Tensor
    """E[r - 1 - log r], r the ratio of probabilities: of KL(old || new), unbiased and never negative (Schulman 2020, "k3")."""
    clip_fraction: torch.Tensor


def ppo_loss(
    log_prob: torch.Tensor,
    entropy: torch.Tensor,
    value: torch.Tensor,
    old_log_prob: torch.Tensor,
    old_value: torch.Tensor,
    advantage: torch.Tensor,
    returns: torch.Tensor,
    clip: float,
    clip_value: float | None,
    value_coef: float,
    entropy_coef: torch.Tensor | float,
) -> PPOLoss:
    """Return the loss of rows [R]: eq. 9 of Schulman et al. 2017, as a loss and with 1/2 in the value's; `advantage` is normalised."""
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    policy = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).mean()

    error = (value - returns).square()
    if clip_value is not None:
        clipped_value = old_value + (value - old_value).clamp(-clip_value, clip_value)
        error = torch.max(error, (clipped_value - returns).square())
    value_loss = 0.5 * error.mean()

    mean_entropy = entropy.mean()
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).mean()
        clip_fraction = ((ratio - 1).abs() > clip).to(ratio.dtype).mean()
    loss = policy + value_coef * value_loss - entropy_coef * mean_entropy
    return PPOLoss(loss, policy, value_loss, mean_entropy, approx_kl, clip_fraction)
