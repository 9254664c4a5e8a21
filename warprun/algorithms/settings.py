"""Settings of the agents that warprun ships, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from warprun.errors import UserError
from warprun.learning.settings.agent import Requirements
from warprun.learning.settings.checks import at_least, finite, not_negative, one_of, positive, within
from warprun.learning.settings.networks import HIDDEN, LayersConfig
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.learning.settings.on_policy import OnPolicyConfig
from warprun.spec import Box, Discrete, GroupSpec, PolicyKind

LOWEST_RATE = 1e-5
"""Lowest learning rate that `desired_kl` leads to, unless `learning_rate` is lower; that of rsl_rl."""
MOST_QUANTILES = 1000
"""More than five times as many as the authors use."""
NOISES = ("gaussian", "ou")


@dataclass
class A2CConfig(OnPolicyConfig):
    """Advantage actor-critic: one gradient step for each rollout."""

    one_gradient: ClassVar[bool] = True

    name: str = "a2c"
    learning_rate: float = 3e-3
    """Learning rate at the start; high, because there is one gradient step for all environments."""
    value_coef: float = 0.5
    """Weight of the value loss, the mean of (V - R)^2: as in OpenAI Baselines' a2c and Stable-Baselines3. PPO's loss is half of that."""


@dataclass
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimisation: several epochs of minibatches for each rollout."""

    name: str = "ppo"
    epochs: int = 4
    """Passes over the rollout in an update."""
    minibatches: int = 4
    """Minibatches in an epoch; their sizes differ by one at most."""
    clip: float = 0.2
    """Clip range of the probability ratio around 1: beyond it the gradient is 0."""
    clip_value: float | None = None
    """Clip range of the value around the rollout's: beyond it the gradient is 0; null: no clipping."""
    value_coef: float = 0.5
    """Weight of the value loss, half the mean of (V - R)^2: as in OpenAI Baselines' ppo2; Stable-Baselines3's PPO and A2C have no half."""
    target_kl: float | None = None
    """An update stops at the first minibatch whose approximate KL divergence from the rollout's policy is above this; null: never."""
    desired_kl: float | None = None
    """After each update the learning rate rises or falls to bring `loss/approx_kl` near this; null: it follows its schedule."""
    learning_rate_max: float = 1e-2
    """Highest learning rate that `desired_kl` leads to, unless `learning_rate` is higher."""

    def check(self, key: str) -> None:
        super().check(key)
        at_least(self, key, 1, "epochs", "minibatches")
        positive(self, key, "clip", "clip_value", "target_kl", "desired_kl", "learning_rate_max")
        if self.desired_kl is not None and self.epochs * self.minibatches == 1:
            raise UserError(f"{key}.desired_kl={self.desired_kl}: one gradient step has no divergence yet; raise epochs or minibatches")
        if self.desired_kl is not None and self.target_kl is not None and self.target_kl < 2.0 * self.desired_kl:
            limit = f"{key}.target_kl={self.target_kl} ends updates before"
            raise UserError(f"{key}.desired_kl={self.desired_kl}: {limit} the learning rate would fall; write null for one of them")
        if self.desired_kl is not None and self.learning_rate_end is not None:
            fixed = f"{key}.learning_rate_end={self.learning_rate_end}"
            raise UserError(f"{fixed}: {key}.desired_kl={self.desired_kl} sets the learning rate; write null for one of them")

    def learning_rates(self) -> tuple[float, float]:
        if self.desired_kl is None:
            return super().learning_rates()
        return min(LOWEST_RATE, self.learning_rate), max(self.learning_rate_max, self.learning_rate)

    @property
    def adapts_learning_rate(self) -> bool:
        return self.desired_kl is not None

    def passes(self) -> int:
        return self.epochs

    def steps_per_pass(self) -> int:
        return self.minibatches

    def resized(self, times: float) -> Self:
        """Return the settings for `times` as many environments: with so many minibatches that their rows stay as they are."""
        groups = {
            name: own | ({"minibatches": max(1, round(own["minibatches"] * times))} if "minibatches" in own else {})
            for name, own in self.groups.items()
        }
        return replace(self, minibatches=max(1, round(self.minibatches * times)), groups=groups)


