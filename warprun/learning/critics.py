"""Networks of the off-policy agents: values of choices, a deterministic actor, critics of real actions; each beside its target."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from warprun.learning.networks import ACTIVATIONS, flatten_parameters, layers
from warprun.learning.optimizers import OPTIMIZERS, clip_norm
from warprun.learning.settings import LayersConfig, OptimizerConfig


class ChoiceValues(nn.Module):
    """Values of all choices, Q(s, .)."""

    def __init__(self, features: int, choices: int, config: LayersConfig) -> None:
        super().__init__()
        self.layers = layers(features, choices, config.hidden, config.activation)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values [B, choices] of `obs` [B, F]."""
        return self.layers(obs)


class DuelingValues(nn.Module):
    """Values of all choices as a value of the state and advantages of mean 0: Wang et al. 2016, eq. 9."""

    def __init__(self, features: int, choices: int, config: LayersConfig) -> None:
        super().__init__()
        self.trunk = layers(features, config.hidden[-1], config.hidden[:-1], config.activation)
        self.activation = ACTIVATIONS[config.activation]()
        self.value = nn.Linear(config.hidden[-1], 1)
        self.advantage = nn.Linear(config.hidden[-1], choices)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values [B, choices] of `obs` [B, F]."""
        hidden = self.activation(self.trunk(obs))
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(-1, keepdim=True)


class Actor(nn.Module):
    """A deterministic policy; actions within -1..1 by tanh."""

    def __init__(self, features: int, components: int, config: LayersConfig) -> None:
        super().__init__()
        self.layers = layers(features, components, config.hidden, config.activation)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the actions [B, C] of `obs` [B, F]."""
        return self.layers(obs).tanh()


class Critics(nn.Module):
    """Values of real actions, Q_k(s, a), by `count` networks that share nothing."""

    def __init__(self, features: int, components: int, config: LayersConfig, count: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(layers(features + components, 1, config.hidden, config.activation) for _ in range(count))

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the values [count, B] of `action` [B, C] where `obs` [B, F] is seen."""
        both = torch.cat((obs, action), -1)
        return torch.stack([critic(both).squeeze(-1) for critic in self.each])

    def first(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the values [B] of the first network alone."""
        return self.each[0](torch.cat((obs, action), -1)).squeeze(-1)


class Trained:
    """A network and its target, the parameters of each in one flat tensor [P], and the optimiser."""

    def __init__(self, network: nn.Module, optimizer: OptimizerConfig, device: torch.device) -> None:
        self.network = network.to(device)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.parameters = flatten_parameters(self.network)
        self.target_parameters = flatten_parameters(self.target)
        self.leaves = list(self.network.parameters())
        self.optimizer = OPTIMIZERS[optimizer.name](self.parameters, optimizer)

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the flat gradient [P] of `loss`."""
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, self.leaves)])

    def step(self, gradient: torch.Tensor, rate: torch.Tensor, max_norm: float | None) -> torch.Tensor:
        """Move the parameters against `gradient` [P], clipped in place; return the norm it had, []."""
        norm = clip_norm(gradient, max_norm)
        self.optimizer.step(self.parameters, gradient, rate)
        return norm

    def follow(self, tau: float) -> None:
        """Move the target towards the network by `tau`, 0: not at all, 1: all the way."""
        if tau > 0.0:
            self.target_parameters.lerp_(self.parameters, tau)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        found = {"parameters": self.parameters, "target": self.target_parameters}
        return found | {f"optimizer/{name}": tensor for name, tensor in self.optimizer.tensors().items()}


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Make a network on the CPU, whatever the device, so that a seed means the same first parameters everywhere."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
