"""A pixel in channel 0 of a 6 x 6 picture; the right action is the number of its quadrant. A pixel in channel 1 means nothing.

As kernel functions (`environment`), with the interface of Gymnasium (`Quadrants`, bytes with the channels last), and as a batch (`Batch`).
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.random import randint

SIDE = 6
STEPS = 8


class State(NamedTuple):
    cell: int32
    other: int32


def quadrant(cell):
    return 2 * (cell // SIDE >= SIDE // 2) + (cell % SIDE >= SIDE // 2)


def reset(rng):
    return State(randint(rng, 0, SIDE * SIDE), randint(rng, 1, SIDE * SIDE))


def step(s, action, rng):
    right = float32(1.0) if action == quadrant(s.cell) else float32(0.0)
    return State(randint(rng, 0, SIDE * SIDE), randint(rng, 1, SIDE * SIDE)), right, False


def observe(s, out):
    out[s.cell] = 1.0
    out[SIDE * SIDE + s.other] = 1.0


environment = single_agent(
    state=State, observation=Box((2, SIDE, SIDE)), action=Discrete(4), reset=reset, step=step, observe=observe, time_limit=STEPS
)


def quadrants() -> Any:
    """Return the class of Gymnasium's interface."""
    from gymnasium import spaces

    class Quadrants:
        observation_space = spaces.Box(0, 255, (SIDE, SIDE, 2), np.uint8)
        action_space = spaces.Discrete(4)

        def reset(self, seed: int | None = None) -> Any:
            if seed is not None:
                self.seed, self.count = seed, 0
            self.taken = 0
            return self._next(), {}

        def step(self, action: int) -> Any:
            reward = float(action == quadrant(self.cell))
            self.taken += 1
            return self._next(), reward, False, self.taken == STEPS, {}

        def get_state(self) -> np.ndarray:
            return np.array([self.seed, self.count, self.taken, self.cell])

        def set_state(self, state: np.ndarray) -> None:
            self.seed, self.count, self.taken, self.cell = (int(n) for n in state)

        def _next(self) -> np.ndarray:
            self.count += 1
            self.cell, other = (int(n) for n in np.random.default_rng((self.seed, self.count)).integers(SIDE * SIDE, size=2))
            picture = np.zeros((SIDE, SIDE, 2), np.uint8)
            picture[self.cell // SIDE, self.cell % SIDE, 0] = 255
            picture[other // SIDE, other % SIDE, 1] = 255
            return picture

    return Quadrants


class Batch:
    arrays: Any = torch
    observation_space: Any = Box((2, SIDE, SIDE))
    action_space: Any = Discrete(4)
    time_limit = STEPS

    def __init__(self, n_envs: int) -> None:
        self.n_envs = n_envs
        self.random = torch.Generator().manual_seed(n_envs)

    def reset(self, seed: int, mask: torch.Tensor) -> torch.Tensor:
        self.random.manual_seed(seed)
        return self._next()

    def step(self, actions: torch.Tensor) -> Any:
        row, column = self.cells[0] // SIDE, self.cells[0] % SIDE
        right = actions == 2 * (row >= SIDE // 2).int() + (column >= SIDE // 2).int()
        never = torch.zeros(self.n_envs, dtype=torch.bool)
        return self._next(), right.float(), never, never

    def _next(self) -> torch.Tensor:
        self.cells = torch.randint(SIDE * SIDE, (2, self.n_envs), generator=self.random)
        return torch.nn.functional.one_hot(self.cells.T, SIDE * SIDE).float().view(self.n_envs, 2, SIDE, SIDE)
