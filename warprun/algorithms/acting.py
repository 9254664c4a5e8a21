"""The networks that act for a group once it is trained by DQN, DDPG, TD3 or SAC. Nothing here needs kernels."""

from __future__ import annotations

from torch import nn

from warprun.algorithms.settings import DDPGConfig, DQNConfig, SACConfig
from warprun.learning.acting import Acting, Gives
from warprun.learning.critics import ActingNetwork, DuelingQNetwork, Head, QuantileQNetwork
from warprun.learning.networks import buffers, flatten_parameters
from warprun.learning.recurrent import carry_of, parts
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.spec import GroupSpec


def q_network(config: DQNConfig, group: GroupSpec) -> ActingNetwork:
    """Return an untrained network of the values of a group's actions."""
    observation, actions, network = group.observation, group.action.outputs, config.network
    if config.quantiles is not None:
        return QuantileQNetwork(observation, actions, network, config.quantiles, config.dueling)
    return (DuelingQNetwork if config.dueling else Head)(observation, actions, network)


def values_name(config: DQNConfig) -> str:
    """Return the name of the network of values in a checkpoint; in 1.0.0 the parameters of split last layers had another order."""
    return "split_values" if config.dueling or config.quantiles is not None else "values"


def actor(config: DDPGConfig, group: GroupSpec) -> Head:
    """Return an untrained deterministic policy, whose actions tanh limits to -1..1."""
    return Head(group.observation, group.action.components, config.network, nn.Tanh())


def squashed_actor(config: SACConfig, group: GroupSpec) -> Head:
    """Return an untrained policy of normal distributions, whose draws are squashed (`distributions.squashed`)."""
    return Head(group.observation, 2 * group.action.components, config.network)


def values(config: DQNConfig, group: GroupSpec) -> Acting:
    """Return the network of DQN; its action is the one of largest value."""
    return _acting(config, q_network(config, group), "values", values_name(config))


def actions(config: DDPGConfig, group: GroupSpec) -> Acting:
    """Return the actor of DDPG or TD3."""
    return _acting(config, actor(config, group), "actions", "actor")


def squashed(config: SACConfig, group: GroupSpec) -> Acting:
    """Return the actor of SAC; its best action is the tanh of the mean."""
    return _acting(config, squashed_actor(config, group), "squashed", "actor")


def _acting(config: OffPolicyConfig, module: ActingNetwork, gives: Gives, name: str) -> Acting:
    """Return what acts; `name`: of the network in a checkpoint, see `descent.Trained`."""
    tensors = {f"{name}/{key}": tensor for key, tensor in ({"parameters": flatten_parameters(module)} | buffers(module)).items()}
    if config.network.module is not None:
        return Acting(module, gives, [], tensors)
    remembering = [] if module.memory is None else parts(module.memory)
    layers = [*remembering, *module.policy_layers(), *([nn.Tanh()] if gives == "squashed" else [])]
    return Acting(module, gives, layers, tensors, carry_of(module.memory), config.network.sequence)
