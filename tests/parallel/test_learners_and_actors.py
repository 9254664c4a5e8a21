"""Learners and actors: without lag they compute what one process computes, several learners too; and they learn."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.finished import last_record, weights
from tests.parallel.ranks import start, train
from warprun.learning.replay import GOES_ON, TERMINATED, TRUNCATED

CARTPOLE, PENDULUM = "env=cartpole", "env=pendulum"
RUNS = {
    "a2c": [CARTPOLE, "agent=a2c", "agent.horizon=8", "total_steps=7680"],
    "ppo": [PENDULUM, "agent=ppo", "agent.horizon=8", "agent.minibatches=2", "total_steps=7680"],
    "dqn": [CARTPOLE, "agent=dqn", "agent.horizon=4", "agent.n_step=3", "agent.replay.prioritized=true", "total_steps=3840"],
    "td3": [PENDULUM, "agent=td3", "agent.horizon=4", "total_steps=3840"],
    "sac": [PENDULUM, "agent=sac", "agent.horizon=4", "agent.noise_theta=0.3", "total_steps=3840"],
}
OFF_POLICY = ["agent.learning_starts=768", "agent.utd_ratio=0.05", "agent.batch_size=32"]


def settings(name: str) -> list[str]:
    # Each actor has a multiple of 16 environments, so that all are computed in vectors.
    return [*RUNS[name], "n_envs=96", "seed=3", *(OFF_POLICY if name in ("dqn", "td3", "sac") else [])]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, torch.Tensor]]:
    """Return a function from the name of a run to its weights, trained in one process when they are asked for."""

    @cache
    def trained(name: str) -> dict[str, torch.Tensor]:
        folder = tmp_path_factory.mktemp(name) / "single"
        train(1, folder, *settings(name))
        return weights(folder)

    return trained


SLOW = {
    "a2c": ["sync 4", "async 2", "seed 3"],
    "ppo": ["seed 4", "sync 2", "sync 4", "async 2"],
    "dqn": ["seed 4", "sync 4"],
    "td3": ["sync 3", "async 2", "seed 3"],
    "sac": ["seed 3", "async 2"],
}
"""Agent -> modes and numbers of processes."""
CASES = [
    pytest.param("dqn", "async 2", marks=pytest.mark.long),
    pytest.param("dqn", "seed 3", marks=pytest.mark.long),
    *(pytest.param(name, case, marks=pytest.mark.slow) for name, cases in SLOW.items() for case in cases),
]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_agent_has_the_bits_of_a_single_process(name: str, case: str, single: Callable[..., Any], tmp_path: Path) -> None:
    mode, ranks = case.split()
    record = train(int(ranks), tmp_path / "run", *settings(name), f"concurrency={mode}")
    ours, theirs = weights(tmp_path / "run"), single(name)
    # The tables of where the next step is are not needed by one simulator.
    assert all(key.endswith(("replay/following", "replay/newest")) for key in ours.keys() ^ theirs.keys())
    for key in ours.keys() & theirs.keys():
        assert torch.equal(ours[key], theirs[key]), key
    assert record["actors/lag_max"] == 0
    assert record["env_steps"] >= 1440


SMALL = ["env=cartpole", "agent=a2c", "agent.horizon=8", "n_envs=12", "seed=5"]


@pytest.mark.long
def test_two_learners_take_the_steps_of_one_process(tmp_path: Path) -> None:
    train(1, tmp_path / "one", *SMALL, "total_steps=384")
    train(4, tmp_path / "two", *SMALL, "total_steps=384", "concurrency=sync", "concurrency.learners=2")
    ours, theirs = weights(tmp_path / "two"), weights(tmp_path / "one")
    for name, tensor in theirs.items():
        if "/returns" not in name:  # each learner keeps the returns of its own environments
            torch.testing.assert_close(ours[name], tensor, rtol=2e-4, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.long
def test_the_last_rollouts_are_learned_from_if_they_are_fewer_than_learners(tmp_path: Path) -> None:
    """Five rollouts of 48 steps for two learners: the last update has one."""
    record = train(4, tmp_path / "run", *SMALL, "total_steps=240", "concurrency=rma", "concurrency.learners=2")
    assert record["env_steps"] == 240
    assert record["actors/rollouts"] == 5
    assert int(weights(tmp_path / "run")["agent/updates"]) == 3
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"


@pytest.mark.slow
def test_rollouts_that_are_too_old_are_dropped_and_counted(tmp_path: Path) -> None:
    more = ["total_steps=3840", "log.every=never", "concurrency=rma", "concurrency.max_lag=0"]
    record = train(4, tmp_path / "run", *SMALL, *more)
    assert record["actors/rollouts_dropped"] > 0
    assert record["actors/lag_max"] == 0
    assert record["actors/rollouts"] == record["actors/rollouts_trained"] + record["actors/rollouts_dropped"] == 120


THETA, X = 0.20943951023931953, 2.4
"""Limits of CartPole."""


@pytest.mark.long
def test_transitions_follow_the_equations_of_motion(tmp_path: Path) -> None:
    """What a learner has in replay memory, against CartPole in float64: the next state is not the state, and ends are where they belong."""
    given = ["env=cartpole", "agent=dqn", "env.time_limit=15", "n_envs=12", "agent.horizon=8", "agent.learning_starts=96"]
    train(3, tmp_path / "run", *given, "total_steps=960", "concurrency=rma")
    ring = {name.rpartition("/")[2]: tensor for name, tensor in weights(tmp_path / "run").items() if "/replay/" in name}
    obs, following, action, ends = (ring[name][:960] for name in ("obs", "next_obs", "action", "ends"))
    expected = moved(obs.double(), action[:, 0])
    over = (expected[:, 0].abs() > X) | (expected[:, 2].abs() > THETA)
    assert torch.equal(ends == TERMINATED, over)
    assert set(ends.tolist()) == {GOES_ON, TERMINATED, TRUNCATED}
    torch.testing.assert_close(following[~over].double(), expected[~over], atol=2e-5, rtol=2e-5)
    assert (following - obs)[~over].abs().sum(1).min() > 1e-4


def moved(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return the states after a step from `state` [B, 4], by the equations of envs/cartpole.py."""
    x, speed, theta, turning = state.unbind(1)
    push = (torch.where(action == 1, 10.0, -10.0) + 0.05 * turning**2 * theta.sin()) / 1.1
    turning_up = (9.8 * theta.sin() - theta.cos() * push) / (0.5 * (4.0 / 3.0 - 0.1 * theta.cos() ** 2 / 1.1))
    speeding_up = push - 0.05 * turning_up * theta.cos() / 1.1
    return torch.stack([x + 0.02 * speed, speed + 0.02 * speeding_up, theta + 0.02 * turning, turning + 0.02 * turning_up], 1)


