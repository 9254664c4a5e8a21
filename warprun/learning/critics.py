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

    def hidden(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the outputs [B, H] of the last hidden layer; only if the network is not one of the user."""
        *hidden, _ = self.layers.children()
        for layer in hidden:
            rows = layer(rows)
        return rows

    def of_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the outputs [B, O] of what `hidden` returned."""
        *_, last = self.layers.children()
        outputs: torch.Tensor = self.last(last(hidden))
        return outputs

    def policy_layers(self) -> list[nn.Module]:
        """Return layers with the same outputs."""
        return [*self.layers.children(), *self.last]


class DuelingQNetwork(Remembering):
    """Values of all actions: the value of the state plus advantages of mean 0 (Wang et al. 2016, eq. 9)."""

    def __init__(self, observation: Box, actions: int, config: LayersConfig) -> None:
        super().__init__(make_memory(observation, config))
        width, encoder = config.last_inputs(observation), [] if config.remembers else make_encoder(observation, config)
        self.trunk = nn.Sequential(*encoder, *hidden_layers([config.head_inputs(observation), *config.last_hidden], config.activation))
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

    These are the functions that a last layer of all quantiles can represent (Dabney et al. 2018, section 4). But values
    have an output of their own, so acting needs no quantiles.
    """

    def __init__(self, values: Head | DuelingQNetwork, width: int, actions: int, quantiles: int) -> None:
        """`width`: units of the last hidden layer of `values`."""
        super().__init__(values.memory)
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
