"""The settings of the agents, their checks, and overrides per group. Light to import: no torch."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.errors import UserError

ACTIVATIONS = ("tanh", "relu", "elu", "gelu", "silu")
OPTIMIZERS = ("adam", "rmsprop", "rmsprop_tf")
ADVANTAGES = ("gae", "nstep")
SHARED_BY_GROUPS = ("name", "horizon", "groups")
"""Settings that one group cannot have for itself."""


@dataclass
class NetworkConfig:
    """A network that gives the policy's outputs and the value."""

    name: str = "mlp"
    """"mlp", a name given to `warprun.agents.networks.register`, or "module:Class"."""
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    """Sizes of the hidden layers."""
    activation: str = "tanh"
    """tanh, relu, elu, gelu or silu."""
    shared: bool = True
    """One trunk for policy and value; false: a trunk each."""
    orthogonal: bool = True
    """Orthogonal weights and zero biases at the start; false: torch's default."""
    log_std_init: float = 0.0
    """First logarithm of the standard deviations of Box actions, which do not depend on the observation."""
    options: dict[str, Any] = field(default_factory=dict)
    """Whatever a network of your own wants to be told."""


@dataclass
class OptimizerConfig:
    """How the gradient moves the parameters."""

    name: str = "adam"
    """adam, rmsprop, or rmsprop_tf (eps inside the root, mean square starts at 1, as in TensorFlow and Stable-Baselines' A2C)."""
    beta1: float = 0.9
    """Adam: decay of the mean of the gradients."""
    beta2: float = 0.999
    """Adam: decay of the mean of their squares."""
    alpha: float = 0.99
    """RMSprop: decay of the mean of the squared gradients."""
    eps: float = 1e-5
    """Added to the root of the mean square."""


@dataclass
class OnPolicyConfig:
    """What A2C and PPO have in common."""

    name: str = ""
    """Name of the agent."""
    horizon: int = 16
    """Steps of every environment between two updates."""
    learning_rate: float = 1e-3
    """Learning rate at the start."""
    learning_rate_end: float | None = None
    """Learning rate at the end of the run, reached linearly; null: constant."""
    gamma: float = 0.99
    """Discount of a reward one step later."""
    gae_lambda: float = 0.95
    """Generalised advantage estimation: 0 trusts the value, 1 trusts the rewards."""
    advantage: str = "gae"
    """gae or nstep."""
    n_step: int = 5
    """Rewards that an nstep return sums up before the value takes over."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    entropy_coef_end: float | None = None
    """Its weight at the end of the run, reached linearly; null: constant."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float | None = 0.5
    """The gradient is scaled down to this norm; null: never."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How the gradient moves the parameters."""
    normalize_obs: bool = True
    """Give the network observations of running mean 0 and variance 1, clipped at 10."""
    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return, clipped at 10."""
    normalize_advantage: bool = True
    """Give the advantages of each gradient step mean 0 and variance 1."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """The network of policy and value."""
    groups: dict[str, Any] = field(default_factory=dict)
    """Other settings for single groups, such as {planner: {entropy_coef: 0.5, network: {hidden: [32]}}}."""


@dataclass
class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic: one gradient step for each rollout."""

    name: str = "a2c"
    """Name of the agent."""
    learning_rate: float = 3e-3
    """Learning rate at the start; an update sees all environments at once, so it is high."""


@dataclass
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation: several epochs of minibatches for each rollout."""

    name: str = "ppo"
    """Name of the agent."""
    epochs: int = 4
    """Times that an update goes through the rollout."""
    minibatches: int = 4
    """Number of minibatches in an epoch; their sizes differ by one at most."""
    clip: float = 0.2
    """How far the probability ratio may leave 1 before its gradient stops."""
    clip_value: float | None = None
    """How far the value may move from the rollout's before its gradient stops; null: any distance."""
    target_kl: float | None = None
    """An update stops at the first minibatch whose approximate KL divergence from the rollout's policy is above this; null: never."""


C = TypeVar("C", bound=OnPolicyConfig)


