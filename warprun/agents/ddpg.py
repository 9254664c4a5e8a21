"""Deep deterministic policy gradient: Lillicrap et al. 2016. What it does is in `deterministic`, with one critic and nothing delayed."""

from __future__ import annotations

from warprun.agents.config import DDPGConfig
from warprun.agents.deterministic import DeterministicLearner
from warprun.agents.off_policy import OffPolicyAgent


class DDPG(OffPolicyAgent[DDPGConfig]):
    """An actor that climbs the value of one critic."""

    Config = DDPGConfig
    Learner = DeterministicLearner
