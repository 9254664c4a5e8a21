"""Twin delayed DDPG: Fujimoto et al. 2018. What it does is in `deterministic`: two critics, a delayed actor, smoothed targets."""

from __future__ import annotations

from warprun.algorithms.deterministic import DeterministicLearner
from warprun.learning.off_policy import OffPolicyAgent
from warprun.learning.settings import TD3Config


class TD3(OffPolicyAgent[TD3Config]):
    """An actor that climbs the value of the first of two critics."""

    Config = TD3Config
    Learner = DeterministicLearner
