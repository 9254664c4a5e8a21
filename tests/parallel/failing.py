"""Pinball of which one rank fails in a way of its choice once it has rolled out for a while: FAILS=RANK:HOW."""

import os
import signal
import time
from collections.abc import Callable, Mapping

from tests.environments import pinball
from warprun import processes
from warprun.simulation.device import Device
from warprun.simulation.exploration import Exploration
from warprun.simulation.simulator import Act
from warprun.simulation.trajectory import Trajectory

AFTER = 20
"""Rollouts of a rank before it fails."""


def _raise() -> None:
    raise RuntimeError("the ball is lost")


HOW: Mapping[str, Callable[[], object]] = {
    "raise": _raise,
    "exit": lambda: os._exit(0),
    "hang": lambda: time.sleep(1e6),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


class Failing(pinball.Pinball):
    """Pinball that fails in the rank that FAILS names."""

    rollouts = 0

    def collect(self, act: Act, greedy: bool = False) -> Trajectory:
        """Roll out, or fail."""
        rank, _, how = os.environ.get("FAILS", "").partition(":")
        self.rollouts += 1
        time.sleep(0.02)
        if rank == str(processes.rank()) and self.rollouts > AFTER:
            HOW[how]()
        return super().collect(act, greedy)


class Game(pinball.Game):
    """Makes these simulators."""

    def make_simulator(
        self, *, n_envs: int, first_env: int, horizon: int, seed: int, device: Device, exploration: Exploration | None
    ) -> Failing:
        """Return one, whose draws no other rank has."""
        return Failing(n_envs, horizon, seed % 2**62 + first_env, device)


environment = Game()
