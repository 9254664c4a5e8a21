"""Networks of the off-policy agents: Q-networks, a deterministic actor, critics; and a network with its target and optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import nn

from warprun.learning.communicator import Communicator, mean_
from warprun.learning.device_scalar import DeviceScalar
from warprun.learning.network_settings import LayersConfig
from warprun.learning.networks import buffers, flatten_parameters, hidden_layers, make_head, make_memory
from warprun.learning.optimizers import OPTIMIZERS, clip_norm
from warprun.learning.recurrent import Recurrent
from warprun.learning.settings import OptimizerConfig

N = TypeVar("N", bound=nn.Module)
N_co = TypeVar("N_co", bound=nn.Module, covariant=True)


class Remembering(nn.Module):
    """A network that sees observations through a memory, if it has one.

    `forward` takes rows: what the memory gives for observations (`recall`, `Recurrent.trace`), or without memory the observations.
    """

    def __init__(self, features: int, memory: Recurrent | None) -> None:
        super().__init__()
        self.features = features
        self.memory = memory

    def unroll(self, obs: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs [T, B, O] and the carry [B, H] after steps `obs` [T, B, F] that follow `carry`, see `Recurrent.unroll`.

        Only with memory.
        """
        assert self.memory is not None
        rows, carry = self.memory.unroll(obs, carry, begins)
        return self(rows), carry


class QNetwork(Remembering):
    """Values of all actions, Q(s, .)."""

    def __init__(self, features: int, actions: int, config: LayersConfig) -> None:
        super().__init__(features, make_memory(features, config))
        self.layers = make_head(config.head_inputs(features), actions, config)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of `rows` [B, F]."""
        values: torch.Tensor = self.layers(rows)
        return values

    def hidden(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the outputs [B, H] of the last hidden layer; only if the network is not one of the user."""
        *hidden, _ = self.layers.children()
        for layer in hidden:
            rows = layer(rows)
        return rows

    def of_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of what `hidden` returned."""
        *_, last = self.layers.children()
        values: torch.Tensor = last(hidden)
        return values

    def policy_layers(self) -> list[nn.Module]:
        """Return layers whose largest output is the best action: the values."""
        return list(self.layers.children())


class DuelingQNetwork(Remembering):
    """Values of all actions: the value of the state plus advantages of mean 0 (Wang et al. 2016, eq. 9)."""

    def __init__(self, features: int, actions: int, config: LayersConfig) -> None:
        super().__init__(features, make_memory(features, config))
        width = config.last_inputs(features)
        self.trunk = nn.Sequential(*hidden_layers([config.head_inputs(features), *config.last_hidden], config.activation))
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, actions)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of `rows` [B, F]."""
        return self.of_hidden(self.hidden(rows))

    def hidden(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the outputs [B, H] of the last hidden layer."""
        hidden: torch.Tensor = self.trunk(rows)
        return hidden

    def of_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of what `hidden` returned."""
        advantage = self.advantage(hidden)
        values: torch.Tensor = self.value(hidden) + advantage - advantage.mean(-1, keepdim=True)
        return values

    def policy_layers(self) -> list[nn.Module]:
        """Return layers whose largest output is the best action: the advantages."""
        return [*self.trunk, self.advantage]


class QuantileQNetwork(Remembering):
    """Quantiles of the return of all actions: the value of the action plus deviations of mean 0.

    These are the functions that a last layer of all quantiles can represent (Dabney et al. 2018, section 4). But values have an output
    of their own, so acting needs no quantiles.
    """

    def __init__(self, values: QNetwork | DuelingQNetwork, width: int, actions: int, quantiles: int) -> None:
        """`width`: units of the last hidden layer of `values`."""
        super().__init__(values.features, values.memory)
        self.values = values
        self.deviation = nn.Linear(width, actions * quantiles)
        self.count = quantiles

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of `rows` [B, F], the means of the quantiles."""
        values: torch.Tensor = self.values(rows)
        return values

    def quantiles(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the quantiles [B, actions, N] of `rows` [B, F]."""
        hidden = self.values.hidden(rows)
        deviation = self.deviation(hidden).unflatten(-1, (-1, self.count))
        return self.values.of_hidden(hidden).unsqueeze(-1) + deviation - deviation.mean(-1, keepdim=True)

    def policy_layers(self) -> list[nn.Module]:
        """Return layers whose largest output is the best action."""
        return self.values.policy_layers()


class Actor(Remembering):
    """A deterministic policy; tanh limits actions to -1..1."""

    def __init__(self, features: int, components: int, config: LayersConfig) -> None:
        super().__init__(features, make_memory(features, config))
        self.layers = make_head(config.head_inputs(features), components, config)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the actions [B, C] of `rows` [B, F]."""
        actions: torch.Tensor = self.layers(rows)
        return actions.tanh()

    def policy_layers(self) -> list[nn.Module]:
        """Return layers whose outputs are the actions."""
        return [*self.layers.children(), nn.Tanh()]


class SquashedActor(Remembering):
    """A normal distribution whose draws tanh takes to -1..1 (`distributions.squashed`)."""

    def __init__(self, features: int, components: int, config: LayersConfig) -> None:
        super().__init__(features, make_memory(features, config))
        self.layers = make_head(config.head_inputs(features), 2 * components, config)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the means, then the log standard deviations, [B, 2 C] of `rows` [B, F]."""
        output: torch.Tensor = self.layers(rows)
        return output

    def policy_layers(self) -> list[nn.Module]:
        """Return layers with the same outputs."""
        return list(self.layers.children())


class Critics(Remembering):
    """`count` independent networks of the value of a continuous action, Q_k(s, a); a memory is one for all of them."""

    def __init__(self, features: int, components: int, config: LayersConfig, count: int) -> None:
        super().__init__(features, make_memory(features, config))
        inputs = config.head_inputs(features) + components
        self.each = nn.ModuleList(make_head(inputs, 1, config) for _ in range(count))

    def forward(self, rows: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the values [count, B] of `action` [B, C] in `rows` [B, F]."""
        both = torch.cat((rows, action), -1)
        return torch.stack([critic(both).squeeze(-1) for critic in self.each])

    def first(self, rows: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the values [B] by the first network."""
        return self.each[0](torch.cat((rows, action), -1)).squeeze(-1)


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
