"""Environments that are parallel programs: all ranks of a group make the same calls, in training, evaluations and commands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.finished import QUIET
from tests.parallel.ranks import ROOT, start

pytest.importorskip("gymnasium")
PARALLEL = ["env.module=tests.parallel.parallel", "env.name=parallel", "env.time_limit=8", "env.solved_at=null"]
SETTINGS = [*QUIET, *PARALLEL, "agent=a2c", "agent.horizon=4", "concurrency.timeout_s=10"]


def run(ranks: int, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return start(ranks, *SETTINGS, *arguments, f"run_dir={folder}", cwd=ROOT)


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "per_env", "more"),
    [
        (5, 2, ["concurrency=async", "n_envs=4"]),
        pytest.param(4, 3, ["concurrency=rma", "n_envs=1"], marks=pytest.mark.slow),
        pytest.param(5, 2, ["concurrency=sync", "n_envs=2"], marks=pytest.mark.slow),
        pytest.param(6, 2, ["concurrency=async", "n_envs=2", "concurrency.learners=2"], marks=pytest.mark.slow),
    ],
)
def test_a_run_trains_evaluates_and_is_evaluated_later(ranks: int, per_env: int, more: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    each = [f"concurrency.ranks_per_env={per_env}"]
    done = run(6 if "concurrency.learners=2" in more else ranks, folder, *more, *each, "total_steps=96", "eval.every=50%")
    assert done.returncode == 0, done.stderr + done.stdout
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["env_steps"] >= 96
    assert records[-1]["eval/return"] == 8.0
    # The last record has none if no episode has ended since the one before.
    assert {record["train/return"] for record in records if "train/return" in record} == {8.0}
    assert "serves the environment of actor 0" in "".join(path.read_text() for path in (folder / "logs").iterdir())
    done = start(per_env, "eval", str(folder), "episodes=3", "device=cpu", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "8.000" in done.stdout


@pytest.mark.slow
def test_a_run_continues(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    given = ["concurrency=async", "concurrency.ranks_per_env=2", "n_envs=2"]
    assert run(3, folder, *given, "total_steps=48").returncode == 0
    done = start(3, f"resume={folder}", "total_steps=96", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "status.json").read_text())["env_steps"] == 96


@pytest.mark.by_default(0)
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_exception_of_any_rank_of_a_group_ends_the_run(rank: int, tmp_path: Path) -> None:
    """Also if the other ranks wait for it in code of the environment."""
    given = ["concurrency=async", "concurrency.ranks_per_env=2", "n_envs=1", "total_steps=1e6"]
    done = run(3, tmp_path / "run", *given, "env.kwargs.where=step", f"env.kwargs.who={rank}")
    assert done.returncode != 0
    role = "rank 1 (actor 0)" if rank == 0 else "rank 2 (serves the environment of actor 0)"
    assert f"warprun: error: {role}: " in done.stderr
    assert f"rank {rank} of the solver fails in step" in done.stderr
    assert done.stderr.count("warprun: error") == 1
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["init", "reset"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_before_the_run_is_named(where: str, rank: int, tmp_path: Path) -> None:
    given = ["concurrency=async", "concurrency.ranks_per_env=2", "n_envs=1", "total_steps=1e6"]
    done = run(3, tmp_path / "run", *given, f"env.kwargs.where={where}", f"env.kwargs.who={rank}")
    assert done.returncode != 0
    assert f"rank {rank} of the solver fails in {where}" in done.stderr
    assert done.stderr.count("warprun: error") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.by_default(1)
@pytest.mark.parametrize(
    ("ranks", "arguments", "said"),
    [
        (
            1,
            ["concurrency=single"],
            "parallel is a parallel program (its first argument is `comm`): it needs concurrency=sync, async, rma or seed",
        ),
        (3, ["concurrency=async"], "and concurrency.ranks_per_env=2 or more"),
        (1, ["concurrency=async", "concurrency.ranks_per_env=2"], "a parallel program of 2 ranks: start them with `mpiexec -n 2 warprun"),
        (4, ["concurrency=async", "concurrency.ranks_per_env=2"], "4 processes do not fit; with learners=1 start 3 or 5"),
        (2, ["concurrency=async", "concurrency.ranks_per_env=2"], "concurrency.learners=1 needs 3 processes or more, not 2"),
        (3, ["concurrency=async", "concurrency.ranks_per_env=2", "concurrency.workers=1"], "concurrency.workers=1: the ranks of a group"),
        (3, ["concurrency=async", "concurrency.ranks_per_env=2", "env.kwargs.comm=1"], "env.kwargs.comm: parallel gets a communicator"),
        (3, ["env=cartpole", "concurrency=async", "concurrency.ranks_per_env=2"], "no parallel program"),
        (3, ["env=gymnasium", "env.id=CartPole-v1", "concurrency=async", "concurrency.ranks_per_env=2"], "are no parallel programs"),
    ],
)
def test_a_mistake_is_one_line(ranks: int, arguments: list[str], said: str, tmp_path: Path) -> None:
    own = [] if any(word.startswith("env=") for word in arguments) else PARALLEL
    done = start(ranks, *QUIET, *own, "agent=a2c", "n_envs=2", *arguments, f"run_dir={tmp_path / 'run'}", cwd=ROOT)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_an_evaluation_with_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run(3, folder, "concurrency=async", "concurrency.ranks_per_env=2", "n_envs=1", "total_steps=32").returncode == 0
    for ranks in (1, 3):
        done = start(ranks, "eval", str(folder), "episodes=1", "device=cpu", cwd=ROOT)
        assert done.returncode == 2
        assert "a parallel program of 2 ranks: start them with `mpiexec -n 2 warprun ...`" in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.slow
def test_the_ranks_are_started_without_mpiexec(tmp_path: Path) -> None:
    done = run(
        1, tmp_path / "run", "concurrency=async", "concurrency.ranks_per_env=2", "concurrency.processes=3", "n_envs=1", "total_steps=32"
    )
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "warprun", "eval", str(tmp_path / "run")]
    assert subprocess.run(command, capture_output=True, cwd=ROOT).returncode == 2
