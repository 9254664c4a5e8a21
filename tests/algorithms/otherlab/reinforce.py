"""REINFORCE with a learned baseline: Williams 1992; Sutton & Barto 2018, section 13.4."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from warprun.learning.batch import Batch
from warprun.learning.on_policy import Learner, OnPolicyAgent
from warprun.learning.setting_checks import at_least
from warprun.learning.settings import OnPolicyConfig


@dataclass
class ReinforceConfig(OnPolicyConfig):
    """Settings of REINFORCE."""

    name: str = "reinforce_baseline"
    """Name of the agent."""
    baseline_steps: int = 1
    """Gradient steps on each rollout for the baseline alone, before the one for the policy."""

    def check(self, key: str) -> None:
        """Raise UserError for a value that cannot work."""
        super().check(key)
        at_least(self, key, 0, "baseline_steps")


class Reinforce(OnPolicyAgent[ReinforceConfig]):
    """Make one gradient step of the policy per rollout."""

    Config = ReinforceConfig

    def learn_group(self, learner: Learner[ReinforceConfig], batch: Batch) -> dict[str, torch.Tensor]:
        """Train the policy of one group on a rollout; return its metrics."""
        batch = batch.samples()

        def baseline_loss(log_prob: torch.Tensor, entropy: torch.Tensor, value: torch.Tensor, rows: Batch) -> tuple[torch.Tensor, ...]:
            return ((value - rows.returns).square().mean(),)

        def loss(log_prob: torch.Tensor, entropy: torch.Tensor, value: torch.Tensor, rows: Batch) -> tuple[torch.Tensor, ...]:
            policy = -(log_prob * rows.advantage).mean()
            value_error = (value - rows.returns).square().mean()
            return policy + learner.config.value_coef * value_error, policy, value_error

        for _ in range(learner.config.baseline_steps):
            learner.step(learner.gradient(baseline_loss, batch, batch.advantage)[0])
        gradient, means = learner.gradient(loss, batch, batch.advantage)
        norm = learner.step(gradient)
        return {"policy": means[1], "value": means[2], "grad_norm": norm}
