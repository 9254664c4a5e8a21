"""Environments with the interface of Gymnasium that render a picture of one color: their number of steps, or of cut episodes."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

LENGTH = 7


class environment:
    """Counts its steps; an episode terminates after LENGTH of them, with `endless` never."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None, endless: bool = False, shape: tuple[int, ...] = (4, 6, 3)) -> None:
        self.render_mode, self.endless, self.shape = render_mode, endless, tuple(shape)
        self.count = 0

    def reset(self, seed: int | None = None) -> Any:
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, self.count == LENGTH and not self.endless, False, {}

    def render(self) -> Any:
        return np.full(self.shape, 10 * self.count, np.uint8) if self.render_mode == "rgb_array" else None

    def close(self) -> None: ...
