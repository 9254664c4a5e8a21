"""Settings of networks, and what follows from them before anything is built. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from warprun.errors import UserError
from warprun.learning import byte_counts
from warprun.learning.setting_checks import one_of, positive
from warprun.run_folder import named

ACTIVATIONS = ("tanh", "relu", "elu", "gelu", "silu")
KERNEL_ACTIVATIONS = ("tanh", "relu")
"""Activations that the kernels of warprun compute."""
KERNEL_UNITS = 16
"""What the units of recurrent layers that kernels compute are a multiple of (`kernels.simd.NARROW`)."""
GATES = {"mlp": 0, "lstm": 4, "gru": 3}
"""Type of a network -> gates of a unit of its recurrent layers."""
MAX_LAYERS = 64
"""Most hidden layers of a network."""


@dataclass
class LayersConfig:
    """Networks of layers, all of the same kind, or of the user."""

    type: str = "mlp"
    """mlp (fully connected layers), or with memory: lstm, gru. agent.network=lstm is short for agent.network.type=lstm."""
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    """Sizes of the hidden layers; of a network with memory those before its recurrent layers, of which there may be none: []."""
    units: list[int] = field(default_factory=lambda: [64])
    """lstm, gru: units of each recurrent layer."""
    after: list[int] | None = None
    """lstm, gru: sizes of the hidden layers between recurrent layers and outputs; null: as `hidden`."""
    sequence: int | None = None
    """lstm, gru: steps of a sequence, after which the network forgets everything and no gradient goes back; null: those of the episode."""
    activation: str = "relu"
    """tanh, relu, elu, gelu or silu."""
    module: str | None = None
    """A network of your own: ./FILE.py:CLASS or MODULE:CLASS; null: fully connected layers."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of CLASS: agent.network.kwargs.NAME=value."""

    def check(self, key: str) -> None:
        """Raise UserError for a value that cannot work; `key` is the key of these settings."""
        one_of(self, key, "type", tuple(GATES))
        self._check_memory(key)
        if self.module is not None:
            named(f"{key}.module", self.module)
        elif self.kwargs:
            raise UserError(f"{key}.kwargs.{min(map(str, self.kwargs))}: arguments are for a network of your own; add {key}.module=")
        _check_sizes(self.hidden, f"{key}.hidden", least=0 if self.remembers else 1)
        one_of(self, key, "activation", ACTIVATIONS)

    def _check_memory(self, key: str) -> None:
        given = {"sequence": self.sequence, "after": self.after or None}
        name = next((name for name, value in given.items() if value is not None), None)
        if not self.remembers and name:
            raise UserError(f"{key}.{name}={given[name]}: it is for networks with memory; add {key}=lstm or {key}=gru")
        if self.remembers and self.module is not None:
            raise UserError(f"{key}.type={self.type}: {key}.module is a network of your own; leave one of them out")
        positive(self, key, "sequence")
        _check_sizes(self.units, f"{key}.units", least=1)
        _check_sizes(self.after or [], f"{key}.after", least=0)

    @property
    def runs_in_kernels(self) -> bool:
        """Whether the kernels of warprun can compute the network."""
        return self.module is None and not self.remembers and self.activation in KERNEL_ACTIVATIONS

    @property
    def recurs_in_kernels(self) -> bool:
        """Whether kernels can compute the recurrent layers: their units must fill vectors."""
        return self.remembers and all(units % KERNEL_UNITS == 0 for units in self.units)

    def no_kernels(self) -> str:
        """Return why kernels cannot compute the network; empty if `runs_in_kernels`."""
        if self.runs_in_kernels:
            return ""
        if self.module is not None:
            return "torch computes networks of your own, agent.network.module"
        if self.remembers:
            told = f"torch computes networks with memory, agent.network.type={self.type}"
            if self.recurs_in_kernels:
                return told
            units = f"agent.network.units={self.units}"
            return f"{told}; kernels compute recurrent layers whose units are a multiple of {KERNEL_UNITS}, {units}"
        return f"agent.network.activation={self.activation}; kernels compute tanh and relu"

    @property
    def remembers(self) -> bool:
        """Whether the network has memory."""
        return self.type != "mlp"

    @property
    def last_hidden(self) -> list[int]:
        """Sizes of the hidden layers before the outputs: those after the recurrent layers, or all if there are none."""
        return self.after if self.remembers and self.after is not None else self.hidden

    def head_inputs(self, inputs: int) -> int:
        """Return the inputs of the layers after the memory; without memory those of the network."""
        return self.units[-1] if self.remembers else inputs

    def last_inputs(self, inputs: int) -> int:
        """Return the inputs of the last layer."""
        return [self.head_inputs(inputs), *self.last_hidden][-1]

    def parameters(self, inputs: int, outputs: int) -> int:
        """Return the parameters of a network; of one of the user, whose size is not known, those of a single layer."""
        if self.module is not None:
            return byte_counts.parameters(inputs, outputs, [])
        if not self.remembers:
            return byte_counts.parameters(inputs, outputs, self.hidden)
        sizes = [inputs, *self.hidden]
        before = byte_counts.parameters(inputs, sizes[-1], sizes[1:-1]) if self.hidden else 0
        recurrent = byte_counts.recurrent(sizes[-1], self.units, GATES[self.type])
        return before + recurrent + byte_counts.parameters(self.head_inputs(inputs), outputs, self.last_hidden)

    def numbers(self) -> int:
        """Return the numbers of a row that a gradient needs, without inputs and outputs; 0 for a network of the user."""
        if self.module is not None:
            return 0
        # Of a unit of a recurrent layer: its gates, their inputs of both matrices, its states.
        recurrent = (3 * GATES[self.type] + 4) * sum(self.units) + sum(self.last_hidden) if self.remembers else 0
        return sum(self.hidden) + recurrent

    def carry(self) -> int:
        """Return the numbers that a network remembers of an episode."""
        of_unit = {"mlp": 0, "lstm": 2, "gru": 1}[self.type]
        return of_unit * sum(self.units) + (self.sequence is not None)


@dataclass
class NetworkConfig(LayersConfig):
    """The network that computes the policy's outputs and the value."""

    after: list[int] | None = field(default_factory=list)
    """lstm, gru: sizes of the hidden layers between recurrent layers and outputs; null: as `hidden`."""
    activation: str = "tanh"
    """tanh, relu, elu, gelu or silu."""
    shared: bool = True
    """One network for policy and value, or one trunk of layers; false: two networks."""
    orthogonal: bool = True
    """Initialise weights of layers orthogonally and biases with 0; false: torch's default."""
    log_std_init: float = 0.0
    """Initial logarithm of the standard deviations of Box actions; they do not depend on the observation."""

    def check(self, key: str) -> None:
        super().check(key)
        if not math.isfinite(self.log_std_init):
            raise UserError(f"{key}.log_std_init={self.log_std_init}: it must be finite")


def _check_sizes(sizes: list[int], key: str, least: int) -> None:
    """Raise UserError if `sizes` are no sizes of layers, of which there must be `least` or more."""
    if len(sizes) < least or any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
        raise UserError(f"{key}={sizes}: give one size of at least 1 for each hidden layer, such as [64,64]")
    if len(sizes) > MAX_LAYERS:
        raise UserError(f"{key} has {len(sizes)} layers; it can have {MAX_LAYERS}")
