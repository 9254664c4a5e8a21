"""A rank that fails, dies or hangs ends all ranks in time, is named, and leaves nothing behind.

`pytest -m reliability tests/parallel/test_faults.py`: 25 SIGKILLs, 25 SIGSTOPs and 25 exceptions, each of a random rank.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.finished import QUIET
from tests.parallel.ranks import MPIEXEC, ONE_THREAD

pytest.importorskip("mpi4py")
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 5
MODES = ("sync", "async", "rma", "seed")
LONG = [*QUIET, "agent=a2c", "n_envs=6", "agent.horizon=8", "total_steps=1e9", "checkpoint.every=1s", f"concurrency.timeout_s={TIMEOUT_S}"]


class Ranks:
    """A long run of several ranks, started with mpiexec."""

    def __init__(self, folder: Path, size: int, *arguments: str, **environment: str) -> None:
        self.folder, self.size = folder, size
        command = [MPIEXEC, "-n", str(size), sys.executable, "-m", "warprun", *LONG, *arguments, f"run_dir={folder}"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=os.environ | ONE_THREAD | environment)

    def wait_until_training(self) -> None:
        deadline = time.monotonic() + 60
        while not (self.folder / "checkpoints").exists() and self.process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def pids(self) -> dict[int, int]:
        """Return rank -> process id, of the ranks that still run."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                entries = dict(entry.split(b"=", 1) for entry in path.read_bytes().split(b"\0") if b"=" in entry)
                if b"PMI_RANK" in entries and f"run_dir={self.folder}".encode() in path.with_name("cmdline").read_bytes():
                    found[int(entries[b"PMI_RANK"])] = int(path.parent.name)
        return found

    def end(self, patience_s: float = TIMEOUT_S + 15) -> tuple[str, str, float]:
        """Return what the run printed and how many seconds it took to end, if these are fewer than `patience_s`."""
        began = time.monotonic()
        try:
            out, error = self.process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            for pid in (*self.pids().values(), self.process.pid):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            raise
        return out, error, time.monotonic() - began

    def status(self) -> dict[str, object]:
        return json.loads((self.folder / "status.json").read_text())


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("mpich")}


def assert_all_gone(ranks: Ranks, before: set[str]) -> None:
    deadline = time.monotonic() + 3
    while ranks.pids() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not ranks.pids()
    assert not shared_memory() - before
    assert any((ranks.folder / "checkpoints").iterdir())
    done = subprocess.run(
        [sys.executable, "-m", "warprun", "eval", str(ranks.folder), "episodes=2", "device=cpu"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr  # the last checkpoint is intact


@pytest.mark.by_default(1)
@pytest.mark.parametrize("mode", ["async", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("rma", "sync", "seed"))])
def test_an_exception_of_an_actor_ends_the_run_and_names_it(mode: str, tmp_path: Path) -> None:
    before = shared_memory()
    run = Ranks(tmp_path / "run", 3, "env.module=tests.parallel.boom", f"concurrency={mode}", BOOM_RANK="2")
    _, error, _ = run.end(patience_s=180)  # from the start of the processes on
    assert run.process.returncode != 0
    assert "warprun: error: rank 2 (actor 1): RuntimeError: the ball is lost" in error
    assert len(error.splitlines()) == 1, error
    assert run.status()["state"] == "failed"
    assert "rank 2 (actor 1)" in str(run.status()["reason"])
    assert "the ball is lost" in (tmp_path / "run" / "logs" / "rank_2.log").read_text()
    assert not run.pids()
    assert not shared_memory() - before


@pytest.mark.reliability
@pytest.mark.parametrize("number", range(25))
def test_an_exception_of_a_random_rank_ends_the_run(number: int, tmp_path: Path) -> None:
    """In rank 0 it is an evaluation that raises."""
    draw, before = random.Random(number), shared_memory()
    rank, mode = draw.randrange(3), draw.choice(MODES)
    given = ["env.module=tests.parallel.boom", f"concurrency={mode}", "eval.every=1s"]
    run = Ranks(tmp_path / "run", 3, *given, BOOM_RANK=str(rank), BOOM_AFTER_S="4")
    run.wait_until_training()
    _, error, took_s = run.end()
    assert run.process.returncode != 0
    assert took_s < TIMEOUT_S + 6
    role = f"rank {rank} (actor {rank - 1}): " if rank else ""
    assert f"warprun: error: {role}" in error and "the ball is lost" in error
    assert error.count("warprun: error") == 1, error
    assert run.status()["state"] == "failed"
    assert_all_gone(run, before)


DRAWN = random.Random(15)
MORE = [(number, DRAWN.randrange(3), DRAWN.choice(MODES)) for number in (signal.SIGKILL, signal.SIGSTOP) for _ in range(25)]


@pytest.mark.parametrize(
    ("number", "rank", "mode"),
    [
        pytest.param(signal.SIGSTOP, 0, "async", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, 1, "async", marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, 2, "async", marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, 1, "seed", marks=pytest.mark.slow),
        *(pytest.param(*case, marks=pytest.mark.reliability) for case in MORE),
    ],
)
def test_a_rank_that_is_killed_or_stopped_ends_the_run(number: signal.Signals, rank: int, mode: str, tmp_path: Path) -> None:
    before = shared_memory()
    run = Ranks(tmp_path / "run", 3, "env=cartpole", "stop_when_solved=false", f"concurrency={mode}")
    run.wait_until_training()
    os.kill(run.pids()[rank], number)
    _, error, took_s = run.end()
    assert run.process.returncode != 0
    assert took_s < TIMEOUT_S + 6
    if number == signal.SIGSTOP:
        role = "learner 0" if rank == 0 else f"actor {rank - 1}"
        assert f"rank {rank} ({role}) is lost: it gave no sign of life" in error
    assert_all_gone(run, before)
