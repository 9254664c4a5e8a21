"""The settings of the agents, and overrides per group; `checks` says what is wrong with them. Light to import: no torch."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.environment import Box, Discrete, Environment
from warprun.errors import UserError

ACTIVATIONS = ("tanh", "relu", "elu", "gelu", "silu")
OPTIMIZERS = ("adam", "rmsprop", "rmsprop_tf")
ADVANTAGES = ("gae", "nstep")
NOISES = ("gaussian", "ou")
SHARED_BY_GROUPS = ("name", "horizon", "groups")
"""Settings that one group cannot have for itself."""


@dataclass
class NetworkConfig:
    """A network that gives the policy's outputs and the value."""

    name: str = "mlp"
    """"mlp", a name given to `warprun.learning.networks.register`, or "module:Class"."""
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
    """Weight of the value loss; an agent says what that is."""
    max_grad_norm: float | None = 0.5
    """The gradient is scaled down to this norm; null: never."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How the gradient moves the parameters."""
    normalize_obs: bool = True
    """Give the network observations of running mean 0 and variance 1, clipped at 10; `obs/clipped_share` says how many are."""
    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return, and count values from its running mean."""
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
    value_coef: float = 0.5
    """Weight of the value loss, the mean of (V - R)^2: as in OpenAI Baselines' a2c and Stable-Baselines3. PPO's loss is half of that."""


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
    value_coef: float = 0.5
    """Weight of the value loss, half the mean of (V - R)^2: as in OpenAI Baselines' ppo2; Stable-Baselines3's PPO and A2C have no half."""
    target_kl: float | None = None
    """An update stops at the first minibatch whose approximate KL divergence from the rollout's policy is above this; null: never."""


@dataclass
class ReplayConfig:
    """The transitions that are kept to learn from."""

    capacity: int = 100_000
    """Transitions of all actors that are kept; the oldest go first."""
    prioritized: bool = False
    """Draw transitions by their last temporal-difference error; false: all alike."""
    alpha: float = 0.6
    """How much the error counts: 0 not at all, 1 in proportion."""
    beta: float = 0.4
    """How much of the bias of that the weights take back at the start: 0 nothing, 1 all."""
    beta_end: float = 1.0
    """The same at the end of the run, reached linearly."""
    eps: float = 1e-6
    """Added to the error, so that no transition is lost for ever."""


@dataclass
class LayersConfig:
    """Fully connected layers."""

    hidden: list[int] = field(default_factory=lambda: [64, 64])
    """Sizes of the hidden layers."""
    activation: str = "relu"
    """tanh, relu, elu, gelu or silu."""