def check(config: OnPolicyConfig) -> None:
    """Raise a UserError, with the key as the user types it, for a value that cannot work, in a group's overrides too."""
    _check(config, "agent")
    for name in config.groups:
        _check(group_config(config, name), f"agent.groups.{name}")


def check_groups(config: OnPolicyConfig, names: Iterable[str]) -> None:
    """Raise a UserError if `agent.groups` names a group that the environment, with groups `names`, does not have."""
    names = list(names)
    for name in config.groups:
        if name not in names:
            raise UserError(f"agent.groups.{name}: the environment has no such group; {_nearest(name, names)}")


def group_config(config: C, group_name: str) -> C:
    """Return the settings of one group: `config` with what `config.groups[group_name]` says otherwise."""
    overrides = config.groups.get(group_name, {})
    key = f"agent.groups.{group_name}"
    _check_keys(config, overrides, key)
    for name in SHARED_BY_GROUPS:
        if name in overrides:
            raise UserError(f"{key}.{name}: all groups share agent.{name}")
    try:
        merged = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(config), overrides))
    except OmegaConfBaseException as error:
        raise UserError(f"{key}.{error.full_key}: {str(error.msg or error).splitlines()[0]}") from error
    assert isinstance(merged, type(config))
    return merged


def _check_keys(settings: Any, overrides: Any, key: str) -> None:
    if not hasattr(overrides, "items"):
        raise UserError(f"{key}={overrides!r}: give settings, such as {key}.{fields(settings)[0].name}=...")
    known = [f.name for f in fields(settings)]
    for name, value in overrides.items():
        if name not in known:
            raise UserError(f"{key}.{name}: there is no such setting; {_nearest(name, known)}")
        if is_dataclass(getattr(settings, name)):
            _check_keys(getattr(settings, name), value, f"{key}.{name}")


def _nearest(name: Any, known: list[str]) -> str:
    near = difflib.get_close_matches(str(name), known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known)}"


def _check(config: OnPolicyConfig, key: str) -> None:
    _at_least(config, key, 1, "horizon", "n_step")
    _within(config, key, 0, 1, "gamma", "gae_lambda")
    _positive(config, key, "learning_rate", "max_grad_norm")
    _not_negative(config, key, "learning_rate_end", "entropy_coef", "entropy_coef_end", "value_coef")
    _one_of(config, key, "advantage", ADVANTAGES)
    _one_of(config.optimizer, f"{key}.optimizer", "name", OPTIMIZERS)
    _within(config.optimizer, f"{key}.optimizer", 0, 1, "beta1", "beta2", "alpha")
    _positive(config.optimizer, f"{key}.optimizer", "eps")
    _check_network(config.network, f"{key}.network")
    if isinstance(config, PPOConfig):
        _at_least(config, key, 1, "epochs", "minibatches")
        _positive(config, key, "clip", "clip_value", "target_kl")


def _check_network(network: NetworkConfig, key: str) -> None:
    sizes = network.hidden
    if not sizes or any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
        raise UserError(f"{key}.hidden={sizes}: give one size of at least 1 for each hidden layer, such as [64,64]")
    _one_of(network, key, "activation", ACTIVATIONS)
    if not math.isfinite(network.log_std_init):
        raise UserError(f"{key}.log_std_init={network.log_std_init}: it must be finite")


def _at_least(config: Any, key: str, least: int, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= least:
            raise UserError(f"{key}.{name}={getattr(config, name)}: it must be at least {least}")


def _within(config: Any, key: str, low: float, high: float, *names: str) -> None:
    for name in names:
        if not low <= getattr(config, name) <= high:
            raise UserError(f"{key}.{name}={getattr(config, name)}: it must lie between {low} and {high}")


def _positive(config: Any, key: str, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{key}.{name}={value}: it must be above 0 and finite")


def _not_negative(config: Any, key: str, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 <= value < math.inf:
            raise UserError(f"{key}.{name}={value}: it must be 0 or more, and finite")


def _one_of(config: Any, key: str, name: str, known: tuple[str, ...]) -> None:
    value = getattr(config, name)
    if value not in known:
        raise UserError(f"{key}.{name}={value}: unknown; {_nearest(value, list(known))}")
