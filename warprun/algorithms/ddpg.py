"""Deep deterministic policy gradient: Lillicrap et al. 2016. What it does is in `deterministic`, with one critic and nothing delayed."""

from __future__ import annotations

from warprun.algorithms.deterministic import DeterministicLearner
from warprun.learning.off_policy import OffPolicyAgent
from warprun.learning.settings import DDPGConfig


class DDPG(OffPolicyAgent[DDPGConfig]):
    """An actor that climbs the value of one critic."""

    Config = DDPGConfig
    Learner = DeterministicLearner