@dataclass
class OffPolicyConfig:
    """What DQN, DDPG and TD3 have in common."""

    name: str = ""
    """Name of the agent."""
    horizon: int = 1
    """Steps of every environment between two updates."""
    gradient_steps: float = 1.0
    """Gradient steps for each environment step, whatever the number of environments: 0.01 is one for a hundred."""
    warmup: int = 1000
    """Environment steps with random actions before the first gradient step."""
    batch_size: int = 256
    """Transitions in a gradient step."""
    learning_rate: float = 1e-3
    """Learning rate at the start."""
    learning_rate_end: float | None = None
    """Learning rate at the end of the run, reached linearly; null: constant."""
    gamma: float = 0.99
    """Discount of a reward one step later."""
    n_step: int = 1
    """Rewards that a target sums up before the value takes over."""
    target_every: int = 1
    """Gradient steps between two moves of the target networks."""
    target_tau: float = 0.005
    """How far they move towards the trained ones: 1 copies them."""
    max_grad_norm: float | None = None
    """Gradients are scaled down to this norm; null: never."""
    normalize_obs: bool = False
    """Give the networks observations of running mean 0 and variance 1, clipped at 10; `obs/clipped_share` says how many are."""
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(eps=1e-8))
    """How the gradient moves the parameters."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """The transitions that are kept."""
    network: LayersConfig = field(default_factory=LayersConfig)
    """The hidden layers of every network."""
    groups: dict[str, Any] = field(default_factory=dict)
    """Other settings for single groups, such as {planner: {gamma: 0.9, network: {hidden: [32]}}}."""


@dataclass
class DQNConfig(OffPolicyConfig):
    """Deep Q-network."""

    SPACES: ClassVar[tuple[type, ...]] = (Discrete,)
    MASKS: ClassVar[bool] = False

    name: str = "dqn"
    """Name of the agent."""
    batch_size: int = 64
    """Transitions in a gradient step."""
    target_every: int = 250
    """Gradient steps between two moves of the target network."""
    target_tau: float = 1.0
    """How far it moves towards the trained one: 1 copies it."""
    max_grad_norm: float | None = 10.0
    """The gradient is scaled down to this norm; null: never."""
    double: bool = True
    """The trained network chooses the next action, the target network says what it is worth; false: the target network does both."""
    dueling: bool = False
    """A value of the state and advantages of the actions, which add up; false: one layer for all."""
    epsilon: float = 1.0
    """Share of random actions at the start."""
    epsilon_end: float = 0.05
    """The same once `epsilon_fraction` of the run is over, reached linearly."""
    epsilon_fraction: float = 0.2
    """Part of the run in which epsilon falls."""


@dataclass
class DDPGConfig(OffPolicyConfig):
    """Deep deterministic policy gradient: TD3 with one critic, without delay and without smoothing."""

    SPACES: ClassVar[tuple[type, ...]] = (Box,)
    NEEDS_BOUNDS: ClassVar[bool] = True
    critics: ClassVar[int] = 1
    policy_delay: ClassVar[int] = 1
    smoothing_std: ClassVar[float] = 0.0
    smoothing_clip: ClassVar[float] = 0.0

    name: str = "ddpg"
    """Name of the agent."""
    actor_learning_rate: float = 1e-3
    """Learning rate of the actor; it falls as that of the critic does."""
    noise: str = "gaussian"
    """gaussian (each step for itself) or ou (Ornstein-Uhlenbeck: it drifts, and begins at 0 with the episode)."""
    noise_std: float = 0.1
    """Standard deviation of the noise of a step; actions are within -1..1."""
    noise_theta: float = 0.15
    """Part of the ou noise that is lost in a step."""


@dataclass
class TD3Config(OffPolicyConfig):
    """Twin delayed deep deterministic policy gradient."""

    SPACES: ClassVar[tuple[type, ...]] = (Box,)
    NEEDS_BOUNDS: ClassVar[bool] = True
    critics: ClassVar[int] = 2

    name: str = "td3"
    """Name of the agent."""
    actor_learning_rate: float = 1e-3
    """Learning rate of the actor; it falls as that of the critics does."""
    noise: str = "gaussian"
    """gaussian (each step for itself) or ou (Ornstein-Uhlenbeck: it drifts, and begins at 0 with the episode)."""
    noise_std: float = 0.1
    """Standard deviation of the noise of a step; actions are within -1..1."""
    noise_theta: float = 0.15
    """Part of the ou noise that is lost in a step."""
    policy_delay: int = 2
    """Gradient steps of the critics for each of the actor, and of the targets."""
    smoothing_std: float = 0.2
    """Standard deviation of the noise on the target's actions."""
    smoothing_clip: float = 0.5
    """Largest noise on the target's actions."""


AgentConfig = OnPolicyConfig | OffPolicyConfig
C = TypeVar("C", bound=AgentConfig)


def replay_bytes(config: AgentConfig, environment: Environment) -> int:
    """Return the memory that the transitions of all groups take: as `warprun.learning.replay.replay` allocates it, or less by a little."""
    if not isinstance(config, OffPolicyConfig):
        return 0
    total = 0
    for group in environment.groups:
        replay = group_config(config, group.name).replay
        row = 4 * (2 * group.observation.size + group.action.components + 1) + 1
        total += replay.capacity * (row + (4 if replay.prioritized else 0))
    return total


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
            raise UserError(f"{key}.{name}: there is no such setting; {did_you_mean(name, known)}")
        if is_dataclass(getattr(settings, name)):
            _check_keys(getattr(settings, name), value, f"{key}.{name}")


def did_you_mean(name: Any, known: list[str]) -> str:
    """Return how a message ends that refuses `name`: with the nearest of the `known` names, or with all of them."""
    near = difflib.get_close_matches(str(name), known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known)}"
