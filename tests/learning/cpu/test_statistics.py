"""Running statistics and normalised rewards in kernels, against those of torch."""

from __future__ import annotations

import pytest
import torch

from warprun.environment import Box, Discrete
from warprun.learning.kernels.cpu.statistics import FusedObservations, FusedRewards
from warprun.learning.normalization import ObservationNormalizer, RewardNormalizer
from warprun.simulation import trajectory
from warprun.simulation.trajectory import Trajectory
from warprun.spec import GroupSpec, Spec

CPU = torch.device("cpu")
ENDS = (..., None)


@pytest.mark.parametrize(("rows", "features"), [(1, 3), (160, 4), (1000, 1), (4097, 17)])
def test_statistics_are_those_of_torch(rows: int, features: int) -> None:
    """The means are far from 0: their squares would drown the variance of plain sums."""
    generator = torch.Generator().manual_seed(rows)
    kernel, reference = ObservationNormalizer(features, CPU), ObservationNormalizer(features, CPU)
    fused = FusedObservations(kernel, 1)
    for scale in (1.0, 3.0):
        obs = 1e4 + scale * torch.randn(rows, features, generator=generator)
        fused(obs)
        reference.statistics.update(obs)
        reference.refresh()
        for name, found in kernel.tensors().items():
            torch.testing.assert_close(
                found, reference.tensors()[name], rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
            )


def rollout(spec: Spec, n_envs: int, seed: int) -> Trajectory:
    made = trajectory.allocate(spec, 7, n_envs, CPU)
    refill(made, seed)
    return made


def refill(made: Trajectory, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(made.terminated.shape, generator=generator)
    made.terminated.copy_(ends < 0.1)
    made.truncated.copy_((ends > 0.1) & (ends < 0.2))
    for group in made.groups.values():
        group.reward.copy_(5.0 + torch.randn(group.reward.shape, generator=generator))


@pytest.mark.parametrize(("n_envs", "actors"), [(3, 1), (100, 1), (33, 3)])
@pytest.mark.parametrize("sources", [1, 2])
def test_rewards_are_those_of_torch(n_envs: int, actors: int, sources: int) -> None:
    spec = Spec((GroupSpec("agent", actors, Box(2), Discrete(2)),), time_limit=None)
    made = rollout(spec, n_envs, 1)
    group = made.groups["agent"]
    kernel, reference = (RewardNormalizer(0.9, (n_envs, actors), CPU, sources=sources) for _ in range(2))
    fused = FusedRewards(kernel, "agent", 1)
    for seed in range(4):
        refill(made, seed)
        made.source.fill_(seed % sources)
        made.continues.fill_(seed != 2)
        found = fused(made)
        expected = reference(group.reward, made.terminated[ENDS], made.truncated[ENDS], made)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(kernel.returns, reference.returns, rtol=1e-6, atol=1e-6)
        for name, tensor in kernel.statistics.tensors().items():
            torch.testing.assert_close(tensor, reference.statistics.tensors()[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("actors", [1, 3])
def test_threads_change_no_bit(actors: int) -> None:
    spec = Spec((GroupSpec("agent", actors, Box(2), Discrete(2)),), time_limit=None)
    found = []
    for threads in (1, 3):
        made = rollout(spec, 1000, 5)
        rewards, obs = RewardNormalizer(0.9, (1000, actors), CPU), ObservationNormalizer(2, CPU)
        normalized = FusedRewards(rewards, "agent", threads)(made).clone()
        FusedObservations(obs, threads)(torch.randn(30_000, 2, generator=torch.Generator().manual_seed(3)))
        found.append([normalized, *rewards.tensors().values(), *obs.tensors().values()])
    assert all(torch.equal(one, three) for one, three in zip(*found, strict=True))
