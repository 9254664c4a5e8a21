"""The networks that act for a group once it is trained by DQN, DDPG, TD3 or SAC. Nothing here needs kernels."""

from __future__ import annotations

from torch import nn

from warprun.algorithms.settings import DDPGConfig, DQNConfig, SACConfig, TD3Config
from warprun.learning.acting import Acting, Gives
from warprun.learning.critics import Actor, DuelingQNetwork, QNetwork, QuantileQNetwork, SquashedActor
from warprun.learning.networks import buffers, flatten_parameters
from warprun.learning.off_policy_settings import OffPolicyConfig
from warprun.learning.recurrent import carry_of, parts
from warprun.spec import Discrete, GroupSpec

AnyQNetwork = QNetwork | DuelingQNetwork | QuantileQNetwork


def q_network(config: DQNConfig, group: GroupSpec) -> AnyQNetwork:
    """Return an untrained network of the values of a group's actions."""
    assert isinstance(group.action, Discrete)
    actions, network = group.action.n, config.network
    kind: type[QNetwork] | type[DuelingQNetwork] = DuelingQNetwork if config.dueling else QNetwork
    values = kind(group.observation.size, actions, network)
    if config.quantiles is None:
        return values
    return QuantileQNetwork(values, network.last_inputs(group.observation.size), actions, config.quantiles)


def actor(config: DDPGConfig | TD3Config, group: GroupSpec) -> Actor:
    """Return an untrained deterministic policy."""
    return Actor(group.observation.size, group.action.components, config.network)


def squashed_actor(config: SACConfig, group: GroupSpec) -> SquashedActor:
    """Return an untrained policy of normal distributions that tanh squashes."""
    return SquashedActor(group.observation.size, group.action.components, config.network)


def values(config: DQNConfig, group: GroupSpec) -> Acting:
    """Return the network of DQN; its action is the one of largest value."""
    module = q_network(config, group)
    return _acting(config, module, "values", "values")


def actions(config: DDPGConfig | TD3Config, group: GroupSpec) -> Acting:
    """Return the actor of DDPG or TD3."""
    module = actor(config, group)
    return _acting(config, module, "actions", "actor")


def squashed(config: SACConfig, group: GroupSpec) -> Acting:
    """Return the actor of SAC; its best action is the tanh of the mean."""
    module = squashed_actor(config, group)
    return _acting(config, module, "squashed", "actor")


def _acting(config: OffPolicyConfig, module: AnyQNetwork | Actor | SquashedActor, gives: Gives, name: str) -> Acting:
    """Return what acts; `name`: of the network in a checkpoint, see `critics.Trained`."""
    tensors = {f"{name}/{key}": tensor for key, tensor in ({"parameters": flatten_parameters(module)} | buffers(module)).items()}
    if config.network.module is not None:
        return Acting(module, gives, [], tensors)
    remembering = [] if module.memory is None else parts(module.memory)
    layers = [*remembering, *module.policy_layers(), *([nn.Tanh()] if gives == "squashed" else [])]
    return Acting(module, gives, layers, tensors, carry_of(module.memory), config.network.sequence)
