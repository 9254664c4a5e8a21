"""A simulator of the user that truncates more often than its spec allows is found in whichever process it is, which is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.finished import QUIET
from tests.parallel.ranks import ROOT, start

SMALL = [*QUIET, "env.module=tests.environments.hasty", "agent=a2c", "n_envs=6", "agent.horizon=24", "total_steps=1e9", "max_minutes=0.5"]
TOO_OFTEN = "truncated {steps} times in {steps} steps by collect of the simulator; with spec.time_limit=20 it can be {rows}: lower"


def said_of(who: str, *arguments: str, ranks: int = 1) -> str:
    """Return the line with which a run ends where `who` truncates too often."""
    done = start(ranks, *SMALL, *arguments, cwd=ROOT, environment={"HASTY": who})
    assert done.returncode == 1, done.stderr + done.stdout
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.by_default(1)
@pytest.mark.parametrize("who", ["RANK=1", "RANK=0"])
def test_a_rank_is_named(who: str, tmp_path: Path) -> None:
    line = said_of(who, "concurrency=ddp", "concurrency.processes=2", f"run_dir={tmp_path / 'run'}")
    rank, env = ("", 2) if who == "RANK=0" else ("rank 1: ", 5)
    assert f"error: {rank}environment {env} was {TOO_OFTEN.format(steps=24, rows=2)}" in line


@pytest.mark.long
def test_an_actor_is_named(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    line = said_of("PMI_RANK=2", "concurrency=sync", f"run_dir={tmp_path / 'run'}", ranks=3)
    assert f"error: rank 2 (actor 1): environment 5 was {TOO_OFTEN.format(steps=24, rows=2)}" in line


def test_an_evaluation_is_named(tmp_path: Path) -> None:
    line = said_of("evaluation", "eval.every=1%", f"run_dir={tmp_path / 'run'}")
    assert f"error: in an evaluation environment 1 was {TOO_OFTEN.format(steps=20, rows=1)}" in line
