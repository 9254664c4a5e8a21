"""Actions of simulators whose steps are no kernels, drawn by the kernels that draw them for every other environment."""

from __future__ import annotations

from typing import NamedTuple

import torch

from warprun.environment import Environment, Group, NoParams, Phase, float32
from warprun.simulation.device import Device
from warprun.simulation.exploration import Exploration
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.trajectory import Trajectory
from warprun.spec import Box, GroupSpec, MultiDiscrete


class Sampler:
    """Writes `action` and `log_prob` of a trajectory, by the rules, masks, noise and random draws of every other environment.

    The kernels are those of an environment with the same actions and one observed number, so simulators with equal actions share them.
    """

    def __init__(
        self,
        group: GroupSpec,
        taken: Trajectory,
        seed: int,
        device: Device,
        exploration: Exploration | None,
        first_env: int,
    ) -> None:
        self._engine = KernelEngine(
            stand_in(group),
            "actions",
            device=device,
            n_envs=taken.n_envs,
            first_env=first_env,
            horizon=taken.horizon,
            seed=seed,
            params=NoParams(),
            threads=1,
            exploration=exploration,
            rollout=taken,
        )
        self._noise = self._engine.arrays.groups[group.name].get("noise")

    def prepare(self) -> None:
        """Compile the kernels; overwrites row 0 of the actions. Raises UserError."""
        self.draw(0, 0, greedy=True)
        self.draw(0, 0, greedy=False)

    def draw(self, row: int, step: int, greedy: bool) -> None:
        """Write the actions of row `row`, the step number `step` of every environment, from `policy_output`."""
        self._engine.steps = step
        if greedy:
            self._engine.choose_best(row)
        else:
            self._engine.sample(row)

    def forget(self, over: torch.Tensor) -> None:
        """Set the exploration noise of environments back to 0 whose episodes have ended, `over` [N] bool."""
        if self._noise is not None:
            tiles, _, _, lanes = self._noise.shape
            padded = torch.zeros(tiles * lanes, dtype=torch.bool, device=over.device)
            padded[: len(over)] = over
            self._noise.masked_fill_(padded.view(tiles, 1, 1, lanes), 0.0)

    @property
    def noise(self) -> torch.Tensor | None:
        """The exploration noise of the last step; None if there is none."""
        return self._noise


class Nothing(NamedTuple):
    """The state of an environment that stands in for others."""

    x: float32


def reset() -> Nothing:
    return Nothing(float32(0.0))


def step(s: Nothing) -> tuple[Nothing, float, bool]:
    return s, 0.0, False


def observe(s: Nothing) -> tuple[float32]:
    return (s.x,)


def mask(s: Nothing) -> bool:
    return True


def stand_in(group: GroupSpec) -> Environment:
    """Return an environment with the actions and the mask of `group`, one actor, and one observed number."""
    action = group.action
    if any(action.starts):  # kernels count from 0
        action = MultiDiscrete(action.choices)
    actors = Group(group.name, 1, Nothing, Box(1), action, reset, observe, mask if group.masked else None)
    return Environment((actors,), (Phase(group.name, step),))
