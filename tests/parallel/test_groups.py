"""Environments that are parallel programs: all ranks of a group make the same calls, in training, evaluations and commands."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.finished import QUIET
from tests.parallel.ranks import ROOT, start

pytest.importorskip("gymnasium")
PARALLEL = ["env.module=tests.parallel.parallel", "env.name=parallel", "env.time_limit=8", "env.solved_at=null"]
GROUPS_OF_TWO = ["concurrency=async", "concurrency.ranks_per_env=2"]
SETTINGS = [*QUIET, *PARALLEL, "agent=a2c", "agent.horizon=4", "concurrency.timeout_s=10"]


def run(ranks: int, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return start(ranks, *SETTINGS, *arguments, f"run_dir={folder}", cwd=ROOT)


@pytest.mark.by_default(0)
@pytest.mark.parametrize(
    ("ranks", "per_env", "more"),
    [
        (3, 2, ["concurrency=async", "n_envs=4"]),
        (4, 3, ["concurrency=rma", "n_envs=1"]),
        (5, 2, ["concurrency=sync", "n_envs=2"]),
        (6, 2, ["concurrency=async", "n_envs=2", "concurrency.learners=2"]),
    ],
)
def test_a_run_trains_evaluates_and_is_evaluated_later(ranks: int, per_env: int, more: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = run(ranks, folder, *more, f"concurrency.ranks_per_env={per_env}", "total_steps=96", "eval.every=50%")
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
def test_a_run_continues_and_is_evaluated_with_its_number_of_ranks_only(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    started = [*GROUPS_OF_TWO, "concurrency.processes=3", "n_envs=2", "total_steps=48"]
    assert run(1, folder, *started).returncode == 0
    done = start(3, f"resume={folder}", "total_steps=96", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "status.json").read_text())["env_steps"] == 96
    for ranks in (1, 3):
        done = start(ranks, "eval", str(folder), "episodes=1", "device=cpu", cwd=ROOT)
        assert done.returncode == 2
        assert "a parallel program of 2 ranks: start them with `mpiexec -n 2 warprun ...`" in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.by_default(0)
@pytest.mark.parametrize(
    ("where", "rank"),
    [
        ("step", 0),
        pytest.param("step", 1, marks=pytest.mark.slow),
        *(pytest.param(where, rank, marks=pytest.mark.slow) for where in ("init", "reset") for rank in (0, 1)),
    ],
)
def test_an_exception_of_any_rank_of_a_group_ends_the_run(where: str, rank: int, tmp_path: Path) -> None:
    """Also if the other ranks wait for it in code of the environment; before the run begins, nothing is left."""
    done = run(3, tmp_path / "run", *GROUPS_OF_TWO, "n_envs=1", "total_steps=1e6", f"env.kwargs.where={where}", f"env.kwargs.who={rank}")
    assert done.returncode != 0
    assert f"rank {rank} of the solver fails in {where}" in done.stderr
    assert done.stderr.count("warprun: error") == 1
    assert (tmp_path / "run").exists() == (where == "step")
    if where == "step":
        role = "rank 1 (actor 0)" if rank == 0 else "rank 2 (serves the environment of actor 0)"
        assert f"warprun: error: {role}: " in done.stderr
        assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"
