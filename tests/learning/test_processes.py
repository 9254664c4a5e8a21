"""Several processes, here threads with a communicator between them, against one process with all of their environments."""

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.learning.helpers import SPACES, close, environment, rollout
from tests.learning.test_agents import make
from warprun.learning.batch import mean_and_variance, variance_over_processes
from warprun.learning.communicator import Communicator
from warprun.learning.normalization import RunningStatistics
from warprun.simulation.trajectory import GroupTrajectory, Trajectory

N_ENVS = 12


class Meeting:
    """Where processes exchange tensors: everyone brings one and takes all."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=20)
        self.brought: list[torch.Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks."""
        self.brought[rank] = tensor.clone()
        self.barrier.wait()
        everyones = list(self.brought)
        self.barrier.wait()
        return everyones


class Threads:
    """The communicator of one thread."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.size = len(meeting.brought)
        self.meeting = meeting

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.copy_(torch.stack(self.meeting.exchange(self.rank, tensor)).sum(0))

    def contribute(self, envs: int) -> None:
        raise NotImplementedError

    def envs(self, own: int) -> int:
        return sum(map(int, self.meeting.exchange(self.rank, torch.tensor(own))))

    def any(self, flag: bool) -> bool:
        return any(self.meeting.exchange(self.rank, torch.tensor(flag)))

    def broadcast_(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            tensor.copy_(self.meeting.exchange(self.rank, tensor)[0])


def communicators(size: int = 2) -> list[Communicator]:
    """Return the communicators of `size` processes."""
    meeting = Meeting(size)
    return [Threads(rank, meeting) for rank in range(size)]


def part(trajectory: Trajectory, envs: slice) -> Trajectory:
    """Return what some of the environments of a trajectory did."""
    groups = {}
    for name, group in trajectory.groups.items():
        own = {key: None if tensor is None else tensor[:, envs].clone() for key, tensor in vars(group).items() if key != "policy_output"}
        groups[name] = GroupTrajectory(policy_output=group.policy_output[envs].clone(), **own)
    return Trajectory(trajectory.terminated[:, envs].clone(), trajectory.truncated[:, envs].clone(), groups)


@pytest.mark.parametrize("fused", [False, True], ids=["torch", "kernels"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("a2c", {}), ("a2c", {"advantage": "nstep"}), ("ppo", {"minibatches": 1, "epochs": 2, "target_kl": 1e9, "clip_value": 0.3})],
    ids=["a2c", "a2c-nstep", "ppo"],
)
@pytest.mark.parametrize("first", [6, 5], ids=["halves", "unequal"])
def test_two_processes_with_a_part_of_the_environments_take_the_steps_of_one_with_all(
    name: str, settings: dict[str, Any], fused: bool, first: int
) -> None:
    env = environment(**SPACES)
    settings = {**settings, "normalize_obs": True, "normalize_reward": True, "fused": fused}
    one = make(name, env, n_envs=N_ENVS, **settings)
    halves = slice(0, first), slice(first, N_ENVS)
    envs = first, N_ENVS - first
    two = [make(name, env, n_envs=n, communicator=each, **settings) for n, each in zip(envs, communicators(), strict=True)]
    with ThreadPoolExecutor(2) as pool:
        for update in range(3):
            # The environments differ, so that a process on its own would have other statistics.
            trajectory = rollout(env, n_envs=N_ENVS, seed=update)
            for group in trajectory.groups.values():
                group.reward[:, halves[1]] += 2.0
                group.obs[:, halves[1]] *= 3.0
            expected = dict(one.update(trajectory, 0.1 * update))
            updates = [pool.submit(agent.update, part(trajectory, half), 0.1 * update) for agent, half in zip(two, halves, strict=True)]
            for found in [update.result() for update in updates]:
                assert found.keys() == expected.keys()
                for key, value in expected.items():
                    close(found[key], value, 1e-4)
            for key, tensor in one.state().items():
                if not key.endswith("reward/returns"):  # of each environment
                    for agent in two:
                        close(agent.state()[key], tensor, 1e-4)
    assert all(torch.equal(tensor, two[1].state()[key]) for key, tensor in two[0].state().items() if not key.endswith("reward/returns"))


def test_statistics_take_in_the_rows_of_all_processes() -> None:
    rows = (torch.randn(100, 3, generator=torch.Generator().manual_seed(0)) + torch.linspace(0.0, 5.0, 100)[:, None]).split([60, 40])
    whole = RunningStatistics(3, torch.device("cpu"))
    whole.update(torch.cat(rows))
    statistics = [RunningStatistics(3, torch.device("cpu"), each) for each in communicators()]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda own, its: own.update(its), statistics, rows))
    for own in statistics:
        assert own.count == 100
        close(own.mean, whole.mean, 1e-6)
        close(own.variance, whole.variance, 1e-6)


def test_advantages_have_the_moments_of_all_processes() -> None:
    rows = torch.randn(120, generator=torch.Generator().manual_seed(0))
    parts = (rows + 3.0).split([50, 40, 30])
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda each, own: variance_over_processes(each, *mean_and_variance(own), len(own)), communicators(3), parts))
    for mean, variance in found:
        close(mean, torch.cat(parts).mean(), 1e-6)
        close(variance, rows.var(), 1e-6)
