"""Networks for policy and value, and the registry of networks by name.

A network is any nn.Module made by `Class(features, outputs, config)` (config: NetworkConfig) whose `forward(obs [B, features])` returns
(policy_output [B, outputs], value [B]). `outputs` counts logits, or for Box actions the means only: their log standard deviations are
parameters of the policy that do not depend on the observation, so no network needs to know of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module

import torch
from torch import nn

from warprun.errors import UserError, one_line, printable
from warprun.learning.settings import NetworkConfig

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}


def layers(features: int, outputs: int, hidden: Sequence[int], activation: str) -> nn.Sequential:
    """Return fully connected layers from `features` to `outputs` numbers, the last one linear; torch's own first weights."""
    made: list[nn.Module] = []
    for size in hidden:
        made += [nn.Linear(features, size), ACTIVATIONS[activation]()]
        features = size
    return nn.Sequential(*made, nn.Linear(features, outputs))


class Mlp(nn.Module):
    """Fully connected layers; `config.shared`: one network gives the policy's output and, last, the value, or a network each."""

    def __init__(self, features: int, outputs: int, config: NetworkConfig) -> None:
        super().__init__()
        self.outputs = outputs
        self.policy = layers(features, outputs + int(config.shared), config.hidden, config.activation)
        self.value = None if config.shared else layers(features, 1, config.hidden, config.activation)
        if config.orthogonal:
            self._start_orthogonal()

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (policy_output [B, outputs], value [B]) of `obs` [B, features]."""
        output = self.policy(obs)
        value = output[..., self.outputs :] if self.value is None else self.value(obs)
        return output[..., : self.outputs], value.squeeze(-1)

    def _start_orthogonal(self) -> None:
        networks = [linear(part) for part in (self.policy, self.value) if part is not None]
        for *hidden, last in networks:
            for layer in hidden:
                nn.init.orthogonal_(layer.weight, math.sqrt(2))
            for layer in (*hidden, last):
                nn.init.zeros_(layer.bias)
        # Andrychowicz et al. 2021: a small last policy layer starts near the uniform policy, which matters most.
        nn.init.orthogonal_(networks[0][-1].weight[: self.outputs], 0.01)
        nn.init.orthogonal_(networks[-1][-1].weight[-1:], 1.0)


def linear(part: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of `part`, in their order."""
    return [layer for layer in part.modules() if isinstance(layer, nn.Linear)]


NetworkMaker = Callable[[int, int, NetworkConfig], nn.Module]
NETWORKS: dict[str, NetworkMaker] = {"mlp": Mlp}


def register(name: str, maker: NetworkMaker) -> None:
    """Make a network available as agent.network.name=`name`. Raises ValueError for "mlp", which kernels compute too."""
    if name == "mlp":
        raise ValueError('a network cannot be registered as "mlp": kernels compute that network too')
    NETWORKS[name] = maker


def make_network(features: int, outputs: int, config: NetworkConfig) -> nn.Module:
    """Make the network that `config` names, and try it on two rows."""
    network = _maker(config.name)(features, outputs, config)
    if not isinstance(network, nn.Module):
        raise UserError(f"agent.network.name={config.name} made a {type(network).__name__}, not a torch.nn.Module")
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


def _maker(name: str) -> NetworkMaker:
    if name in NETWORKS:
        return NETWORKS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UserError(f"agent.network.name={name}: unknown; there are: {', '.join(NETWORKS)}, or give module:Class")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UserError(f"agent.network.name={printable(name)}: give module:Class, the dotted name of a module and a class in it")
    try:
        maker = getattr(import_module(module), attribute)
    except Exception as error:  # the import runs code of the user, which may raise anything
        raise UserError(f"agent.network.name={name} cannot be imported: {one_line(error)}") from error
    if not isinstance(maker, type) or not issubclass(maker, nn.Module):
        raise UserError(f"agent.network.name={name}: it is a {type(maker).__name__}, not a subclass of torch.nn.Module")
    return maker
