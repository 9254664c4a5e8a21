"""Advantage actor-critic: Mnih et al. 2016, algorithm S3, with all environments in step (A2C) and GAE or n-step returns."""

from __future__ import annotations

import torch

from warprun.algorithms.a2c_loss import Coefficients, Terms, a2c_loss
from warprun.algorithms.settings import A2CConfig
from warprun.learning.batch import Batch
from warprun.learning.on_policy import Learner, OnPolicyAgent
from warprun.learning.operations import RowLoss


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
