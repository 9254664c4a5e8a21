"""Deep deterministic policy gradient (Lillicrap et al. 2016): TD3 with one critic, without delay and without smoothing."""

from __future__ import annotations

from dataclasses import dataclass, fields

from warprun.algorithms.td3 import TD3Config, TD3Learner, check_exploration
from warprun.learning.interfaces import Context, Requirements
from warprun.learning.off_policy import OffPolicyAgent
from warprun.learning.settings import OffPolicyConfig
from warprun.spec import Box, GroupSpec


@dataclass
class DDPGConfig(OffPolicyConfig):
    """Deep deterministic policy gradient: TD3 with one critic, without delay and without smoothing."""

    name: str = "ddpg"
    """Name of the agent."""
    actor_learning_rate: float = 1e-3
    """Learning rate of the actor; it falls as that of the critic does."""
    noise: str = "gaussian"
    """gaussian (independent in every step) or ou (Ornstein-Uhlenbeck: correlated in time, 0 at the start of an episode)."""
    noise_std: float = 0.1
    """Standard deviation of the noise of a step; actions are within -1..1."""
    noise_theta: float = 0.15
    """Part of the ou noise that decays in a step."""


def as_td3(config: DDPGConfig) -> TD3Config:
    """Return the settings of TD3 that make it DDPG."""
    shared = {field.name: getattr(config, field.name) for field in fields(DDPGConfig)}
    return TD3Config(**shared, policy_delay=1, target_policy_noise=0.0, target_noise_clip=0.0)


class DDPG(OffPolicyAgent[DDPGConfig]):
    """An actor that follows the gradient of one critic."""

    Config = DDPGConfig
    requirements = Requirements((Box,), bounded=True)

    @classmethod
    def check_settings(cls, config: DDPGConfig, key: str) -> None:
        """Raise UserError for a value that cannot work."""
        super().check_settings(config, key)
        check_exploration(config, key)

    @classmethod
    def make_learner(cls, config: DDPGConfig, group: GroupSpec, context: Context, seed: int) -> TD3Learner:
        """Return the learner of one group."""
        return TD3Learner(as_td3(config), group, context, seed, n_critics=1)
