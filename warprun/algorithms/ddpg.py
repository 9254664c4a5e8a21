"""Deep deterministic policy gradient (Lillicrap et al. 2016): TD3 with one critic, without delay and without smoothing."""

from __future__ import annotations

from dataclasses import fields

from warprun.algorithms.settings import DDPGConfig, TD3Config
from warprun.algorithms.td3 import TD3Learner
from warprun.learning.interfaces import Context
from warprun.learning.off_policy import OffPolicyAgent
from warprun.spec import GroupSpec


def as_td3(config: DDPGConfig) -> TD3Config:
    """Return the settings of TD3 that make it DDPG."""
    shared = {field.name: getattr(config, field.name) for field in fields(DDPGConfig)}
    return TD3Config(**shared, policy_delay=1, target_policy_noise=0.0, target_noise_clip=0.0)


class DDPG(OffPolicyAgent[DDPGConfig]):
    """An actor that follows the gradient of one critic."""

    Config = DDPGConfig

    @classmethod
    def make_learner(cls, config: DDPGConfig, group: GroupSpec, context: Context, seed: int) -> TD3Learner:
        """Return the learner of one group."""
        return TD3Learner(as_td3(config), group, context, seed, n_critics=1)
