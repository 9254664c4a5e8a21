"""A rank that fails, dies, exits or hangs ends all ranks in time, is named, and leaves a valid checkpoint.

The 25 attacks of each kind: pytest -m reliability tests/parallel/test_faults.py
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.parallel.ddp_runs import CARTPOLE, ENDLESS, ROOT, pids, wait_until_gone, warprun
from tests.selection import few
from warprun.runs import checkpoint

TIMEOUT_S = 4
LONG = [
    *ENDLESS,
    *CARTPOLE[1:],
    "env.module=tests.parallel.failing",
    "env.name=failing",
    "total_steps=1e9",
    "checkpoint.every='5 iterations'",
    "concurrency=ddp",
    "concurrency.processes=3",
    f"concurrency.timeout_s={TIMEOUT_S}",
]
SAID = {
    "raise": "rank {rank}: RuntimeError: the ball is lost",
    "exit": "rank {rank} is lost: ",
    "kill": "rank {rank} is lost: ",
    "stop": "rank {rank} is lost: it gave no sign of life for 4 s",
    "hang": "rank {rank} is stuck: the others have waited for it for 4 s",
}
LONGEST_S = TIMEOUT_S + 10
"""From the failure to the end of all processes: the timeout, the seconds that ranks have to end by themselves, and a loaded machine."""


def assert_ended_well(folder: Path, code: int, error: str, how: str, rank: int) -> None:
    wait_until_gone(folder)
    assert code == 1
    assert SAID[how].format(rank=rank) in error.replace("RuntimeError: RuntimeError", "RuntimeError"), error
    assert len(error.splitlines()) == 1, error
    assert checkpoint.load(folder).env_steps > 0
    status = json.loads((folder / "status.json").read_text())
    if rank:
        assert status["state"] == "failed"
        assert f"rank {rank}" in status["reason"]
    elif how == "raise":
        assert status["state"] == "failed"


def attack(folder: Path, how: str, rank: int) -> None:
    """Let a rank fail, and look at what is left."""
    began_s = time.monotonic()
    done = warprun(*LONG, f"run_dir={folder}", cwd=ROOT, environment={"FAILS": f"{rank}:{how}"})
    saved_s = (folder / "checkpoints" / "manifest.json").stat().st_mtime
    assert time.time() - saved_s < LONGEST_S + 5, time.monotonic() - began_s
    said = "raise" if how == "raise" and rank else how
    if how == "raise" and rank == 0:
        assert "RuntimeError: the ball is lost" in done.stderr
        wait_until_gone(folder)
        assert done.returncode == 1
        return
    assert_ended_well(folder, done.returncode, done.stderr, said, rank)


@pytest.mark.long
@pytest.mark.parametrize("how", few(["raise", "exit", "hang"], "raise"))
def test_a_rank_that_fails_ends_the_run(how: str, tmp_path: Path) -> None:
    attack(tmp_path / "run", how, 1)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("how", sorted(SAID))
def test_every_rank_may_fail_in_every_way(how: str, rank: int, tmp_path: Path) -> None:
    attack(tmp_path / "run", how, rank)


class Run:
    """A long run that a test disturbs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "warprun", *LONG, f"run_dir={folder}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        deadline = time.monotonic() + 60
        while not (folder / "checkpoints" / "manifest.json").exists() and self.process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def end(self) -> tuple[int, str]:
        try:
            _, error = self.process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            for pid in pids(self.folder).values():
                os.kill(pid, signal.SIGKILL)
            raise
        return self.process.returncode, error


@pytest.mark.by_default(0)
@pytest.mark.parametrize(
    ("how", "number"),
    [
        ("kill", 0),
        pytest.param("stop", 0, marks=pytest.mark.slow),
        *(pytest.param(how, number, marks=pytest.mark.reliability) for how in ("kill", "stop", "raise", "exit") for number in range(25)),
    ],
)
def test_a_rank_that_is_attacked_at_a_random_moment_ends_the_run(how: str, number: int, tmp_path: Path) -> None:
    draws = random.Random(f"{how}/{number}")
    rank = draws.choice([1, 2]) if number == 0 else draws.randrange(3)
    folder = tmp_path / "run"
    if how in ("raise", "exit"):
        attack(folder, how, rank)
        return
    run = Run(folder)
    time.sleep(draws.uniform(0.0, 2.0))
    os.kill(pids(folder)[rank], signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    code, error = run.end()
    assert_ended_well(folder, code, error, how, rank)


@pytest.mark.by_default(0)
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_is_passed_on_and_saves_a_checkpoint(number: signal.Signals, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.process.send_signal(number)
    code, _ = run.end()
    assert code == 128 + number
    wait_until_gone(run.folder)
    status = json.loads((run.folder / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert checkpoint.load(run.folder).env_steps == status["env_steps"]


@pytest.mark.by_default(0)
def test_ranks_end_with_the_process_that_has_started_them(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.process.kill()
    run.process.communicate()
    wait_until_gone(run.folder)
