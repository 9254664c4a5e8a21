"""What DDPG and TD3 have in common: an actor that follows the gradient of its critics (Silver et al. 2014)."""

from __future__ import annotations

import torch

from warprun.agents.config import DDPGConfig, TD3Config
from warprun.agents.critics import Actor, Critics, Trained, seeded
from warprun.agents.fused_actor import fused_layers
from warprun.agents.off_policy import OffPolicyLearner
from warprun.agents.replay import Transitions
from warprun.agents.shuffle import normals
from warprun.engine.mlp import Network
from warprun.environment import Group

SMOOTHING_STREAM = 0x5A0075
"""Sets the seed of the noise on the target's actions apart from that of the draws."""


def smoothed(action: torch.Tensor, noise: torch.Tensor, std: float, clip: float) -> torch.Tensor:
    """Return actions [B, C] with standard normal `noise` [B, C] of deviation `std`, clipped at `clip`, kept within -1..1.

    Fujimoto et al. 2018, section 5.3.
    """
    return (action + (std * noise).clamp(-clip, clip)).clamp(-1.0, 1.0)


def critic_target(next_values: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
    """Return reward + discount min_k Q'_k(s', a') [B] of `next_values` [K, B]; Fujimoto et al. 2018, section 4.2."""
    return reward + discount * next_values.amin(0)


def critic_loss(values: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the sum over critics of the weighted mean squared errors of `values` [K, B], []."""
    return (weight * (values - target).square()).mean(-1).sum()


class DeterministicLearner(OffPolicyLearner[DDPGConfig | TD3Config]):
    """The actor and the critics of one group."""

    def __init__(self, config: DDPGConfig | TD3Config, group: Group, device: torch.device, threads: int, seed: int) -> None:
        super().__init__(config, group, device, threads, seed)
        features, components = group.observation.size, group.action.components
        self.actor = Trained(seeded(seed, lambda: Actor(features, components, config.network)), config.optimizer, device)
        self.critics = Trained(
            seeded(seed + 1, lambda: Critics(features, components, config.network, config.critics)), config.optimizer, device
        )
        self.actor_metrics: dict[str, torch.Tensor] = {}

    def networks(self) -> dict[str, Trained]:
        """Return what is trained, by name."""
        return {"actor": self.actor, "critics": self.critics}

    @property
    def follow_every(self) -> int:
        """Gradient steps between two moves of the targets."""
        return self.config.target_every * self.config.policy_delay

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the actions [B, C]."""
        return self.actor.network(obs)

    def explore(self, progress: float) -> None:
        """Set the noise."""
        config = self.config
        self.exploration.copy_(torch.tensor([0.0, config.noise_std, config.noise_theta if config.noise == "ou" else 1.0]))

    def learn(self, batch: Transitions) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Take a gradient step of the critics and, where it is due, of the actor; return temporal-difference errors [B] and metrics."""
        config, actor, critics = self.config, self.actor, self.critics
        with torch.no_grad():
            next_action = actor.target(batch.next_obs)
            if config.smoothing_std > 0:
                number = torch.tensor(self.updates, device=self.device)
                noise = normals(next_action.numel(), self.seed ^ SMOOTHING_STREAM, number).view_as(next_action)
                next_action = smoothed(next_action, noise, config.smoothing_std, config.smoothing_clip)
            target = critic_target(critics.target(batch.next_obs, next_action), batch.reward, batch.discount)
        values = critics.network(batch.obs, batch.action)
        loss = critic_loss(values, target, batch.weight)
        norm = critics.step(critics.gradient(loss), self.learning_rate(config.learning_rate), config.max_grad_norm)
        error = (values.detach() - target).mean(0)
        metrics = {"critic": loss.detach(), "q": values.detach().mean(), "grad_norm": norm}
        if (self.updates + 1) % config.policy_delay == 0:
            actor_loss = -critics.network.first(batch.obs, actor.network(batch.obs)).mean()  # type: ignore[operator]
            actor.step(actor.gradient(actor_loss), self.learning_rate(config.actor_learning_rate), config.max_grad_norm)
            self.actor_metrics = {"actor": actor_loss.detach()}
        return error, metrics | self.actor_metrics

    def fused(self) -> Network | None:
        """Return the actor for the fused kernels."""
        return fused_layers([*self.actor.network.layers, torch.nn.Tanh()], self.actor.parameters, self.normalizer)  # type: ignore[misc, list-item]
