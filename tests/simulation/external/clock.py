"""Walks with the interface of Gymnasium; `Saved` can be continued in the middle of an episode."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary

SPACES = {"discrete": Discrete(2), "binary": MultiBinary(2), "box": Box(-1.0, 2.0, (1,), np.float32)}


class Walk:
    """Actions move a walker; a random wind blows. The episode ends at 2 or -2. All random numbers follow from seed and count."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, actions: str = "discrete", masked: bool = False) -> None:
        self.action_space = SPACES[actions]
        self.masked = masked
        self.seed, self.count, self.place = 0, 0, 0.0

    def reset(self, seed: int | None = None) -> Any:
        if seed is not None:
            self.seed, self.count = seed, 0
        self.place = float(self._draw())
        return self._obs(), self._info()

    def step(self, action: Any) -> Any:
        self.place += 0.2 * float(np.mean(action)) - 0.1 + 0.3 * float(self._draw())
        return self._obs(), 1.0 - abs(self.place), abs(self.place) > 2.0, False, self._info()

    def close(self) -> None:
        pass

    def _draw(self) -> float:
        self.count += 1
        return float(np.random.default_rng((self.seed, self.count)).uniform(-1.0, 1.0))

    def _obs(self) -> np.ndarray:
        return np.array([self.place, 1.0], np.float32)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.place < 0.5, self.place > -0.5], np.int8)} if self.masked else {}


class Saved(Walk):
    def get_state(self) -> np.ndarray:
        return np.array([self.seed, self.count, self.place])

    def set_state(self, state: np.ndarray) -> None:
        self.seed, self.count, self.place = int(state[0]), int(state[1]), float(state[2])
