"""Actors whose environments fail are left out, as many as are tolerated."""

import json
from pathlib import Path

import pytest

from tests.finished import QUIET
from tests.parallel.ranks import ROOT, start
from tests.words import words

pytest.importorskip("gymnasium")
SETTINGS = [
    *QUIET,
    *words("""
    env.module=tests.parallel.fragile env.name=fragile env.time_limit=8 env.solved_at=null agent=a2c agent.horizon=4
    n_envs=3 concurrency=async
"""),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "more", "said"),
    [
        ("raise", [], "RuntimeError: the solver did not converge"),
        pytest.param("hang", ["concurrency.workers=1", "env.timeout_s=2"], "it takes longer than 2 s", marks=pytest.mark.slow),
        pytest.param("die", ["concurrency.workers=1"], "its process was ended by SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_the_run_goes_on_without_an_actor(how: str, more: list[str], said: str, tmp_path: Path) -> None:
    given = [*SETTINGS, *more, f"env.kwargs.how={how}", "total_steps=240", "concurrency.tolerate_actors=1", f"run_dir={tmp_path / 'run'}"]
    done = start(4, *given, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "the run goes on without rank 2 (actor 1): fragile: environment 1 failed at step 21" in done.stdout
    assert said in done.stdout
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["env_steps"] == 240  # others make the rollouts that it does not
    assert last["actors/rollouts_trained"] == 60
    assert last["actors/lost"] == 1


@pytest.mark.by_default(0)
def test_more_than_are_tolerated_end_the_run(tmp_path: Path) -> None:
    done = start(4, *SETTINGS, "total_steps=1e6", f"run_dir={tmp_path / 'run'}", cwd=ROOT)
    assert done.returncode != 0
    assert "warprun: error: rank 2 (actor 1): fragile: environment 1 failed at step 21" in done.stderr


@pytest.mark.by_default(1)
@pytest.mark.parametrize("more", [["concurrency=rma"], ["concurrency.learners=2"], ["env=cartpole"]])
def test_what_cannot_be_tolerated_is_refused(more: list[str], tmp_path: Path) -> None:
    own = SETTINGS if "env=cartpole" not in more else [*QUIET, "concurrency=async", "n_envs=3"]
    done = start(1, *own, *more, "concurrency.tolerate_actors=1", f"run_dir={tmp_path / 'run'}", cwd=ROOT)
    assert done.returncode == 2
    assert "concurrency.tolerate_actors=1" in done.stderr
    assert len(done.stderr.splitlines()) == 1
