"""Networks for policy and value, and the registry of networks by name.

A network is any nn.Module made by `Class(features, outputs, config)` (config: NetworkConfig) whose `forward(obs [B, features])` returns
(policy_output [B, outputs], value [B]). `outputs` counts logits, or for Box actions the means only: their log standard deviations are
parameters of the policy that do not depend on the observation, so no network needs to know of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module

import numpy as np
import torch
from torch import nn

from warprun.agents.config import NetworkConfig
from warprun.engine.mlp import ACTIVATIONS as KERNEL_ACTIVATIONS
from warprun.engine.mlp import LINEAR, Layer
from warprun.errors import UserError

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}


class Mlp(nn.Module):
    """Fully connected layers; `config.shared`: one trunk under both heads, or a trunk each."""

    def __init__(self, features: int, outputs: int, config: NetworkConfig) -> None:
        super().__init__()
        width = config.hidden[-1]
        self.activation = config.activation
        self.policy_trunk = _trunk(features, config)
        self.policy_head = nn.Linear(width, outputs)
        self.value_trunk = None if config.shared else _trunk(features, config)
        self.value_head = nn.Linear(width, 1)
        if config.orthogonal:
            self._start_orthogonal()

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (policy_output [B, outputs], value [B]) of `obs` [B, features]."""
        hidden = self.policy_trunk(obs)
        value_hidden = hidden if self.value_trunk is None else self.value_trunk(obs)
        return self.policy_head(hidden), self.value_head(value_hidden).squeeze(-1)

    def _start_orthogonal(self) -> None:
        # Andrychowicz et al. 2021: a small last policy layer starts near the uniform policy, which matters most.
        gains = {self.policy_head: 0.01, self.value_head: 1.0}
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, gains.get(layer, math.sqrt(2)))
                nn.init.zeros_(layer.bias)


def _trunk(features: int, config: NetworkConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in config.hidden:
        layers += [nn.Linear(features, size), ACTIVATIONS[config.activation]()]
        features = size
    return nn.Sequential(*layers)


NetworkMaker = Callable[[int, int, NetworkConfig], nn.Module]
NETWORKS: dict[str, NetworkMaker] = {"mlp": Mlp}


def register(name: str, maker: NetworkMaker) -> None:
    """Make a network available as agent.network.name=`name`."""
    NETWORKS[name] = maker


def make_network(features: int, outputs: int, config: NetworkConfig) -> nn.Module:
    """Make the network that `config` names, and try it on two rows."""
    network = _maker(config.name)(features, outputs, config)
    with torch.no_grad():
        result = network(torch.zeros(2, features))
    shapes = tuple(tuple(r.shape) for r in result) if isinstance(result, tuple) else (type(result).__name__,)
    if shapes != ((2, outputs), (2,)):
        raise UserError(
            f"agent.network.name={config.name}: forward must return (policy_output [B, {outputs}], value [B]); "
            f"for B=2 the shapes are {', '.join(map(str, shapes))}"
        )
    return network


def flatten_parameters(module: nn.Module) -> torch.Tensor:
    """Move all parameters of `module` into one new flat tensor [P], in their order, and return it; the parameters become views of it."""
    parameters = list(module.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    for p, values in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.data = values.view_as(p)
    return flat


def layer_table(network: Mlp, parameters: torch.Tensor) -> tuple[np.ndarray, int]:
    """Return the layers [layer, 8] of `network` as `warprun.engine.mlp` takes them, and the rows of a block.

    `parameters` is the flat tensor that the layers are views of. The policy's outputs and the value are the last rows.
    """
    trunks = [network.policy_trunk] + ([network.value_trunk] if network.value_trunk is not None else [])
    first = trunks[0][0]
    assert isinstance(first, nn.Linear)
    row = first.in_features
    table: list[Layer] = []

    def add(linear: nn.Linear, in_row: int, out_row: int, activation: int, adds: int = 0) -> None:
        at = [(p.data_ptr() - parameters.data_ptr()) // parameters.element_size() for p in (linear.weight, linear.bias)]
        table.append(Layer(at[0], at[1], linear.in_features, linear.out_features, in_row, out_row, activation, adds))

    ends = []
    for trunk in trunks:
        in_row = 0
        for linear in (layer for layer in trunk if isinstance(layer, nn.Linear)):
            add(linear, in_row, row, KERNEL_ACTIVATIONS[network.activation])
            in_row, row = row, row + linear.out_features
        ends.append(in_row)
    # The table is gone through backwards for slopes: the value head is first to write those of a shared trunk, the policy's adds to them.
    outputs = network.policy_head.out_features
    add(network.policy_head, ends[0], row, LINEAR, adds=int(len(trunks) == 1))
    add(network.value_head, ends[-1], row + outputs, LINEAR)
    return np.array(table, np.int64), row + outputs + 1


def _maker(name: str) -> NetworkMaker:
    if name in NETWORKS:
        return NETWORKS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UserError(f"agent.network.name={name}: unknown; there is {', '.join(NETWORKS)}, or give module:Class")
    try:
        maker = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"agent.network.name={name} cannot be imported: {error}") from error
    if not callable(maker):
        raise UserError(f"agent.network.name={name}: it is a {type(maker).__name__}, not a class of networks")
    return maker
