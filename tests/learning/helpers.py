"""Hand-made rollouts for the tests of the agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from warprun.environment import Box, Discrete, Environment, Group, MultiDiscrete, Phase, Space, float32
from warprun.simulation.trajectory import Trajectory, allocate

Golden = Callable[[str], dict[str, torch.Tensor]]
CPU = torch.device("cpu")
FEATURES = Box(3)


class State(NamedTuple):
    x: float32


def nothing() -> None:
    """Stand in for the functions of an environment: no test here steps one."""


def environment(observation: Box = FEATURES, **spaces: Space) -> Environment:
    """Make an environment with a group of two actors for each space, masked where discrete."""
    groups = []
    for name, space in spaces.items():
        mask = None if isinstance(space, Box) else nothing
        groups.append(Group(name, 2, State, observation, space, nothing, nothing, mask))
    return Environment(tuple(groups), tuple(Phase(name, nothing) for name in spaces), time_limit=4)


SPACES: dict[str, Space] = {"one": Discrete(3), "many": MultiDiscrete((2, 3)), "real": Box(2)}


def rollout(env: Environment, horizon: int = 6, n_envs: int = 5, seed: int = 0) -> Trajectory:
    """Fill a trajectory with random numbers, episode ends of both kinds, and masks that forbid action 0 now and then."""
    random = torch.Generator().manual_seed(seed)
    trajectory = allocate(env.spec, horizon, n_envs, CPU)
    trajectory.terminated.copy_(torch.rand(horizon, n_envs, generator=random) < 0.2)
    trajectory.truncated[3] = ~trajectory.terminated[3]
    for group in trajectory.groups.values():
        for tensor in (group.obs, group.final_obs, group.reward, group.value):
            tensor.normal_(generator=random)
        group.log_prob.copy_(-torch.rand(group.log_prob.shape, generator=random))
        if group.action.is_floating_point():
            group.action.normal_(generator=random)
        else:
            group.action.fill_(1)
        if group.mask is not None:
            group.mask.fill_(True)
            group.mask[..., 0] = torch.rand(group.mask.shape[:-1], generator=random) < 0.5
    return trajectory


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-10) -> None:
    """Assert that numbers agree to `tolerance` times (1 + their size)."""
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=tolerance, atol=tolerance)
