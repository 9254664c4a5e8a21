"""An environment whose step sleeps for 20 ms, for scripts/actors_speed.py."""

import time
from typing import Any

import gymnasium
import numpy as np


class Sleepy(gymnasium.Env[np.ndarray, np.int64]):
    """Nothing happens in it; episodes have five steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(0.02)
        self.steps += 1
        return np.full(4, 0.1 * self.steps, np.float32), 1.0, self.steps == 5, False, {}


environment = Sleepy
