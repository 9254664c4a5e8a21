"""Networks of the off-policy agents: Q-networks, actors, critics."""

from __future__ import annotations

import torch
from torch import nn

from warprun.learning.networks import hidden_layers, make_encoder, make_head, make_layers, make_memory
from warprun.learning.recurrent import Recurrent
from warprun.learning.settings.networks import LayersConfig
from warprun.spec import Box


class Remembering(nn.Module):
    """A network that sees observations through a memory, if it has one.

    `forward` takes rows: what the memory gives for observations (`recall`, `Recurrent.trace`), or without memory the
    observations.
    """

    def __init__(self, memory: Recurrent | None) -> None:
        super().__init__()
        self.memory = memory

    def unroll(self, obs: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs [T, B, O] and the carry [B, H] after steps `obs` [T, B, F] that follow `carry`, see `Recurrent.unroll`.

        Only with memory.
        """
        assert self.memory is not None
        rows, carry = self.memory.unroll(obs, carry, begins)
        return self(rows), carry


class Head(Remembering):
    """The layers after the memory: values of all actions, Q(s, .), or actions, or the numbers of distributions."""

    def __init__(self, observation: Box, outputs: int, config: LayersConfig, *last: nn.Module) -> None:
        """`last`: what the outputs pass through, such as tanh."""
        super().__init__(make_memory(observation, config))
        self.layers = make_head(observation, outputs, config)
        self.last = nn.Sequential(*last)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the outputs [B, O] of `rows` [B, F]."""
        outputs: torch.Tensor = self.last(self.layers(rows))
        return outputs

    def trained_layers(self) -> list[nn.Module]:
        """Return all layers."""
        return [*self.layers.children(), *self.last]

    def policy_layers(self) -> list[nn.Module]:
        """Return layers with the same outputs."""
        return self.trained_layers()


class DuelingQNetwork(Remembering):
    """Values of all actions: the value of the state plus advantages of mean 0 (Wang et al. 2016, eq. 9)."""

    def __init__(self, observation: Box, actions: int, config: LayersConfig) -> None:
        super().__init__(make_memory(observation, config))
        self.trunk = trunk(observation, config)
        self.last = nn.Linear(config.last_inputs(observation), 1 + actions)
        """The value of the state, then the advantages."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of `rows` [B, F]."""
        return dueling(self.last(self.trunk(rows)))

    def trained_layers(self) -> list[nn.Module]:
        """Return all layers."""
        return [*self.trunk, self.last]

    def policy_layers(self) -> list[nn.Module]:
        """Return layers whose largest output is the best action: the advantages."""
        return [*self.trunk, some_outputs(self.last, 1, self.last.out_features)]


class QuantileQNetwork(Remembering):
    """Quantiles of the return of all actions: the value of the action plus deviations of mean 0.

    These are the functions that a last layer of all quantiles can represent (Dabney et al. 2018, section 4). But values
    have an output of their own, so acting needs no quantiles.
    """

    def __init__(self, observation: Box, actions: int, config: LayersConfig, quantiles: int, dueling: bool) -> None:
        super().__init__(make_memory(observation, config))
        self.trunk = trunk(observation, config)
        self.actions, self.count, self.of_values = actions, quantiles, actions + dueling
        """`of_values`: outputs from which the values of the actions follow."""
        self.last = nn.Linear(config.last_inputs(observation), self.of_values + actions * quantiles)
        """The values of the actions, or as in `DuelingQNetwork`; then the deviations, action after action."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the values [B, actions] of `rows` [B, F], the means of the quantiles."""
        return self._values(self.last(self.trunk(rows)))

    def quantiles(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the quantiles [B, actions, N] of `rows` [B, F]."""
        outputs = self.last(self.trunk(rows))
        deviation = outputs[..., self.of_values :].unflatten(-1, (-1, self.count))
        return self._values(outputs).unsqueeze(-1) + deviation - deviation.mean(-1, keepdim=True)

    def _values(self, outputs: torch.Tensor) -> torch.Tensor:
        outputs = outputs[..., : self.of_values]
        return dueling(outputs) if self.of_values > self.actions else outputs

    def trained_layers(self) -> list[nn.Module]:
        """Return all layers."""
        return [*self.trunk, self.last]

    def policy_layers(self) -> list[nn.Module]:
        """Return layers whose largest output is the best action."""
        return [*self.trunk, some_outputs(self.last, self.of_values - self.actions, self.of_values)]


def trunk(observation: Box, config: LayersConfig) -> nn.Sequential:
    """Return the layers before the last one, without a memory."""
    encoder = [] if config.remembers else make_encoder(observation, config)
    return nn.Sequential(*encoder, *hidden_layers([config.head_inputs(observation), *config.last_hidden], config.activation))


def dueling(outputs: torch.Tensor) -> torch.Tensor:
    """Return the values [..., n] of actions: `outputs` [..., 1 + n] are the value of the state and the advantages, of any mean."""
    value, advantage = outputs[..., :1], outputs[..., 1:]
    return value + advantage - advantage.mean(-1, keepdim=True)


def some_outputs(layer: nn.Linear, first: int, end: int) -> nn.Linear:
    """Return a layer of the outputs `first` .. `end` - 1 of another, on the memory of its parameters."""
    part = nn.Linear(layer.in_features, end - first, device="meta")
    part.weight = nn.Parameter(layer.weight.detach()[first:end], requires_grad=False)
    part.bias = nn.Parameter(layer.bias.detach()[first:end], requires_grad=False)
    return part


ActingNetwork = Head | DuelingQNetwork | QuantileQNetwork
"""A network that can act."""


class Critics(Remembering):
    """`count` independent networks of the value of a continuous action, Q_k(s, a); an encoder and a memory are one for all of them."""

    def __init__(self, observation: Box, components: int, config: LayersConfig, count: int) -> None:
        super().__init__(make_memory(observation, config))
        self.encoder = nn.Sequential(*([] if config.remembers else make_encoder(observation, config)))
        inputs = config.head_inputs(observation) + components
        self.each = nn.ModuleList(make_layers(inputs, 1, config) for _ in range(count))

    def forward(self, rows: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the values [count, B] of `action` [B, C] in `rows` [B, F]."""
        both = torch.cat((self.encoder(rows), action), -1)
        return torch.stack([critic(both).squeeze(-1) for critic in self.each])

    def first(self, rows: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Return the values [B] by the first network."""
        return self.each[0](torch.cat((self.encoder(rows), action), -1)).squeeze(-1)