@pytest.mark.slow
def test_a_run_continues_with_another_number_of_actors(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(3, folder, *SMALL, "total_steps=480", "concurrency=async")
    done = start(4, f"resume={folder}", "total_steps=960")
    assert done.returncode == 0, done.stderr
    assert "1 learner and 3 actors with 4 environments each; they begin new episodes" in done.stdout
    assert last_record(folder)["env_steps"] == 960
    assert int(weights(folder)["agent/updates"]) == 10 + 15


@pytest.mark.long
def test_a_batch_job_that_finds_its_run_ended_ends_well(tmp_path: Path) -> None:
    run = [*SMALL, "total_steps=480", "concurrency=async"]
    train(2, tmp_path / "run", *run)
    done = start(2, *run, f"run_dir={tmp_path / 'run'}", "resume=auto")
    assert done.returncode == 0 and "has ended: it took 480 env_steps" in done.stdout and not done.stderr


@pytest.mark.slow
def test_replay_memory_of_another_number_of_actors_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(3, folder, "env=cartpole", "agent=dqn", "n_envs=12", "agent.learning_starts=96", "total_steps=480", "concurrency=async")
    done = start(4, f"resume={folder}", "total_steps=960")
    assert done.returncode == 2
    assert "does not fit this run" in done.stderr
    assert len(done.stderr.splitlines()) == 1


LEARNS = ["env=cartpole", "agent=a2c", "agent.advantage=vtrace", "n_envs=96", "agent.horizon=16", "total_steps=3e6", "device=cpu"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "seed", "rma", "rma concurrency.window=range", "rma concurrency.window=random"])
@pytest.mark.parametrize("seed", range(5))
def test_cartpole_is_solved(mode: str, seed: int, tmp_path: Path) -> None:
    """By four ranks, whatever the number of cores."""
    quiet = ["log.live=false", "log.tensorboard=false", "run_dir=run"]
    done = start(4, *LEARNS, *f"concurrency={mode}".split(), f"seed={seed}", *quiet, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "solved"
