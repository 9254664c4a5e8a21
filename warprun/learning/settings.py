"""Settings that several agents share, and the settings of single groups. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Protocol, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.errors import UserError, did_you_mean
from warprun.renamed import new_name

ACTIVATIONS = ("tanh", "relu", "elu", "gelu", "silu")
OPTIMIZERS = ("adam", "rmsprop", "rmsprop_tf")
SHARED_BY_GROUPS = ("name", "horizon", "groups")
"""Settings that cannot differ between groups."""


@dataclass
class NetworkConfig:
    """The network that computes the policy's outputs and the value."""

    name: str = "mlp"
    """"mlp", a name given to `warprun.learning.networks.register`, or "module:Class"."""
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    """Sizes of the hidden layers."""
    activation: str = "tanh"
    """tanh, relu, elu, gelu or silu."""
    shared: bool = True
    """One trunk for policy and value; false: separate trunks."""
    orthogonal: bool = True
    """Initialise weights orthogonally and biases with 0; false: torch's default."""
    log_std_init: float = 0.0
    """Initial logarithm of the standard deviations of Box actions; they do not depend on the observation."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of a network of your own."""


@dataclass
class OptimizerConfig:
    """The optimizer."""

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
    """Settings that all on-policy agents have."""

    name: str = ""
    """Name of the agent."""
    horizon: int = 16
    """Steps of every environment between two updates."""
    learning_rate: float = 1e-3
    """Learning rate at the start."""
    learning_rate_end: float | None = None
    """Learning rate at the end of the run, reached linearly; null: constant."""
    gamma: float = 0.99
    """Discount factor per step."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation: 0 is the one-step advantage (most bias), 1 the Monte Carlo one (most variance)."""
    advantage: str = "gae"
    """How returns and advantages are computed: gae or nstep."""
    n_step: int = 5
    """Rewards in an n-step return before it bootstraps from the value."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    entropy_coef_end: float | None = None
    """Weight of the entropy bonus at the end of the run, reached linearly; null: constant."""
    value_coef: float = 0.5
    """Weight of the value loss, which each agent defines."""
    max_grad_norm: float | None = 0.5
    """A gradient with a larger norm is scaled down to this norm; null: no clipping."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How the gradient moves the parameters."""
    normalize_obs: bool = True
    """Normalize observations to running mean 0 and variance 1, and clip them at 10; `obs/clipped_share` is the clipped share."""
    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return, and subtract its running mean from values."""
    normalize_advantage: bool = True
    """Normalize the advantages of each gradient step to mean 0 and variance 1."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """The network of policy and value."""
    groups: dict[str, Any] = field(default_factory=dict)
    """Settings that differ for single groups, such as {planner: {entropy_coef: 0.5, network: {hidden: [32]}}}."""


@dataclass
class ReplayConfig:
    """Replay memory: the transitions that gradient steps draw from."""

    capacity: int = 100_000
    """Most transitions, of all actors, that are stored; new ones replace the oldest."""
    prioritized: bool = False
    """Draw transitions in proportion to their priority (their last temporal-difference error); false: uniformly."""
    alpha: float = 0.6
    """Exponent of the priorities: 0 draws uniformly, 1 in proportion to the error."""
    beta: float = 0.4
    """Exponent of the importance-sampling weights at the start: 0 corrects none of the bias of priorities, 1 all of it."""
    beta_end: float = 1.0
    """The exponent at the end of the run, reached linearly."""
    eps: float = 1e-6
    """Added to the error, so that every transition can be drawn."""


@dataclass
class LayersConfig:
    """Fully connected layers."""

    hidden: list[int] = field(default_factory=lambda: [64, 64])
    """Sizes of the hidden layers."""
    activation: str = "relu"
    """tanh, relu, elu, gelu or silu."""


@dataclass
class OffPolicyConfig:
    """Settings that all off-policy agents have."""

    name: str = ""
    """Name of the agent."""
    horizon: int = 1
    """Steps of every environment between two updates."""
    utd_ratio: float = 1.0
    """Gradient steps per environment step, for any number of environments: 0.01 is one gradient step per 100 environment steps."""
    learning_starts: int = 1000
    """Environment steps with random actions before the first gradient step."""
    batch_size: int = 256
    """Transitions in a gradient step."""
    learning_rate: float = 1e-3
    """Learning rate at the start."""
    learning_rate_end: float | None = None
    """Learning rate at the end of the run, reached linearly; null: constant."""
    gamma: float = 0.99
    """Discount factor per step."""
    n_step: int = 1
    """Rewards in an n-step target before it bootstraps from the value."""
    target_update_interval: int = 1
    """Gradient steps between two updates of the target networks."""
    tau: float = 0.005
    """Step size of an update of the target networks towards the trained ones: 1 copies them."""
    max_grad_norm: float | None = None
    """A gradient with a larger norm is scaled down to this norm; null: no clipping."""
    normalize_obs: bool = False
    """Normalize observations to running mean 0 and variance 1, and clip them at 10; `obs/clipped_share` is the clipped share."""
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(eps=1e-8))
    """How the gradient moves the parameters."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Replay memory."""
    network: LayersConfig = field(default_factory=LayersConfig)
    """The hidden layers of every network."""
    groups: dict[str, Any] = field(default_factory=dict)
    """Settings that differ for single groups, such as {planner: {gamma: 0.9, network: {hidden: [32]}}}."""


class AgentConfig(Protocol):
    """The fields that the settings of every agent have; they are a dataclass."""

    name: str
    """Name of the agent."""
    horizon: int
    """Steps of every environment between two updates."""
    groups: dict[str, Any]
    """Settings that differ for single groups."""


C = TypeVar("C", bound=AgentConfig)


def group_config(config: C, group_name: str) -> C:
    """Return the settings of one group: `config` with the changes in `config.groups[group_name]`."""
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


def _check_keys(settings: object, overrides: object, key: str) -> None:
    known = list(vars(settings))
    if not isinstance(overrides, Mapping):
        raise UserError(f"{key}={overrides!r}: give settings, such as {key}.{known[0]}=...")
    for name, value in overrides.items():
        new = None if name in known else new_name(f"agent.{name}", known)
        if new:
            raise UserError(f"{key}.{name} is now {key}.{new.removeprefix('agent.')}")
        if name not in known:
            raise UserError(f"{key}.{name}: there is no such setting; {did_you_mean(name, known)}")
        if is_dataclass(getattr(settings, name)):
            _check_keys(getattr(settings, name), value, f"{key}.{name}")
