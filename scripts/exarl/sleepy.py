"""An environment whose step sleeps and a network whose gradient step sleeps, so that many ranks are honest on few cores.

The environment sleeps for SLEEPY_STEP_MS in every step of a rollout; `agent.network.module=./sleepy.py:SleepyNetwork` sleeps for
`train_ms` in every gradient step.
"""

from __future__ import annotations

import os
import time

import torch
from torch import nn

from warprun.simulation.device import Device
from warprun.simulation.exploration import Exploration
from warprun.simulation.faults import Fault
from warprun.simulation.simulator import Act, Episodes
from warprun.simulation.trajectory import Trajectory, allocate
from warprun.spec import Box, Discrete, GroupSpec, Spec
from warprun.state import Counter, State

STEP_S = float(os.environ.get("SLEEPY_STEP_MS", "0")) / 1e3
EPISODE = 10
"""Steps of every episode."""


class Sleepy:
    """A `Simulator` of environments that do nothing but wait: observation 0, reward 1, whatever the action."""

    def __init__(self, spec: Spec, n_envs: int, horizon: int, device: Device, step_s: float) -> None:
        """`step_s`: seconds of a step."""
        self.spec, self.device, self.n_envs = spec, device, n_envs
        self.trajectory = allocate(spec, horizon, n_envs, device.torch)
        self._steps, self._step_s, self._ended = Counter(), step_s, 0

    @property
    def steps(self) -> int:
        """Steps that every environment has taken."""
        return self._steps.value

    def reset(self) -> None:
        """Begin new episodes."""
        self.trajectory.forget()
        self._steps.value += -self._steps.value % EPISODE

    prepare = reset

    def collect(self, act: Act, greedy: bool = False) -> Trajectory:
        """Take `horizon` steps; the actions are all 0."""
        taken, group = self.trajectory, self.trajectory.groups["one"]
        for row in range(taken.horizon):
            act(taken, row)
            group.action[row].zero_()
            group.log_prob[row] = group.policy_output.log_softmax(-1)[..., 0]
            time.sleep(self._step_s)
            self._steps.value += 1
            group.reward[row] = 1.0
            taken.terminated[row] = self._steps.value % EPISODE == 0
            self._ended += self._steps.value % EPISODE == 0
        return taken

    def episodes(self) -> Episodes:
        """Return the episodes that ended since the last call."""
        count, self._ended = self._ended * self.n_envs, 0
        return Episodes(count, float(EPISODE), {"one": float(EPISODE)})

    def fault(self, wait: bool = False) -> Fault | None:
        """Return None."""
        return None

    def close(self) -> None:
        """Do nothing."""

    def state(self) -> State:
        """Return the counter."""
        return {"steps": self._steps.tensor}


class Waiting:
    """A `SimulatorFactory`. Evaluations, which have one learner's patience only, do not sleep."""

    spec = Spec((GroupSpec("one", 1, Box(4), Discrete(2)),), time_limit=None)

    def make_simulator(
        self, *, n_envs: int, first_env: int, horizon: int, seed: int, device: Device, exploration: Exploration | None
    ) -> Sleepy:
        """Return `n_envs` environments; one environment is an actor's and sleeps, two are an evaluation's."""
        return Sleepy(self.spec, n_envs, horizon, device, STEP_S if n_envs == 1 else 0.0)


class SleepyNetwork(nn.Module):
    """A linear layer that sleeps in gradient steps."""

    def __init__(self, inputs: int, outputs: int, train_ms: float = 0.0) -> None:
        """`train_ms`: milliseconds of sleep in a gradient step."""
        super().__init__()
        self.layer, self.train_s = nn.Linear(inputs, outputs), train_ms / 1e3

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the outputs [B, outputs] of rows [B, inputs]."""
        if self.training and torch.is_grad_enabled():
            time.sleep(self.train_s)
        return self.layer(rows)


environment = Waiting()
