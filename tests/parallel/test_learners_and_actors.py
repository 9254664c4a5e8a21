"""Learners and actors: without lag they compute what one process computes, several learners too; and they learn."""

import json
from pathlib import Path

import pytest
import torch

from tests.finished import weights
from tests.parallel.ranks import start, train

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
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name of a run -> its folder, trained in one process when it is asked for."""
    made: dict[str, Path] = {}

    class Runs(dict):
        def __missing__(self, name: str) -> Path:
            made[name] = self[name] = tmp_path_factory.mktemp(name) / "single"
            train(1, made[name], *settings(name))
            return made[name]

    return Runs()


SLOW = {
    "a2c": ["sync 2", "sync 4", "async 2", "seed 2", "seed 4"],
    "ppo": ["seed 4", "sync 2", "sync 4", "async 2"],
    "dqn": ["seed 4", "sync 2", "sync 4"],
    "td3": ["sync 2", "sync 3", "async 2", "seed 3"],
    "sac": ["seed 3", "async 2"],
}
"""Agent -> modes and numbers of processes."""
CASES = [
    pytest.param("dqn", "async 2", marks=pytest.mark.long),
    pytest.param("a2c", "seed 3", marks=pytest.mark.long),
    *(pytest.param(name, case, marks=pytest.mark.slow) for name, cases in SLOW.items() for case in cases),
]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_agent_has_the_bits_of_a_single_process(name: str, case: str, single: dict[str, Path], tmp_path: Path) -> None:
    mode, ranks = case.split()
    record = train(int(ranks), tmp_path / "run", *settings(name), f"concurrency={mode}")
    ours, theirs = weights(tmp_path / "run"), weights(single[name])
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


@pytest.mark.by_default(0)
@pytest.mark.parametrize("mode", ["rma", pytest.param("async", marks=pytest.mark.slow)])
def test_the_last_rollouts_are_learned_from_if_they_are_fewer_than_learners(mode: str, tmp_path: Path) -> None:
    """Five rollouts of 48 steps for two learners: the last update has one."""
    record = train(4, tmp_path / "run", *SMALL, "total_steps=240", f"concurrency={mode}", "concurrency.learners=2")
    assert record["env_steps"] == 240
    assert record["actors/rollouts"] == 5
    assert int(weights(tmp_path / "run")["agent/updates"]) == 3
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"


@pytest.mark.slow
def test_a_run_continues_with_another_number_of_actors(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(3, folder, *SMALL, "total_steps=480", "concurrency=async")
    done = start(4, f"resume={folder}", "total_steps=960")
    assert done.returncode == 0, done.stderr
    assert "1 learner and 3 actors with 4 environments each; they begin new episodes" in done.stdout
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["env_steps"] == 960
    state = weights(folder)
    assert int(state["agent/updates"]) == 10 + 15


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
