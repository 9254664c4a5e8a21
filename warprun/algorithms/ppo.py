"""Proximal policy optimisation: Schulman et al. 2017, algorithm 1, with the clipped objective (eq. 7)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from warprun.algorithms.ppo_loss import Coefficients, Terms, ppo_loss
from warprun.algorithms.settings import PPOConfig
from warprun.errors import UserError
from warprun.learning.batch import Batch
from warprun.learning.kernels.draws import TOGETHER
from warprun.learning.on_policy import Learner, OnPolicyAgent
from warprun.learning.operations import RowLoss
from warprun.learning.slices import split
from warprun.state import derived_seed

MANY_ROWS = 64 * TOGETHER
"""Rows of a minibatch from which on it consists of runs of rows."""


class GradientSteps(NamedTuple):
    """The gradient steps of an update so far."""

    number: int = 0
    mean: torch.Tensor | None = None
    """[K+1]: means of the terms of the loss and of the gradient's norm over those that were taken."""
    going_on: torch.Tensor | None = None
    """[] bool: whether more are taken; None: all are."""


class PPO(OnPolicyAgent[PPOConfig]):
    """Several epochs of minibatches on each rollout."""

    Config = PPOConfig
    recordable = True

    def learn_group(self, learner: Learner[PPOConfig], batch: Batch) -> dict[str, torch.Tensor]:
        """Train the policy of one group on a rollout; return its metrics, means over the gradient steps taken."""
        config, batch = learner.config, batch.samples()
        n_samples, minibatches = len(batch.obs), config.minibatches
        if batch.alive is not None:
            minibatches = min(minibatches, n_samples)  # few rows are left where most actors have left their episodes
        elif minibatches > n_samples:
            made_of = "sequences (n_envs x actors)" if batch.past else "rows (horizon x n_envs x actors)"
            raise UserError(f"agent.minibatches={minibatches}: a rollout has only {n_samples} {made_of}")
        # Rows of a step lie side by side in memory: a minibatch of many short runs of them is read faster than one of single rows.
        together = batch.step_rows if batch.step_rows and n_samples >= MANY_ROWS * minibatches else 1
        taken = GradientSteps()
        for epoch in range(config.epochs):
            seed = derived_seed(learner.seed, "shuffle", epoch)
            order = learner.operations.permutation(n_samples, seed, self.updates, together)
            parts = split(n_samples, minibatches)
            for part, (advantage, moments) in zip(parts, learner.pick(batch.advantage, order, parts), strict=True):
                gradient = learner.gradient(batch, advantage, order[part], moments)
                taken = self._step(learner, *gradient, taken)
        assert taken.mean is not None
        shown = learner.shown(taken.mean)
        if config.desired_kl is not None:
            learner.operations.adapt(shown["approx_kl"], config.desired_kl)
        return shown

    def _step(self, learner: Learner[PPOConfig], gradient: torch.Tensor, means: torch.Tensor, taken: GradientSteps) -> GradientSteps:
        """Take the gradient step of one minibatch unless the update has stopped."""
        config = learner.config
        number = taken.number + 1
        if config.target_kl is None:
            return GradientSteps(number, learner.operations.step_of_many(gradient, means, taken.mean, number))
        going_on = learner.shown(means)["approx_kl"] <= config.target_kl
        if taken.going_on is not None:
            going_on = taken.going_on & going_on
        # The step is taken, and undone if the update has stopped: a branch would make the host wait for the device.
        before = [tensor.clone() for tensor in learner.trained()]
        former = means.new_zeros(len(means) + 1) if taken.mean is None else taken.mean.clone()
        mean = learner.operations.step_of_many(gradient, means, taken.mean, number)
        for tensor, old in zip(learner.trained(), before, strict=True):
            tensor.copy_(torch.where(going_on, tensor, old))
        return GradientSteps(number, torch.where(going_on, mean, former), going_on)

    @classmethod
    def loss(cls, config: PPOConfig) -> RowLoss:
        clip_value = math.inf if config.clip_value is None else config.clip_value
        return RowLoss(ppo_loss, Coefficients(config.clip, clip_value, config.value_coef), Terms._fields)
