"""Proximal policy optimisation: Schulman et al. 2017, algorithm 1, with the clipped objective (eq. 7)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from warprun.agents import distributions
from warprun.agents.config import PPOConfig
from warprun.agents.learner import Batch, Learner, OnPolicyAgent, normalize_advantage
from warprun.agents.shuffle import permutation
from warprun.agents.slices import split
from warprun.errors import UserError


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


class PPO(OnPolicyAgent[PPOConfig]):
    """Several epochs of minibatches on each rollout."""

    Config = PPOConfig

    def learn_group(self, learner: Learner[PPOConfig], batch: Batch) -> dict[str, torch.Tensor]:
        """Train the policy of one group on the rows of a rollout; return its metrics, means over the gradient steps taken."""
        config = learner.config
        n_rows = len(batch.obs)
        if config.minibatches > n_rows:
            raise UserError(f"agent.minibatches={config.minibatches}: a rollout has only {n_rows} rows (horizon x n_envs x actors)")
        total = torch.zeros(len(PPOLoss._fields) + 1, device=batch.obs.device)
        taken = torch.zeros((), device=batch.obs.device)
        going_on = torch.ones((), dtype=torch.bool, device=batch.obs.device)
        for epoch in range(config.epochs):
            order = permutation(n_rows, self.seed, self.updates * config.epochs + epoch)
            for part in split(n_rows, config.minibatches):
                means, going_on = self._minibatch(learner, batch, order[part], going_on)
                total += torch.where(going_on, means, 0.0)
                taken += going_on
        mean = PPOLoss(*(total / taken.clamp(min=1.0))[:-1])
        return {
            "policy": mean.policy,
            "value": mean.value,
            "entropy": mean.entropy,
            "approx_kl": mean.approx_kl,
            "clip_fraction": mean.clip_fraction,
            "grad_norm": total[-1] / taken.clamp(min=1.0),
        }

    def _minibatch(
        self, learner: Learner[PPOConfig], batch: Batch, order: torch.Tensor, going_on: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the gradient step of one minibatch unless the update has stopped; return its terms and norm, [K+1], and `going_on`."""
        config, policy = learner.config, learner.policy
        advantage = batch.advantage[order]
        if config.normalize_advantage:
            advantage = normalize_advantage(advantage)

        def terms(part: slice) -> PPOLoss:
            rows = batch.rows(order[part])
            output, value = policy(rows.obs)
            log_prob, entropy = distributions.evaluate(policy.space, output, rows.mask, rows.action)
            return ppo_loss(
                log_prob,
                entropy,
                value,
                rows.log_prob,
                rows.value,
                advantage[part],
                rows.returns,
                config.clip,
                config.clip_value,
                config.value_coef,
                learner.entropy_coef,
            )

        gradient, means = learner.gradient(terms, len(order))
        if config.target_kl is None:
            return torch.cat((means, learner.step(gradient)[None])), going_on
        approx_kl = PPOLoss(*means).approx_kl
        learner.average(approx_kl)
        going_on = going_on & (approx_kl <= config.target_kl)
        # A step that is undone where the update has stopped: a branch would make the host wait for the device.
        before = [tensor.clone() for tensor in learner.trained()]
        norm = learner.step(gradient)
        for tensor, old in zip(learner.trained(), before, strict=True):
            tensor.copy_(torch.where(going_on, tensor, old))
        return torch.cat((means, norm[None])), going_on
