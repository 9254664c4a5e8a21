"""What DDPG and TD3 have in common: an actor that follows the gradient of its critics (Silver et al. 2014)."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from warprun.environment import Group
from warprun.kernels.mlp import Layer, Network
from warprun.learning.cpu.actor import fused_layers, layer_rows
from warprun.learning.cpu.losses import Smoothing
from warprun.learning.cpu.updates import FusedUpdates, adam_of, step
from warprun.learning.critics import Actor, Critics, Trained, seeded
from warprun.learning.off_policy import OffPolicyLearner
from warprun.learning.replay.draws import counter
from warprun.learning.replay.ring import Transitions
from warprun.learning.settings import DDPGConfig, TD3Config
from warprun.learning.shuffle import normals
from warprun.seeds import derived_seed


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
        actor = seeded(derived_seed(seed, "actor"), lambda: Actor(features, components, config.network))
        critics = seeded(derived_seed(seed, "critics"), lambda: Critics(features, components, config.network, config.critics))
        self.actor, self.critics = (Trained(network, config.optimizer, device) for network in (actor, critics))
        self.smoothing_seed = derived_seed(seed, "smoothing")
        # On the device: to bring them there the host would wait for it.
        self.noise = torch.tensor([0.0, config.noise_std, config.noise_theta if config.noise == "ou" else 1.0], device=device)

    def networks(self) -> dict[str, Trained]:
        """Return what is trained, by name."""
        return {"actor": self.actor, "critics": self.critics}

    def due(self) -> tuple[bool, ...]:
        """Return whether the targets follow at the gradient step that was counted last, and whether it is also one of the actor."""
        return self.updates % (self.config.target_every * self.config.policy_delay) == 0, self.actor_is_due

    @property
    def actor_is_due(self) -> bool:
        """Whether the gradient step that was counted last is also one of the actor."""
        return self.updates % self.config.policy_delay == 0

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the actions [B, C]."""
        return self.actor.network(obs)

    def explore(self, progress: float) -> None:
        """Set the noise."""
        self.exploration.copy_(self.noise)

    def explored(self) -> dict[str, torch.Tensor]:
        """Return the deviation of the noise: 0 in the warm-up, whose actions are random."""
        return {"noise_std": self.exploration[1]}

    def learn(self, batch: Transitions, tau: float) -> tuple[torch.Tensor, dict[str, Any]]:
        """Take a gradient step of the critics and, where it is due, of the actor, and let the targets follow by `tau`.

        Return temporal-difference errors [B], the largest of the critics' absolute ones (Fujimoto et al. 2020, LAP), and metrics.
        """
        config, actor, critics = self.config, self.actor, self.critics
        with torch.no_grad():
            next_action = actor.target(batch.next_obs)
            if config.smoothing_std > 0:
                number = torch.as_tensor(self.number.value, device=self.device)
                noise = normals(next_action.numel(), self.smoothing_seed, number).view_as(next_action)
                next_action = smoothed(next_action, noise, config.smoothing_std, config.smoothing_clip)
            target = critic_target(critics.target(batch.next_obs, next_action), batch.reward, batch.discount)
        values = critics.network(batch.obs, batch.action)
        loss = critic_loss(values, target, batch.weight)
        norm = critics.step(critics.gradient(loss), self.learning_rate(config.learning_rate), config.max_grad_norm)
        error = (values.detach() - target).abs().amax(0)
        metrics = {"critic": loss.detach(), "q": values.detach().mean(), "grad_norm": norm}
        if self.actor_is_due:
            actor_loss = -critics.network.first(batch.obs, actor.network(batch.obs)).mean()  # type: ignore[operator]
            actor.step(actor.gradient(actor_loss), self.learning_rate(config.actor_learning_rate), config.max_grad_norm)
            metrics["actor"] = actor_loss.detach()
        critics.follow(tau)
        actor.follow(tau)
        return error, metrics

    def learn_fused(self, batch: Transitions, tau: float) -> tuple[torch.Tensor, dict[str, Any]]:
        """Do what `learn` does, in kernels; the critics' target follows before the actor's step, which does not read it."""
        config, kernels, nets = self.config, self.kernels, self.nets
        drawn = counter(self.smoothing_seed, self.number.value)
        smoothing = Smoothing(float(config.smoothing_std), float(config.smoothing_clip), *drawn)
        kernels.run("critics", (nets["actor_target"], nets["target"], nets["critics"]), smoothing, batch)
        norm = step(nets["critics"], self.critics_adam, config.learning_rate * self.rate.value, config.max_grad_norm, tau)
        q, loss = kernels.means()
        metrics = {"critic": loss, "q": q, "grad_norm": norm}
        if self.actor_is_due:
            kernels.run("actor", (nets["critic"], nets["actor"]), None, batch)
            step(nets["actor"], self.actor_adam, config.actor_learning_rate * self.rate.value, config.max_grad_norm, tau)
            metrics["actor"] = kernels.means()[1]
        else:
            self.actor.follow(tau)
        return kernels.error, metrics

    def fuse(self) -> Network | None:
        """Learn in kernels from now on where they know how, and return the actor for the engine's; None where it cannot run it."""
        parts = [*self.actor.network.layers, torch.nn.Tanh()]  # type: ignore[misc, list-item]
        self._fuse_learning(parts)
        return fused_layers(parts, self.actor.parameters, self.normalizer)

    def _fuse_learning(self, parts: list[torch.nn.Module]) -> None:
        config, actor, critics = self.config, self.actor, self.critics
        if self.fuses or self.device.type != "cpu" or config.optimizer.name != "adam":
            return
        act = layer_rows(parts, actor.parameters, int(parts[0].in_features))  # type: ignore[arg-type]
        if act is None:
            return
        # Critics stand side by side in one block, over one input: observation, then action.
        tables: list[list[Layer]] = []
        row = act[0].n_in + act[-1].n_out
        for critic in critics.network.each:  # type: ignore[union-attr]
            table = layer_rows(list(critic), critics.parameters, row)  # type: ignore[arg-type]
            assert table is not None
            tables.append(table)
            row = table[-1].out_row + 1
        rows = max(row, act[-1].out_row + act[-1].n_out)
        self.kernels = FusedUpdates(config.batch_size, rows, len(critics.parameters), self.threads)
        own = self.kernels.net(actor.parameters, act, [act[-1].out_row + d for d in range(act[-1].n_out)])
        every = self.kernels.net(critics.parameters, list(chain(*tables)), [table[-1].out_row for table in tables])
        self.nets = {
            "actor": own,
            "actor_target": own._replace(parameters=actor.target_parameters.numpy()),
            "critics": every,
            "target": every._replace(parameters=critics.target_parameters.numpy()),
            "critic": every._replace(layers=every.layers[: len(tables[0])], outputs=every.outputs[:1]),
        }
        self.actor_adam, self.critics_adam = adam_of(actor), adam_of(critics)
        self.fuses = True
