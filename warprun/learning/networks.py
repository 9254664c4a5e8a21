"""Networks: fully connected layers, with or without convolutions and memory, or a module of the user; and policy and value made of them."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import torch
from torch import nn

from warprun.errors import UserError, shown
from warprun.learning.encoders import Encoder
from warprun.learning.recurrent import Recurrent, carry_of, unroll
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.run_folder import named
from warprun.spec import Box, GroupSpec
from warprun.user_code import errors_of_user

N = TypeVar("N", bound=nn.Module)

OWN_NETWORK = "agent.network.module"
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}


_drawing = threading.RLock()
"""Held by the thread that draws first weights, perhaps within those of a network that trains another: torch draws them from the one
generator of the process."""
os.register_at_fork(before=_drawing.acquire, after_in_parent=_drawing.release, after_in_child=_drawing.release)


def seeded(seed: int, make: Callable[[], N]) -> N:
    """Return a network made on the CPU: a seed gives the same initial parameters on every device, and whatever other threads make."""
    with _drawing, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def make_network(observation: Box, outputs: int, config: LayersConfig) -> nn.Module:
    """Return a network from observations [B, F] to rows [B, outputs]; with memory over sequences of them, see `Recurrent`.

    Raises UserError for observations that it cannot read, and for a module of the user that does not work.
    """
    if config.remembers:
        return _recurrent(observation, outputs, config)
    after = make_layers(config.layout(observation).outputs, outputs, config)
    return after if config.encoder is None else nn.Sequential(*make_encoder(observation, config), *after.children())


def make_encoder(observation: Box, config: LayersConfig) -> list[nn.Module]:
    """Return the layer of convolutions with which a network begins; an empty list if it has none."""
    return [] if config.encoder is None else [Encoder(observation, config)]


def make_memory(observation: Box, config: LayersConfig) -> Recurrent | None:
    """Return the recurrent layers and all before them, whose outputs are the inputs of a head; None without memory."""
    return _recurrent(observation, None, config) if config.remembers else None


def make_head(observation: Box, outputs: int, config: LayersConfig) -> nn.Module:
    """Return the layers after the memory; without memory the whole network, as `make_network`."""
    return make_layers(config.units[-1], outputs, config) if config.remembers else make_network(observation, outputs, config)


def make_layers(inputs: int, outputs: int, config: LayersConfig) -> nn.Module:
    """Return the layers behind encoder and memory, or the module of the user, from rows [B, inputs] to rows [B, outputs]."""
    if config.module is not None:
        return own_network(inputs, outputs, config.module, config.kwargs)
    return layers(inputs, outputs, config.last_hidden, config.activation)


def _recurrent(observation: Box, outputs: int | None, config: LayersConfig) -> Recurrent:
    """Return a network with memory; `outputs` None: it ends with the last recurrent layer."""
    sizes = [config.layout(observation).outputs, *config.first_hidden]
    before = nn.Sequential(*make_encoder(observation, config), *hidden_layers(sizes, config.activation))
    after = nn.Sequential() if outputs is None else layers(config.units[-1], outputs, config.last_hidden, config.activation)
    return Recurrent(config.type, before, [sizes[-1], *config.units], after, config.sequence)


def own_network(inputs: int, outputs: int, module: str, kwargs: Mapping[str, object]) -> nn.Module:
    """Make a network of the user, module(inputs, outputs, **kwargs), whose forward takes rows [B, inputs] to [B, outputs]; try it on two.

    Raises UserError.
    """
    own = named(OWN_NETWORK, module)
    made_by = own.load(OWN_NETWORK)
    if not isinstance(made_by, type) or not issubclass(made_by, nn.Module):
        raise UserError(f"{OWN_NETWORK}={module}: {own.name} is {shown(made_by)}, not a class derived from torch.nn.Module")
    with errors_of_user(f"{OWN_NETWORK}={module} fails", "a network"):
        network = made_by(inputs, outputs, **kwargs)
        network.eval()
        rows = torch.randn(2, inputs, generator=torch.Generator().manual_seed(0))
        before = rows.clone()
        given = network(rows)
    if not isinstance(given, torch.Tensor) or given.shape != (2, outputs) or given.dtype != torch.float32:
        found = f"{given.dtype} {tuple(given.shape)}" if isinstance(given, torch.Tensor) else shown(given)
        raise UserError(f"{OWN_NETWORK}={module}: of rows [2, {inputs}] forward must return a float32 tensor [2, {outputs}], not {found}")
    if not given.requires_grad or any(parameter.dtype != torch.float32 for parameter in network.parameters()):
        raise UserError(f"{OWN_NETWORK}={module}: forward must compute with parameters, all of them float32; else nothing can be learned")
    if not torch.equal(rows, before):
        raise UserError(f"{OWN_NETWORK}={module}: forward must not change the rows that it gets; it does so in place")
    frozen = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise UserError(f"{OWN_NETWORK}={module}: the parameter {frozen[0]} has requires_grad=False; keep what is not trained in a buffer")
    return network


def layers(features: int, outputs: int, hidden: Sequence[int], activation: str) -> nn.Sequential:
    """Return fully connected layers from `features` to `outputs` numbers, the last one linear; torch's own first weights."""
    sizes = [features, *hidden]
    return nn.Sequential(*hidden_layers(sizes, activation), nn.Linear(sizes[-1], outputs))


