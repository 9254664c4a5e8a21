"""Networks of the off-policy agents: Q-networks, a deterministic actor, critics; and a network with its target and optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import nn

from warprun.concurrency.communicator import Communicator, mean_
from warprun.learning.device_scalar import DeviceScalar
from warprun.learning.networks import ACTIVATIONS, buffers, flatten_parameters, layers, make_network
from warprun.learning.optimizers import OPTIMIZERS, clip_norm
from warprun.learning.settings import LayersConfig, OptimizerConfig

N = TypeVar("N", bound=nn.Module)
N_co = TypeVar("N_co", bound=nn.Module, covariant=True)


class QNetwork(nn.Module):
    """Values of all actions, Q(s, .)."""

    def __init__(self, features: int, actions: int, config: LayersConfig) -> None:
        super().__init__()
        self.features = features
        self.layers = make_network(features, actions, config)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of `obs` [B, F]."""
        values: torch.Tensor = self.layers(obs)
        return values

    def hidden(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the outputs [B, H] of the last hidden layer; only if the network is not one of the user."""
        *hidden, _ = self.layers.children()
        for layer in hidden:
            obs = layer(obs)
        return obs

    def of_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of what `hidden` returned."""
        *_, last = self.layers.children()
        values: torch.Tensor = last(hidden)
        return values

    def policy_layers(self) -> list[nn.Module]:
        """Return layers whose largest output is the best action: the values."""
        return list(self.layers.children())


class DuelingQNetwork(nn.Module):
    """Values of all actions: the value of the state plus advantages of mean 0 (Wang et al. 2016, eq. 9)."""

    def __init__(self, features: int, actions: int, config: LayersConfig) -> None:
        super().__init__()
        self.features = features
        self.trunk = layers(features, config.hidden[-1], config.hidden[:-1], config.activation)
        self.activation = ACTIVATIONS[config.activation]()
        self.value = nn.Linear(config.hidden[-1], 1)
        self.advantage = nn.Linear(config.hidden[-1], actions)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of `obs` [B, F]."""
        return self.of_hidden(self.hidden(obs))

    def hidden(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the outputs [B, H] of the last hidden layer."""
        hidden: torch.Tensor = self.activation(self.trunk(obs))
        return hidden

    def of_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of what `hidden` returned."""
        advantage = self.advantage(hidden)
        values: torch.Tensor = self.value(hidden) + advantage - advantage.mean(-1, keepdim=True)
        return values

    def policy_layers(self) -> list[nn.Module]:
        """Return layers whose largest output is the best action: the advantages."""
        return [*self.trunk, self.activation, self.advantage]


class QuantileQNetwork(nn.Module):
    """Quantiles of the return of all actions: the value of the action plus deviations of mean 0.

    These are the functions that a last layer of all quantiles can represent (Dabney et al. 2018, section 4). But values have an output
    of their own, so acting needs no quantiles.
    """

    def __init__(self, values: QNetwork | DuelingQNetwork, width: int, actions: int, quantiles: int) -> None:
        """`width`: units of the last hidden layer of `values`."""
        super().__init__()
        self.features = values.features
        self.values = values
        self.deviation = nn.Linear(width, actions * quantiles)
        self.count = quantiles

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of `obs` [B, F], the means of the quantiles."""
        values: torch.Tensor = self.values(obs)
        return values

    def quantiles(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the quantiles [B, actions, N] of `obs` [B, F]."""
        hidden = self.values.hidden(obs)
        deviation = self.deviation(hidden).unflatten(-1, (-1, self.count))
        return self.values.of_hidden(hidden).unsqueeze(-1) + deviation - deviation.mean(-1, keepdim=True)

    def policy_layers(self) -> list[nn.Module]:
        """Return layers whose largest output is the best action."""
        return self.values.policy_layers()


class Actor(nn.Module):
    """A deterministic policy; tanh limits actions to -1..1."""

    def __init__(self, features: int, components: int, config: LayersConfig) -> None:
        super().__init__()
        self.features = features
        self.layers = make_network(features, components, config)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the actions [B, C] of `obs` [B, F]."""
        actions: torch.Tensor = self.layers(obs)
        return actions.tanh()

    def policy_layers(self) -> list[nn.Module]:
        """Return layers whose outputs are the actions."""
        return [*self.layers.children(), nn.Tanh()]


class SquashedActor(nn.Module):
    """A normal distribution whose draws tanh takes to -1..1 (`distributions.squashed`)."""

    def __init__(self, features: int, components: int, config: LayersConfig) -> None:
        super().__init__()
        self.features = features
        self.layers = make_network(features, 2 * components, config)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the means, then the log standard deviations, [B, 2 C] of `obs` [B, F]."""
        output: torch.Tensor = self.layers(obs)
        return output

    def policy_layers(self) -> list[nn.Module]:
        """Return layers with the same outputs."""
        return list(self.layers.children())


class Critics(nn.Module):
    """`count` independent networks of the value of a continuous action, Q_k(s, a)."""

    def __init__(self, features: int, components: int, config: LayersConfig, count: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(make_network(features + components, 1, config) for _ in range(count))

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the values [count, B] of `action` [B, C] in `obs` [B, F]."""
        both = torch.cat((obs, action), -1)
        return torch.stack([critic(both).squeeze(-1) for critic in self.each])

    def first(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the values [B] by the first network."""
        return self.each[0](torch.cat((obs, action), -1)).squeeze(-1)


class Optimized(Generic[N_co]):
    """A network and its optimizer; the parameters are one flat tensor [P]."""

    def __init__(self, network: N_co, optimizer: OptimizerConfig, learning_rate: float, device: torch.device) -> None:
        self.network: N_co = network.to(device).eval()
        self.parameters = flatten_parameters(self.network)
        self.leaves = list(self.network.parameters())
        """The parameters by layer, views of `parameters`."""
        self.optimizer = OPTIMIZERS[optimizer.name](self.parameters, optimizer)
        self.initial_learning_rate = learning_rate
        self.learning_rate = DeviceScalar(float(learning_rate), device)

    def scale_learning_rate(self, scale: float) -> None:
        """Set the learning rate to `scale` times the initial one."""
        self.learning_rate.set(self.initial_learning_rate * scale)

    def step(self, loss: torch.Tensor, max_norm: float | None, communicator: Communicator, rows: int) -> torch.Tensor:
        """Take a gradient step on `loss` [], a mean over `rows` rows, by the mean gradient over the rows of all processes.

        Return its norm before clipping, [].
        """
        # Networks of the user may have layers that they do not use.
        gradients = torch.autograd.grad(loss, self.leaves, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([g.reshape(-1) for g in gradients])
        mean_(communicator, rows, gradient)
        norm = clip_norm(gradient, max_norm)
        self.optimizer.step(self.parameters, gradient, self.learning_rate.tensor)
        return norm

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        found = {"parameters": self.parameters} | buffers(self.network)
        return found | {f"optimizer/{name}": tensor for name, tensor in self.optimizer.tensors().items()}


class Trained(Optimized[N_co]):
    """A network with its optimizer and its target network, whose parameters are one flat tensor [P], too."""

    def __init__(self, network: N_co, optimizer: OptimizerConfig, learning_rate: float, device: torch.device) -> None:
        super().__init__(network, optimizer, learning_rate, device)
        self.target: N_co = copy.deepcopy(self.network).requires_grad_(False)
        self.target_parameters = flatten_parameters(self.target)

    def update_target(self, tau: float) -> None:
        """Move the parameters of the target network towards those of the network, 1 copies them; buffers are copied."""
        self.target_parameters.lerp_(self.parameters, tau)
        for own, trained in zip(self.target.buffers(), self.network.buffers(), strict=True):
            own.copy_(trained)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        of_target = {"target": self.target_parameters} | {f"target_{name}": tensor for name, tensor in buffers(self.target).items()}
        return super().tensors() | of_target


def seeded(seed: int, make: Callable[[], N]) -> N:
    """Return a network made on the CPU: a seed gives the same initial parameters on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
