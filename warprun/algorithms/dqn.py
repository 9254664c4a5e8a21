"""Deep Q-network: Mnih et al. 2015; double (van Hasselt et al. 2016), dueling (Wang et al. 2016) and n-step targets as switches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from warprun.environment import Discrete, Group
from warprun.kernels.mlp import Network
from warprun.learning.cpu.actor import fused_layers, layer_rows
from warprun.learning.cpu.updates import FusedUpdates, adam_of, step
from warprun.learning.critics import ChoiceValues, DuelingValues, Trained, seeded
from warprun.learning.off_policy import OffPolicyAgent, OffPolicyLearner
from warprun.learning.replay.ring import Transitions
from warprun.learning.settings import DQNConfig
from warprun.seeds import derived_seed


def dqn_target(next_target: torch.Tensor, next_online: torch.Tensor | None, reward: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
    """Return reward + discount Q'(s', a) [B]: a is the best by `next_online` [B, n] (double) or, without it, by `next_target` [B, n]."""
    best = (next_target if next_online is None else next_online).argmax(-1, keepdim=True)
    return reward + discount * next_target.gather(-1, best).squeeze(-1)


def dqn_loss(value: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the mean of the weighted Huber losses (delta 1) of values [B], []; Mnih et al. 2015, methods."""
    return (weight * nn.functional.huber_loss(value, target, reduction="none")).mean()


class DQNLearner(OffPolicyLearner[DQNConfig]):
    """The values of one group's choices."""

    def __init__(self, config: DQNConfig, group: Group, device: torch.device, threads: int, seed: int) -> None:
        super().__init__(config, group, device, threads, seed)
        assert isinstance(group.action, Discrete)
        kind = DuelingValues if config.dueling else ChoiceValues
        features, choices = group.observation.size, group.action.n
        self.values = Trained(
            seeded(derived_seed(seed, "values"), lambda: kind(features, choices, config.network)), config.optimizer, device
        )

    def networks(self) -> dict[str, Trained]:
        """Return what is trained, by name."""
        return {"values": self.values}

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values of choices [B, n]."""
        return self.values.network(obs)

    def explore(self, progress: float) -> None:
        """Let epsilon fall."""
        config = self.config
        over = min(progress / config.epsilon_fraction, 1.0) if config.epsilon_fraction else 1.0
        self.exploration[0] = config.epsilon + (config.epsilon_end - config.epsilon) * over

    def explored(self) -> dict[str, torch.Tensor]:
        """Return epsilon: 1 in the warm-up."""
        return {"epsilon": self.exploration[0]}

    def learn(self, batch: Transitions, tau: float) -> tuple[torch.Tensor, dict[str, Any]]:
        """Take a gradient step on a batch and let the target follow by `tau`; return temporal-difference errors [B] and metrics."""
        values = self.values
        with torch.no_grad():
            next_online = values.network(batch.next_obs) if self.config.double else None
            target = dqn_target(values.target(batch.next_obs), next_online, batch.reward, batch.discount)
        value = values.network(batch.obs).gather(-1, batch.action.long()).squeeze(-1)
        loss = dqn_loss(value, target, batch.weight)
        norm = values.step(values.gradient(loss), self.learning_rate(self.config.learning_rate), self.config.max_grad_norm)
        values.follow(tau)
        value = value.detach()
        return value - target, {"value": loss.detach(), "q": value.mean(), "grad_norm": norm}

    def learn_fused(self, batch: Transitions, tau: float) -> tuple[torch.Tensor, dict[str, Any]]:
        """Do what `learn` does, in kernels."""
        config, kernels = self.config, self.kernels
        kernels.run("choices", self.nets, config.double, batch)
        norm = step(self.nets[-1], self.adam, config.learning_rate * self.rate.value, config.max_grad_norm, tau)
        q, loss = kernels.means()
        return kernels.error, {"value": loss, "q": q, "grad_norm": norm}

    def fuse(self) -> Network | None:
        """Return the network for the engine's kernels; of a dueling one the advantages, whose best choice is the same."""
        network = self.values.network
        if isinstance(network, DuelingValues):
            parts = [*network.trunk, network.activation, network.advantage]
        else:
            parts = list(network.layers)  # type: ignore[arg-type]
            self._fuse_learning(parts)
        return fused_layers(parts, self.values.parameters, self.normalizer)

    def _fuse_learning(self, parts: list[nn.Module]) -> None:
        config, values = self.config, self.values
        features = parts[0].in_features
        table = layer_rows(parts, values.parameters, features) if self.device.type == "cpu" else None  # type: ignore[arg-type]
        if table is None or config.optimizer.name != "adam" or self.fuses:
            return
        outputs = [table[-1].out_row + k for k in range(table[-1].n_out)]
        self.kernels = FusedUpdates(config.batch_size, outputs[-1] + 1, len(values.parameters), self.threads)
        online = self.kernels.net(values.parameters, table, outputs)
        self.nets = (online._replace(parameters=values.target_parameters.numpy()), online)
        self.adam = adam_of(values)
        self.fuses = True


class DQN(OffPolicyAgent[DQNConfig]):
    """Values of choices by temporal differences."""

    Config = DQNConfig
    Learner = DQNLearner
