"""Advantage actor-critic: Mnih et al. 2016, algorithm S3, with all environments in step (A2C) and GAE or n-step returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from warprun.algorithms.settings import A2CConfig
from warprun.learning.batch import Batch
from warprun.learning.on_policy import Learner, OnPolicyAgent
from warprun.learning.operations import Derivatives


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


class Coefficients(NamedTuple):
    """Numbers of the loss, float32."""

    value_coef: np.float32


def a2c_derivatives(log_prob, value, old_log_prob, old_value, advantage, returns, p):  # type: ignore[no-untyped-def]
    """Return d loss / d log_prob and d loss / d value of one row, then its share of every term (`a2c_loss`), for the gradient kernels."""
    error = value - returns
    return -advantage, 2.0 * p.value_coef * error, -advantage * log_prob, error * error, 0.0, 0.0


class A2C(OnPolicyAgent[A2CConfig]):
    """One gradient step on each rollout."""

    Config = A2CConfig
    recordable = True

    def learn_group(self, learner: Learner[A2CConfig], batch: Batch) -> dict[str, torch.Tensor]:
        """Train the policy of one group on a rollout; return its metrics."""
        config, batch = learner.config, batch.samples()
        moments = (batch.spread.mean, batch.spread.variance) if config.normalize_advantage else None

        def loss(log_prob: torch.Tensor, entropy: torch.Tensor, value: torch.Tensor, rows: Batch) -> A2CLoss:
            return a2c_loss(log_prob, entropy, value, rows.advantage, rows.returns, config.value_coef, learner.entropy_coef)

        gradient, means = learner.gradient(loss, batch, batch.advantage, moments=moments)
        norm = learner.step(gradient)
        mean = A2CLoss(*means[: len(A2CLoss._fields)].unbind())
        return {"policy": mean.policy, "value": mean.value, "entropy": mean.entropy, "grad_norm": norm}

    @classmethod
    def derivatives(cls, config: A2CConfig) -> Derivatives:
        """Return the derivatives of the loss, for the gradient kernels."""
        return Derivatives(a2c_derivatives, Coefficients(np.float32(config.value_coef)))