def hidden_layers(sizes: Sequence[int], activation: str) -> Iterator[nn.Module]:
    """Yield fully connected layers, each with its activation; `sizes`: the inputs of the first, then the outputs of each."""
    for features, size in pairwise(sizes):
        yield nn.Linear(features, size)
        yield ACTIVATIONS[activation]()


class ActorCritic(nn.Module):
    """The policy's output and the value; `config.shared`: one network gives both, the value last, or a network each."""

    def __init__(self, observation: Box, outputs: int, config: NetworkConfig) -> None:
        super().__init__()
        self.inputs, self.outputs = observation.size, outputs
        self.policy = make_network(observation, outputs + int(config.shared), config)
        self.value = None if config.shared else make_network(observation, 1, config)
        self.carries = carry_of(self.policy), carry_of(self.value)
        """Numbers of the carries of policy and value, which follow each other in one row."""
        if config.orthogonal and config.module is None:
            self._start_orthogonal()

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (policy_output [B, outputs], value [B]) of `obs` [B, features]; only without memory."""
        output = self.policy(obs)
        value = output[..., self.outputs :] if self.value is None else self.value(obs)
        return output[..., : self.outputs], value.squeeze(-1)

    def unroll(self, obs: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (policy_output [T, B, outputs], value [T, B], carry [B, H]) of `obs` [T, B, features], see `Recurrent.unroll`."""
        of_policy, of_value = carry.split(self.carries, -1)
        output, of_policy = unroll(self.policy, obs, of_policy, begins)
        value = output[..., self.outputs :]
        if self.value is not None:
            value, of_value = unroll(self.value, obs, of_value, begins)
        return output[..., : self.outputs], value.squeeze(-1), torch.cat((of_policy, of_value), -1)

    def carry_places(self) -> list[int]:
        """Return where the numbers of each recurrent layer begin in a carry, those of the policy first."""
        networks = [(part, first) for part, first in ((self.policy, 0), (self.value, self.carries[0])) if isinstance(part, Recurrent)]
        return [first + place for part, first in networks for place in part.places()]

    def _start_orthogonal(self) -> None:
        networks = [linear(part) for part in (self.policy, self.value) if part is not None]
        for *hidden, last in networks:
            for layer in hidden:
                nn.init.orthogonal_(layer.weight, math.sqrt(2))
            for layer in (*hidden, last):
                nn.init.zeros_(layer.bias)
        for part in self.modules():
            if isinstance(part, Recurrent | Encoder):
                part.start_orthogonal()
        # Andrychowicz et al. 2021: a small last policy layer starts near the uniform policy, which matters most.
        nn.init.orthogonal_(networks[0][-1].weight[: self.outputs], 0.01)
        nn.init.orthogonal_(networks[-1][-1].weight[-1:], 1.0)


def linear(part: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of `part`, in their order."""
    return [layer for layer in part.modules() if isinstance(layer, nn.Linear)]


class StochasticPolicy(nn.Module):
    """A distribution over the actions of a group, and the value.

    The log standard deviations of Box actions are parameters that do not depend on the observation, so no network needs to know of them.
    """

    def __init__(self, group: GroupSpec, config: NetworkConfig) -> None:
        super().__init__()
        self.network = ActorCritic(group.observation, group.acting_outputs, config)
        reals = group.action.reals
        self.log_std = nn.ParameterList([torch.full((reals,), config.log_std_init)] if reals else [])
        """Logarithms of the standard deviations of Box actions, one tensor [C]; none for discrete ones."""

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (policy_output [B, P] as in the Trajectory, value [B]) of normalised `obs` [B, F]; only without memory."""
        output, value = self.network(obs)
        return self._with_log_std(output), value

    @property
    def carry(self) -> int:
        """Numbers that the policy and its value remember of an episode, for one actor; 0: they have no memory."""
        return sum(self.network.carries)

    def unroll(self, obs: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (policy_output [T, B, P], value [T, B], carry [B, H]) of normalised `obs` [T, B, F], see `Recurrent.unroll`."""
        output, value, carry = self.network.unroll(obs, carry, begins)
        return self._with_log_std(output), value, carry

    def _with_log_std(self, output: torch.Tensor) -> torch.Tensor:
        for log_std in self.log_std:
            output = torch.cat((output, log_std.expand_as(output)), -1)
        return output


def flatten_parameters(module: nn.Module) -> torch.Tensor:
    """Move all parameters of `module` into one new flat tensor [P], in their order, and return it; the parameters become views of it."""
    parameters = list(module.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    for p, values in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.data = values.view_as(p)
    return flat


def buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return what `module` keeps beside its parameters, such as running statistics, by the names of a checkpoint."""
    return {f"buffers/{name}": buffer for name, buffer in module.named_buffers()}


@contextmanager
def training(module: nn.Module) -> Iterator[None]:
    """Let `module` take in the rows that it gets, as in a gradient step; networks act without that."""
    module.train()
    try:
        yield
    finally:
        module.eval()
