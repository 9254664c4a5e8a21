"""Simulators of environments of Gymnasium, and rollouts with given actions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from warprun.config.schema import EnvConfig, load_environment
from warprun.kernels.sampling import to_bounds
from warprun.simulation.device import Device
from warprun.simulation.external.pool import Pool, external_simulator
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.stepped import SteppedSimulator
from warprun.simulation.trajectory import Trajectory
from warprun.spec import Box, MultiDiscrete

CPU = Device("cpu", "a test")
BY_ID = "warprun.envs.gymnasium"


def environment(**settings: Any) -> ExternalEnvironment:
    found, _ = load_environment(EnvConfig(**({"name": "test", "module": BY_ID} | settings)))
    assert isinstance(found, ExternalEnvironment)
    return found


@contextmanager
def simulator(
    of: ExternalEnvironment, n_envs: int = 3, horizon: int = 20, workers: int = 0, replaces: bool = False, **settings: Any
) -> Iterator[SteppedSimulator]:
    """Yield a simulator, and close it; it is not prepared."""
    given = {"seed": 5, "device": CPU, "exploration": None} | settings
    made = external_simulator(of, n_envs=n_envs, horizon=horizon, workers=workers, replaces=replaces, **given)
    try:
        yield made
    finally:
        made.close()


def act(trajectory: Trajectory, row: int) -> None:
    """Prefer each action equally, or draw real numbers from a normal distribution around 0."""
    for group in trajectory.groups.values():
        group.policy_output.zero_()
        group.value[row].zero_()


def chosen(of: ExternalEnvironment, action: torch.Tensor, space: Any) -> Any:
    """Return an action [C] of a trajectory as Gymnasium takes it, real numbers by the function that kernels call."""
    mine = of.spec.groups[0].action
    if isinstance(mine, Box):
        bounds = zip(action.numpy(), space.low.ravel(), space.high.ravel(), strict=True)
        return np.array([to_bounds(*map(np.float32, each)) for each in bounds], np.float32).reshape(space.shape)
    if isinstance(mine, MultiDiscrete):
        return action.numpy().astype(np.int64).reshape(space.shape)
    return int(action[0]) + int(space.start)


Seeds = Callable[[SteppedSimulator], list[int]]


def seeds(made: SteppedSimulator) -> list[int]:
    assert isinstance(made.stepper, Pool)
    return made.stepper.arrays["seed"].tolist()
