"""Several learners: the gradients of one process with all rollouts, and the last rollouts, fewer than learners."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.finished import weights
from tests.parallel.ranks import start, train

SETTINGS = ["env=cartpole", "agent=a2c", "agent.horizon=8", "n_envs=12", "seed=5"]


@pytest.mark.long
def test_two_learners_take_the_steps_of_one_process(tmp_path: Path) -> None:
    train(1, tmp_path / "one", *SETTINGS, "total_steps=384")
    train(4, tmp_path / "two", *SETTINGS, "total_steps=384", "concurrency=sync", "concurrency.learners=2")
    ours, theirs = weights(tmp_path / "two"), weights(tmp_path / "one")
    for name, tensor in theirs.items():
        if "/returns" not in name:  # each learner keeps the returns of its own environments
            torch.testing.assert_close(ours[name], tensor, rtol=2e-4, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.by_default(0)
@pytest.mark.parametrize("mode", ["rma", pytest.param("async", marks=pytest.mark.slow)])
def test_the_last_rollouts_are_learned_from_if_they_are_fewer_than_learners(mode: str, tmp_path: Path) -> None:
    """Five rollouts of 48 steps for two learners: the last update has one."""
    record = train(4, tmp_path / "run", *SETTINGS, "total_steps=240", f"concurrency={mode}", "concurrency.learners=2")
    assert record["env_steps"] == 240
    assert record["actors/rollouts"] == 5
    assert int(weights(tmp_path / "run")["agent/updates"]) == 3
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"


@pytest.mark.slow
def test_a_run_continues_with_another_number_of_actors(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(3, folder, *SETTINGS, "total_steps=480", "concurrency=async")
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
