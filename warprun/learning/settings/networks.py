"""Settings of networks, and what follows from them before anything is built."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from warprun.errors import UserError
from warprun.learning.settings import byte_counts
from warprun.learning.settings.checks import one_of, positive
from warprun.run_folder import named
from warprun.spec import Box, Field

ACTIVATIONS = ("tanh", "relu", "elu", "gelu", "silu")
KERNEL_ACTIVATIONS = ("tanh", "relu")
"""Activations that the kernels of warprun compute."""
KERNEL_UNITS = 16
"""What the units of recurrent layers that kernels compute are a multiple of (`kernels.vectors.NARROW`)."""
GATES = {"mlp": 0, "lstm": 4, "gru": 3}
"""Type of a network -> gates of a unit of its recurrent layers."""
STATES = {"mlp": 0, "lstm": 2, "gru": 1}
"""Type of a network -> numbers that a unit of its recurrent layers remembers."""
HIDDEN = (64, 64)
"""Sizes of the hidden layers if nothing is said of them."""
MAX_LAYERS = 64
"""Most hidden layers of a network."""
ENCODERS = {"conv": 0, "nature": 512, "impala": 256}
"""Name of an encoder -> units of the layer behind its convolutions; 0: there is none. nature: Mnih et al. 2015; impala: Espeholt et al.
2018, figure 3 right."""
NATURE = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
"""Filters, width of the kernel and stride of each convolution."""
IMPALA = (16, 32, 32)
"""Filters of the sections, each a convolution, a maximum over neighbours that halves the field, and two residual blocks."""


class Layout(NamedTuple):
    """The sizes of an encoder."""

    outputs: int
    """Numbers that it gives for a row: its units, or `joined`."""
    joined: int
    """Numbers of a row before the units: what the convolutions give, then the columns that are no field."""
    parameters: int
    numbers: int
    """Numbers of a row that a gradient needs."""


class RecurrentLayer(NamedTuple):
    """The sizes of a recurrent layer."""

    kind: str
    """Type of the network: lstm or gru."""
    inputs: int
    units: int


@dataclass
class LayersConfig:
    """Networks of layers, all of the same kind, or of the user."""

    type: str = "mlp"
    """mlp (fully connected layers), or with memory: lstm, gru. agent.network=lstm is short for agent.network.type=lstm."""
    hidden: list[int] | None = None
    """Sizes of the hidden layers; of a network with memory those before its recurrent layers, of which there may be none: []. null: none
    behind nature and impala, whose units are such a layer, else [64,64]. DDPG, TD3 and SAC: [64,64]."""
    units: list[int] = field(default_factory=lambda: [64])
    """lstm, gru: units of each recurrent layer."""
    after: list[int] | None = None
    """lstm, gru: sizes of the hidden layers between recurrent layers and outputs; null: as `hidden`."""
    encoder: str | None = None
    """Convolutions before the layers, for observations that are fields: conv, nature, impala; null: none. agent.network=cnn is short for
    agent.network.encoder=conv, agent.network=nature and agent.network=impala likewise."""
    filters: list[int] = field(default_factory=lambda: [16, 32])
    """conv: filters of each convolution."""
    kernels: list[int] = field(default_factory=lambda: [3, 3])
    """conv: width of the kernel of each convolution."""
    strides: list[int] = field(default_factory=lambda: [1, 1])
    """conv: cells between two places of each kernel."""
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
        if self.type in ("cnn", *ENCODERS):
            raise UserError(f"{key}.type={self.type} is an encoder; write {key}.encoder={'conv' if self.type == 'cnn' else self.type}")
        one_of(self, key, "type", tuple(GATES))
        self._check_memory(key)
        self._check_encoder(key)
        if self.module is not None:
            named(f"{key}.module", self.module)
        elif self.kwargs:
            raise UserError(f"{key}.kwargs.{min(map(str, self.kwargs))}: arguments are for a network of your own; add {key}.module=")
        _check_sizes(self.first_hidden, f"{key}.hidden", least=0 if self.remembers or self.encoder else 1)
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

    def _check_encoder(self, key: str) -> None:
        sizes = {name: getattr(self, name) for name in ("filters", "kernels", "strides")}
        if self.encoder is not None:
            one_of(self, key, "encoder", tuple(ENCODERS))
            if self.module is not None:
                raise UserError(f"{key}.encoder={self.encoder}: {key}.module is a network of your own; leave one of them out")
        for name, given in sizes.items():
            if self.encoder != "conv" and given != getattr(LayersConfig(), name):
                raise UserError(f"{key}.{name}={given}: it is for {key}.encoder=conv")
            _check_sizes(given, f"{key}.{name}", least=1)
            if len(given) != len(self.filters):
                raise UserError(f"{key}.{name}={given} and {key}.filters={self.filters} must have a number for each convolution")

    def check_observation(self, observation: Box, key: str) -> None:
        """Raise UserError if the network cannot read these observations; `key` is the key of these settings."""
        if self.encoder is not None:
            self.layout(observation, key)
        elif self.module is None and any(field.kind == "image" for field in observation.fields):
            hint = f"{key}=cnn" if key == "agent.network" else f"{key}.encoder=conv"
            raise UserError(f"observations are images, and {key}.encoder=null has no convolutions to read them; add {hint}")

    @property
    def recurs_in_kernels(self) -> bool:
        """Whether kernels can compute the recurrent layers: their units must fill vectors."""
        return self.remembers and all(units % KERNEL_UNITS == 0 for units in self.units)

    def no_kernels(self) -> str:
        """Return why kernels cannot compute the network, on a GPU or of an agent that does not unroll in kernels; empty if they can."""
        if not self.remembers:
            return self.no_kernel_layers()
        told = f"torch computes networks with memory, agent.network.type={self.type}"
        if self.recurs_in_kernels:
            return told
        units = f"agent.network.units={self.units}"
        return f"{told}; kernels compute recurrent layers whose units are a multiple of {KERNEL_UNITS}, {units}"

    def no_kernel_layers(self) -> str:
        """Return why kernels cannot compute the layers of the network beside recurrent ones; empty if they can."""
        if self.module is not None:
            return "torch computes networks of your own, agent.network.module"
        if self.encoder is not None:
            return f"torch computes convolutions, agent.network.encoder={self.encoder}"
        if self.activation not in KERNEL_ACTIVATIONS:
            return f"agent.network.activation={self.activation}; kernels compute tanh and relu"
        return ""

    @property
    def remembers(self) -> bool:
        """Whether the network has memory."""
        return self.type != "mlp"

    @property
    def trunks(self) -> int:
        """Stacks of layers that read the observations."""
        return 1

    @property
    def first_hidden(self) -> list[int]:
        """Sizes of the hidden layers behind the encoder: those before the recurrent layers, or all if there are none."""
        if self.hidden is not None:
            return self.hidden
        return [] if self.encoder and ENCODERS[self.encoder] else list(HIDDEN)

    @property
    def last_hidden(self) -> list[int]:
        """Sizes of the hidden layers before the outputs: those after the recurrent layers, or all if there are none."""
        return self.after if self.remembers and self.after is not None else self.first_hidden

    def layout(self, observation: Box, key: str = "agent.network") -> Layout:
        """Return the sizes of the encoder for observations; without one it gives them as they are.

        Raises UserError if it cannot read them; `key` is the key of these settings.
        """
        if self.encoder is None:
            return Layout(observation.size, observation.size, 0, 0)
        if not observation.fields:
            raise UserError(f"{key}.encoder={self.encoder} reads fields, and the observations, {observation.size} numbers, have none")
        joined = sum(columns.stop - columns.start for columns in observation.rest)
        parameters, numbers = 0, observation.size
        for each in observation.fields:
            channels, size = each.shape[0], each.shape[1:]
            for filters, kernel, places, size in self.convolutions(each, key):
                parameters += filters * (channels * kernel ** len(size) + 1)
                numbers += filters * math.prod(places)
                channels = filters
            joined += channels * math.prod(size)
        units = ENCODERS[self.encoder]
        return Layout(units or joined, joined, parameters + units * (joined + 1), numbers + joined + units)

    def kernel_sizes(self) -> list[tuple[int, int, int]]:
        """Return filters, width of the kernel and stride of each convolution of conv and nature."""
        return NATURE if self.encoder == "nature" else list(zip(self.filters, self.kernels, self.strides, strict=True))

    def convolutions(self, of: Field, key: str) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
        """Yield, for each convolution over a field, filters, width of the kernel, the size that it gives, and that which the next one gets.

        Raises UserError as `layout`.
        """
        size = of.shape[1:]
        if self.encoder == "impala":
            for filters in IMPALA:
                places, size = size, tuple((n - 1) // 2 + 1 for n in size)  # the maximum over 3 neighbours of every second cell
                yield filters, 3, places, size
                yield from [(filters, 3, size, size)] * 4
            return
        for filters, kernel, stride in self.kernel_sizes():
            if kernel > min(size):
                cells, given = (" x ".join(map(str, each)) for each in (size, of.shape[1:]))
                raise UserError(f"{key}.encoder={self.encoder}: a kernel of {kernel} does not fit into {cells} cells (the field: {given})")
            size = tuple((n - kernel) // stride + 1 for n in size)
            yield filters, kernel, size, size

    def head_inputs(self, observation: Box) -> int:
        """Return the inputs of the layers after encoder and memory: what these give for a row, or the observations."""
        return self.units[-1] if self.remembers else self.layout(observation).outputs

    def last_inputs(self, observation: Box) -> int:
        """Return the inputs of the last layer."""
        return [self.head_inputs(observation), *self.last_hidden][-1]

    def parameters(self, inputs: int, outputs: int) -> int:
        """Return the parameters behind the encoder; of a network of the user, whose size is not known, those of a single layer."""
        if self.module is not None:
            return byte_counts.parameters(inputs, outputs, [])
        if not self.remembers:
            return byte_counts.parameters(inputs, outputs, self.first_hidden)
        sizes = [inputs, *self.first_hidden]
        before = byte_counts.parameters(inputs, sizes[-1], sizes[1:-1]) if self.first_hidden else 0
        recurrent = byte_counts.recurrent(sizes[-1], self.units, GATES[self.type])
        return before + recurrent + byte_counts.parameters(self.units[-1], outputs, self.last_hidden)

    def recurrent_layers(self, inputs: int) -> list[RecurrentLayer]:
        """Return the recurrent layers of a network with so many inputs behind the encoder."""
        sizes = pairwise([[inputs, *self.first_hidden][-1], *self.units]) if self.remembers else []
        return [RecurrentLayer(self.type, *each) for each in sizes]

    def numbers(self) -> int:
        """Return the numbers of a row that a gradient needs behind the encoder, without inputs and outputs; 0 for a network of the user."""
        if self.module is not None:
            return 0
        # Of a unit of a recurrent layer: its gates, their inputs of both matrices, its states.
        recurrent = (3 * GATES[self.type] + 4) * sum(self.units) + sum(self.last_hidden) if self.remembers else 0
        return sum(self.first_hidden) + recurrent

    def block_numbers(self) -> int:
        """Return the rows of a block of activations of kernels, without inputs and outputs; with memory those of `kernels.memory`."""
        if not self.remembers:
            return sum(self.first_hidden)
        # Of a unit of a recurrent layer: what it leaves and finds, and four sums.
        return sum(self.first_hidden) + (STATES[self.type] + 5) * sum(self.units) + sum(self.last_hidden)

    def carry(self) -> int:
        """Return the numbers that a network remembers of an episode."""
        return STATES[self.type] * sum(self.units) + (self.sequence is not None)


def recurrent_rows(kind: str, units: int) -> int:
    """Return the rows of a recurrent layer in a block of shared memory of a GPU: of a unit its gates and what it remembers."""
    return (GATES[kind] + STATES[kind]) * units


def rows_of_recurrent(networks: Iterable[LayersConfig]) -> tuple[int, int]:
    """Return the `recurrent_rows` of a network's widest layer, the least of all networks whose recurrent layers kernels can compute, and
    the units of the widest of these layers.

    0 and 0 if there is no such network.
    """
    widest = [(each.type, max(each.units)) for each in networks if each.recurs_in_kernels]
    return min((recurrent_rows(*each) for each in widest), default=0), max((units for _, units in widest), default=0)


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

    @property
    def trunks(self) -> int:
        return 1 if self.shared else 2

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
