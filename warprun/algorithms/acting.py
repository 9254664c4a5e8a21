"""What acts for a group once it is trained by DQN, DDPG, TD3 or SAC. Nothing here needs kernels."""

from __future__ import annotations

from torch import nn

from warprun.algorithms.settings import DDPGConfig, DQNConfig, SACConfig, TD3Config
from warprun.learning.acting import Acting
from warprun.learning.critics import Actor, DuelingQNetwork, QNetwork, QuantileQNetwork, SquashedActor
from warprun.learning.networks import buffers, flatten_parameters
from warprun.spec import Discrete, GroupSpec
from warprun.state import State

AnyQNetwork = QNetwork | DuelingQNetwork | QuantileQNetwork


def q_network(config: DQNConfig, group: GroupSpec) -> AnyQNetwork:
    """Return an untrained network of the values of a group's actions."""
    assert isinstance(group.action, Discrete)
    actions, network = group.action.n, config.network
    kind: type[QNetwork] | type[DuelingQNetwork] = DuelingQNetwork if config.dueling else QNetwork
    values = kind(group.observation.size, actions, network)
    return values if config.quantiles is None else QuantileQNetwork(values, network.hidden[-1], actions, config.quantiles)


def actor(config: DDPGConfig | TD3Config, group: GroupSpec) -> Actor:
    """Return an untrained deterministic policy."""
    return Actor(group.observation.size, group.action.components, config.network)


def squashed_actor(config: SACConfig, group: GroupSpec) -> SquashedActor:
    """Return an untrained policy of normal distributions that tanh squashes."""
    return SquashedActor(group.observation.size, group.action.components, config.network)


def values(config: DQNConfig, group: GroupSpec) -> Acting:
    """Return the network of DQN; its action is the one of largest value."""
    module = q_network(config, group)
    layers = [] if config.network.module is not None else module.policy_layers()
    return Acting(module, "values", layers, _tensors("values", module))


def actions(config: DDPGConfig | TD3Config, group: GroupSpec) -> Acting:
    """Return the actor of DDPG or TD3."""
    module = actor(config, group)
    layers = [] if config.network.module is not None else module.policy_layers()
    return Acting(module, "actions", layers, _tensors("actor", module))


def squashed(config: SACConfig, group: GroupSpec) -> Acting:
    """Return the actor of SAC; its best action is the tanh of the mean."""
    module = squashed_actor(config, group)
    layers = [] if config.network.module is not None else [*module.policy_layers(), nn.Tanh()]
    return Acting(module, "squashed", layers, _tensors("actor", module))


def _tensors(name: str, module: nn.Module) -> State:
    """Return live tensors by the names of `critics.Trained`."""
    found = {"parameters": flatten_parameters(module)} | buffers(module)
    return {f"{name}/{key}": tensor for key, tensor in found.items()}