@dataclass
class DQNConfig(OffPolicyConfig):
    """Deep Q-network."""

    acting: ClassVar[str] = "warprun.algorithms.acting:values"
    requirements: ClassVar[Requirements] = Requirements((Discrete,), masks=False, leaving=False)

    name: str = "dqn"
    batch_size: int = 64
    target_update_interval: int = 250
    tau: float = 1.0
    max_grad_norm: float | None = 10.0
    double: bool = True
    """The trained network selects the next action, the target network evaluates it; false: the target network does both."""
    dueling: bool = False
    """The value of the state plus an advantage for each action; false: one layer for the values of all actions."""
    quantiles: int | None = None
    """Quantiles of the return that are learned of each action (QR-DQN); null: the mean alone."""
    value_rescaling: float | None = None
    """The network gives h(Q), h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x with this eps (R2D2: 0.001); null: Q itself."""
    epsilon_start: float = 1.0
    """Share of random actions at the start."""
    epsilon_end: float = 0.05
    """Share of random actions after `exploration_fraction` of the run, reached linearly."""
    exploration_fraction: float = 0.2
    """Part of the run in which epsilon falls."""

    def check(self, key: str) -> None:
        super().check(key)
        within(self, key, 0, 1, "epsilon_start", "epsilon_end", "exploration_fraction")
        within(self, key, 1, MOST_QUANTILES, "quantiles")
        not_negative(self, key, "value_rescaling")
        if self.quantiles is not None and self.value_rescaling is not None:
            rescaled = f"{key}.value_rescaling={self.value_rescaling}"
            raise UserError(f"{rescaled} with {key}.quantiles: the mean of rescaled quantiles is no rescaled value; leave one of them out")
        splits = f"{key}.dueling=true" if self.dueling else f"{key}.quantiles={self.quantiles}" if self.quantiles is not None else ""
        if splits and self.network.module is not None:
            raise UserError(f"{splits} splits the last layer in two, so it is not for {key}.network.module; leave one of them out")

    def trained_networks(self, group: GroupSpec) -> list[tuple[int, int]]:
        outputs = self.acting_outputs(group) * (1 + (self.quantiles or 0)) + self.dueling
        return [(self.network.layout(group.observation).outputs, outputs)]

    def loss_rows(self, group: GroupSpec) -> int:
        return 3 + 2 * (self.quantiles or 0)

    def loss_numbers(self) -> int:
        """Return how many numbers the loss of a transition has: one for each pair of quantiles."""
        return (self.quantiles or 0) ** 2


@dataclass
class DDPGConfig(OffPolicyConfig):
    """Deep deterministic policy gradient: TD3 with one critic, without delay and without smoothing."""

    acting: ClassVar[str] = "warprun.algorithms.acting:actions"
    requirements: ClassVar[Requirements] = Requirements((Box,), bounded=True, leaving=False)
    critics: ClassVar[int] = 1

    name: str = "ddpg"
    network: LayersConfig = field(default_factory=lambda: LayersConfig(hidden=list(HIDDEN)))
    """The networks. `hidden` is [64,64] with every encoder: without a layer, values would be linear in the action."""
    actor_learning_rate: float = 1e-3
    """Learning rate of the actor; it falls as `learning_rate` does."""
    noise: str = "gaussian"
    """gaussian (independent in every step) or ou (Ornstein-Uhlenbeck: correlated in time, 0 at the start of an episode)."""
    noise_std: float = 0.1
    """Standard deviation of the noise of a step; actions are within -1..1."""
    noise_theta: float = 0.15
    """Part of the ou noise that decays in a step."""

    def check(self, key: str) -> None:
        super().check(key)
        positive(self, key, "actor_learning_rate")
        not_negative(self, key, "noise_std")
        within(self, key, 0, 1, "noise_theta")
        one_of(self, key, "noise", NOISES)


@dataclass
class TD3Config(DDPGConfig):
    """Twin delayed deep deterministic policy gradient."""

    critics: ClassVar[int] = 2

    name: str = "td3"
    policy_delay: int = 2
    """Gradient steps of the critics for one gradient step of the actor and one update of the targets."""
    target_policy_noise: float = 0.2
    """Standard deviation of the noise on the target's actions."""
    target_noise_clip: float = 0.5
    """Largest noise on the target's actions."""

    def check(self, key: str) -> None:
        super().check(key)
        at_least(self, key, 1, "policy_delay")
        not_negative(self, key, "target_policy_noise", "target_noise_clip")


@dataclass
class SACConfig(OffPolicyConfig):
    """Soft actor-critic: the policy maximises its return and its entropy."""

    acting: ClassVar[str] = "warprun.algorithms.acting:squashed"
    policies: ClassVar[PolicyKind] = "squashed"
    requirements: ClassVar[Requirements] = Requirements((Box,), bounded=True, leaving=False)
    critics: ClassVar[int] = 2

    name: str = "sac"
    network: LayersConfig = field(default_factory=lambda: LayersConfig(hidden=list(HIDDEN)))
    """The networks. `hidden` is [64,64] with every encoder: without a layer, values would be linear in the action."""
    learning_rate: float = 3e-4
    """Learning rate of the critics at the start."""
    actor_learning_rate: float = 3e-4
    """Learning rate of the actor; it falls as that of the critics does."""
    temperature: float = 1.0
    """Temperature at the start: the weight of the entropy, in units of rewards."""
    temperature_learning_rate: float | None = 3e-4
    """Learning rate of the temperature's logarithm, which falls as that of the critics does; null: the temperature is constant."""
    target_entropy: float | None = None
    """Entropy that the temperature brings the policy to, in nats, of actions within -1..1; null: minus the components of an action."""
    noise_theta: float = 1.0
    """Part of the noise of the policy's draws that decays in a step: 1 draws independently, less correlates consecutive draws."""

    def check(self, key: str) -> None:
        super().check(key)
        positive(self, key, "actor_learning_rate", "temperature", "temperature_learning_rate")
        finite(self, key, "target_entropy")
        within(self, key, 0, 1, "noise_theta")
        positive(self, key, "noise_theta")

    def acting_outputs(self, group: GroupSpec) -> int:
        """Return the numbers that the acting network gives for one actor: means and log standard deviations."""
        return group.action.outputs
