"""Advantage actor-critic: Mnih et al. 2016, algorithm S3, with all environments in step (A2C) and GAE or n-step returns."""

from __future__ import annotations

from typing import NamedTuple

import torch

from warprun.agents import distributions
from warprun.agents.config import A2CConfig
from warprun.agents.learner import Batch, Learner, OnPolicyAgent, normalize_advantage


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
    """Return the loss of rows [R]: -E[log pi A] + value_coef E[(V - R)^2] - entropy_coef E[H]; Mnih et al. 2016, section 4."""
    policy = -(log_prob * advantage).mean()
    value_error = (value - returns).square().mean()
    mean_entropy = entropy.mean()
    return A2CLoss(policy + value_coef * value_error - entropy_coef * mean_entropy, policy, value_error, mean_entropy)


class A2C(OnPolicyAgent[A2CConfig]):
    """One gradient step on each rollout."""

    Config = A2CConfig

    def learn_group(self, learner: Learner[A2CConfig], batch: Batch) -> dict[str, torch.Tensor]:
        """Train the policy of one group on the rows of a rollout; return its metrics."""
        config, policy = learner.config, learner.policy
        if config.normalize_advantage:
            batch = batch._replace(advantage=normalize_advantage(batch.advantage))

        def terms(part: slice) -> A2CLoss:
            rows = batch.rows(part)
            output, value = policy(rows.obs)
            log_prob, entropy = distributions.evaluate(policy.space, output, rows.mask, rows.action)
            return a2c_loss(log_prob, entropy, value, rows.advantage, rows.returns, config.value_coef, learner.entropy_coef)

        gradient, means = learner.gradient(terms, len(batch.obs))
        norm = learner.step(gradient)
        mean = A2CLoss(*means)
        return {"policy": mean.policy, "value": mean.value, "entropy": mean.entropy, "grad_norm": norm}
