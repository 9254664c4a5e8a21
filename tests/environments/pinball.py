"""A complete `Simulator` without kernels: balls on a line, stepped with torch and NumPy."""

from __future__ import annotations

import numpy as np
import torch

from warprun.simulation.device import Device
from warprun.simulation.exploration import Exploration
from warprun.simulation.faults import Fault
from warprun.simulation.simulator import Act, Episodes
from warprun.simulation.trajectory import Trajectory, allocate
from warprun.spec import Box, Discrete, GroupSpec, Spec
from warprun.state import Counter, State

SPEC = Spec((GroupSpec("ball", 1, Box(1, -1.0, 1.0), Discrete(2)),), time_limit=20)
"""A ball at x moves left (action 0) or right (1) by 0.1. The reward is 1 - |x|; the episode terminates beyond -1..1."""


class Pinball:
    def __init__(self, n_envs: int, horizon: int, seed: int, device: Device) -> None:
        self.spec, self.device, self.n_envs = SPEC, device, n_envs
        self.trajectory = allocate(SPEC, horizon, n_envs, device.torch)
        self.x, self.age, self.earned = torch.zeros(n_envs), torch.zeros(n_envs), torch.zeros(n_envs)
        self.ended = torch.zeros(3)  # episodes, steps, returns
        self._steps, self._seed = Counter(), seed

    @property
    def steps(self) -> int:
        return self._steps.value

    def prepare(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._begin(torch.ones(self.n_envs, dtype=torch.bool), self._draws())
        self.trajectory.forget()
        for row in (0, -1):  # `collect` begins with the last row
            self.trajectory.groups["ball"].obs[row, :, 0, 0] = self.x

    def collect(self, act: Act, greedy: bool = False) -> Trajectory:
        taken, group = self.trajectory, self.trajectory.groups["ball"]
        group.obs[0] = group.obs[-1]
        for t in range(taken.horizon):
            act(taken, t)
            draws, log_probs = self._draws(), group.policy_output[:, 0].log_softmax(-1)
            right = log_probs[:, 1] > log_probs[:, 0] if greedy else draws[0] < log_probs[:, 1].exp()
            group.action[t, :, 0, 0] = right.int()
            group.log_prob[t, :, 0] = torch.where(right, log_probs[:, 1], log_probs[:, 0])
            self.x += torch.where(right, 0.1, -0.1)
            reward = 1.0 - self.x.abs()
            group.reward[t, :, 0] = reward
            self.age += 1.0
            self.earned += reward
            taken.terminated[t] = self.x.abs() > 1.0
            taken.truncated[t] = (self.age == SPEC.time_limit) & ~taken.terminated[t]
            cut = taken.truncated[t].nonzero()[:, 0]
            group.final_obs[taken.truncated[:t, cut].sum(0), cut, 0, 0] = self.x[cut]
            self._steps.value += 1
            over = taken.terminated[t] | taken.truncated[t]
            self.ended += torch.stack([over.sum(), self.age[over].sum(), self.earned[over].sum()])
            self._begin(over, draws)
            group.obs[t + 1, :, 0, 0] = self.x
        return taken

    def episodes(self) -> Episodes:
        count, steps, returns = self.ended.tolist()
        self.ended.zero_()
        share = 1.0 / count if count else float("nan")
        return Episodes(int(count), steps * share, {"ball": returns * share})

    def fault(self, wait: bool = False) -> Fault | None:
        return None

    def close(self) -> None:
        pass

    def state(self) -> State:
        arrays = {"x": self.x, "age": self.age, "earned": self.earned, "ended": self.ended}
        return arrays | {"steps": self._steps.tensor, "obs": self.trajectory.groups["ball"].obs[-1]}

    def _draws(self) -> torch.Tensor:
        """Return [2, N] numbers in 0..1, a function of seed and step, so that the state needs no generator."""
        return torch.from_numpy(np.random.default_rng((self._seed, self.steps)).random((2, self.n_envs), np.float32))

    def _begin(self, over: torch.Tensor, draws: torch.Tensor) -> None:
        self.x[over] = 1.6 * draws[1][over] - 0.8
        self.age[over] = 0.0
        self.earned[over] = 0.0


class Game:
    spec = SPEC

    def make_simulator(
        self, *, n_envs: int, first_env: int, horizon: int, seed: int, device: Device, exploration: Exploration | None
    ) -> Pinball:
        return Pinball(n_envs, horizon, seed, device)


environment = Game()
