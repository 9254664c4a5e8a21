"""Advantage actor-critic: Mnih et al. 2016, algorithm S3, with all environments in step (A2C) and GAE or n-step returns."""

from __future__ import annotations

from typing import NamedTuple

import torch

from warprun.algorithms.settings import A2CConfig
from warprun.learning.batch import Batch
from warprun.learning.on_policy import Learner, OnPolicyAgent
from warprun.learning.operations import RowLoss


class Coefficients(NamedTuple):
    """Numbers of the loss."""

    value_coef: float


class Terms(NamedTuple):
    """Terms of the loss of a row, which are shown."""

    policy: float
    value: float


def a2c_loss(log_prob, value, row, p):  # type: ignore[no-untyped-def]
    """Return the derivatives by log_prob and value of -log pi A + value_coef (V - R)^2, and its terms; Mnih et al. 2016, section 4.

    Unlike in `ppo_loss` there is no factor 1/2 in the value loss: value_coef = 0.5 here is value_coef = 1 there.
    """
    error = value - row.returns
    return -row.advantage, 2.0 * p.value_coef * error, Terms(-row.advantage * log_prob, error * error)


class A2C(OnPolicyAgent[A2CConfig]):
    """One gradient step on each rollout."""

    Config = A2CConfig
    recordable = True

    def learn_group(self, learner: Learner[A2CConfig], batch: Batch) -> dict[str, torch.Tensor]:
        config, batch = learner.config, batch.samples()
        moments = (batch.spread.mean, batch.spread.variance) if config.normalize_advantage else None

        gradient, means = learner.gradient(batch, batch.advantage, moments=moments)
        return learner.shown(means, learner.step(gradient))

    @classmethod
    def loss(cls, config: A2CConfig) -> RowLoss:
        return RowLoss(a2c_loss, Coefficients(config.value_coef), Terms._fields)
