"""Pinball that says of every step that it was truncated, in the processes that HASTY names: VARIABLE=VALUE, or `evaluation`."""

from __future__ import annotations

import os

from tests.environments import pinball
from warprun.simulation.device import Device
from warprun.simulation.exploration import Exploration
from warprun.simulation.simulator import Act
from warprun.simulation.trajectory import Trajectory


class Hasty(pinball.Pinball):
    def collect(self, act: Act, greedy: bool = False) -> Trajectory:
        """Roll out; the last environment is truncated too often."""
        trajectory = super().collect(act, greedy)
        variable, _, value = os.environ["HASTY"].partition("=")
        if greedy if variable == "evaluation" else os.environ.get(variable) == value:
            trajectory.truncated[:, -1] = True
        return trajectory


class Game(pinball.Game):
    def make_simulator(
        self, *, n_envs: int, first_env: int, horizon: int, seed: int, device: Device, exploration: Exploration | None
    ) -> Hasty:
        return Hasty(n_envs, horizon, seed, device)


environment = Game()
