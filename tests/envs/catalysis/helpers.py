"""What the tests of catalysis share: where the published grids may lie, and engines."""

import math

import pytest

from tests.simulation.rollouts import make
from warprun import data
from warprun.config.registry import import_environment

MODULE = "warprun.envs.catalysis"
needs_grids = pytest.mark.skipif(
    not (data.folder("catalysis") / "en_array.npy").is_file(),
    reason="needs the published grids (warprun data catalysis)",
)


def environment(**options):
    return import_environment(MODULE, options)[0]


def engine(n_envs=4, horizon=8, params=None, seed=0, auto_reset=True, **options):
    made = environment(**options)
    return make(made, "catalysis", n_envs=n_envs, horizon=horizon, seed=seed, params=made.params(**(params or {})), auto_reset=auto_reset)


# The published environment once more, as plain Python over the published numbers: nothing here is shared with the package

MOVES = ((1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1))


class Reference:
    """One H atom; energies [x][y][z - z_lower]."""

    def __init__(self, energy, z_lower, nz, reference, start, goal, goal_reward):
        self.energy, self.z_lower, self.nz, self.reference = energy, z_lower, nz, reference
        self.start, self.goal, self.goal_reward = start, goal, goal_reward
        self.reset()

    def reset(self):
        self.cell, self.steps = self.start, 0

    def step(self, action):
        """Return reward, terminated, truncated."""
        nx, ny, layers = self.energy.shape
        x, y, z = (n + d for n, d in zip(self.cell, MOVES[action], strict=True))
        self.steps += 1
        if not self.z_lower <= z < self.z_lower + layers:
            reward = -1.0
        else:
            self.cell = (x % nx, y % ny, z)
            height = float(self.energy[self.cell[0], self.cell[1], z - self.z_lower])
            reward = min(0.0, max(-1.0, (self.reference - height) / 20.0))
            if self.cell == self.goal:
                return reward + self.goal_reward, True, False
        return reward, False, self.steps >= 500

    def observe(self):
        nx, ny, _ = self.energy.shape
        gap = math.dist(self.cell, self.goal) / math.dist(self.start, self.goal)
        return self.cell[0] / nx, self.cell[1] / ny, self.cell[2] / self.nz, gap
