"""An environment with the interface of Gymnasium whose choices are not counted from 0; its reward is the first number that `step` got."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

drawn: list[object] = []
"""Actions that `draw` got."""


class environment:
    observation_space = Box(-100.0, 100.0, (1,), np.float32)

    def __init__(self, multi: bool = False) -> None:
        self.action_space = MultiDiscrete([2, 3], start=[5, -1]) if multi else Discrete(3, start=10)

    def reset(self, seed: int | None = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        first = int(np.ravel(action)[0])
        return np.array([first], np.float32), float(first), False, False, {}


def draw(axes: object, action: object) -> None:
    drawn.append(action)
