"""A rank that fails, dies, exits or hangs ends all ranks in time, is named, and leaves a valid checkpoint and nothing else.

`pytest -m reliability tests/parallel/test_faults.py`: 25 attacks of each kind at random moments, on random ranks.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.finished import QUIET, last_record
from tests.parallel.ranks import ENDLESS, ROOT, Run, start
from tests.words import words
from warprun.runs import checkpoint

TIMEOUT_S = 5
MODES = ("sync", "async", "rma", "seed")
LONG = [
    *ENDLESS,
    *words("""
    env.module=tests.parallel.failing env.name=failing agent=a2c n_envs=6 agent.horizon=8 total_steps=1e9
"""),
    "checkpoint.every='5 iterations'",
    f"concurrency.timeout_s={TIMEOUT_S}",
]
SAID = {
    "raise": "RuntimeError: the ball is lost",
    "exit": " is lost: ",
    "kill": " is lost: ",
    "stop": f" is lost: it gave no sign of life for {TIMEOUT_S} s",
    "hang": f" is stuck: the others have waited for it for {TIMEOUT_S} s",
}
LONGEST_S = TIMEOUT_S + 10
"""From the failure to the end of all processes: the timeout, seconds to end by themselves, and a loaded machine."""


def begin(mode: str, folder: Path, *arguments: str, ranks: int = 3, **environment: str) -> Run:
    """Start a long run of several processes."""
    if mode == "ddp":
        return Run(1, folder, *LONG, *arguments, "concurrency=ddp", f"concurrency.processes={ranks}", **environment)
    return Run(ranks, folder, *LONG, *arguments, f"concurrency={mode}", **environment)


def assert_ended_well(run: Run, mode: str, rank: int, how: str, error: str) -> None:
    """All are gone, one line names the rank and says how it failed, and the last checkpoint is intact."""
    run.wait_until_gone()
    assert checkpoint.load(run.folder).env_steps > 0
    assert run.process.returncode == 1 if mode == "ddp" else run.process.returncode
    if mode != "ddp" and how == "kill":
        return  # mpiexec ends all, and speaks for them
    role = "" if mode == "ddp" else " (learner 0)" if rank == 0 else f" (actor {rank - 1})"
    name = f"rank {rank}{role}"
    if rank or how != "raise":
        assert name in error, error
    assert SAID[how] in error, error
    assert error.count("warprun: error") == len(error.splitlines()) == 1, error
    status = json.loads((run.folder / "status.json").read_text())
    if rank or how == "raise":
        assert status["state"] == "failed"
    if rank:
        assert name in status["reason"]


@pytest.mark.by_default(0)
@pytest.mark.parametrize(
    ("mode", "rank", "how"),
    [
        ("async", 2, "raise"),
        ("ddp", 1, "raise"),
        *(pytest.param(mode, 2, "raise", marks=pytest.mark.slow) for mode in ("rma", "sync", "seed")),
        *(pytest.param("ddp", rank, how, marks=pytest.mark.slow) for how in sorted(SAID) for rank in (0, 1, 2)),
    ],
)
def test_a_rank_that_fails_ends_the_run(mode: str, rank: int, how: str, tmp_path: Path) -> None:
    run = begin(mode, tmp_path / "run", FAILS=f"{rank}:{how}")
    error = run.end(patience_s=180)  # from the start of the processes on
    saved_s = (run.folder / "checkpoints" / "manifest.json").stat().st_mtime
    assert time.time() - saved_s < LONGEST_S + 5
    assert_ended_well(run, mode, rank, how, error)
    if how == "raise" and rank:
        assert "the ball is lost" in (run.folder / "logs" / f"rank_{rank}.log").read_text()


DRAWN = random.Random(15)
ATTACKS = [(DRAWN.choice(MODES), DRAWN.randrange(3), how) for how in ("kill", "stop") for _ in range(25)]
ATTACKS += [("ddp", DRAWN.randrange(3), how) for how in ("kill", "stop") for _ in range(25)]
SLOW = [("ddp", 2, "stop"), ("async", 0, "stop"), ("async", 1, "kill"), ("seed", 1, "stop")]


@pytest.mark.by_default(0)
@pytest.mark.parametrize(
    ("mode", "rank", "how"),
    [
        ("ddp", 1, "kill"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
        *(pytest.param(*case, marks=pytest.mark.reliability) for case in ATTACKS),
    ],
)
def test_a_rank_that_is_killed_or_stopped_ends_the_run(mode: str, rank: int, how: str, tmp_path: Path) -> None:
    run = begin(mode, tmp_path / "run")
    run.wait_for_checkpoint()
    time.sleep(random.uniform(0.0, 2.0))
    os.kill(run.pids()[rank], signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    assert_ended_well(run, mode, rank, how, run.end(LONGEST_S))


@pytest.mark.by_default(0)
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_is_passed_on_and_saves_a_checkpoint(number: signal.Signals, tmp_path: Path) -> None:
    run = begin("ddp", tmp_path / "run", ranks=2)
    run.wait_for_checkpoint()
    run.process.send_signal(number)
    run.end(LONGEST_S)
    assert run.process.returncode == 128 + number
    run.wait_until_gone()
    status = json.loads((run.folder / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert checkpoint.load(run.folder).env_steps == status["env_steps"]


@pytest.mark.by_default(0)
def test_ranks_end_with_the_process_that_has_started_them(tmp_path: Path) -> None:
    run = begin("ddp", tmp_path / "run", ranks=2)
    run.wait_for_checkpoint()
    run.process.kill()
    run.process.communicate()
    run.wait_until_gone()


# Actors whose environments fail are left out, as many as are tolerated ------------------------------------------------

SETTINGS = [
    *QUIET,
    *words("""
    env.module=tests.parallel.fragile env.name=fragile env.time_limit=8 env.solved_at=null agent=a2c agent.horizon=4
    n_envs=2 concurrency=async concurrency.tolerate_actors=1 total_steps=240
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
    pytest.importorskip("gymnasium")
    done = start(3, *SETTINGS, *more, f"env.kwargs.how={how}", f"run_dir={tmp_path / 'run'}", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "the run goes on without rank 2 (actor 1): fragile: environment 1 failed at step 20" in done.stdout
    assert said in done.stdout
    last = last_record(tmp_path / "run")
    assert last["env_steps"] == 240  # others make the rollouts that it does not
    assert last["actors/rollouts_trained"] == 60
    assert last["actors/lost"] == 1
