"""A run that is killed and continued ends exactly as one that is left alone."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.reliability.runs import TINY, assert_same, begin, command, undisturbed, wait
from tests.selection import few


@pytest.fixture(scope="module", params=few(TINY, "a2c", "dqn"))
def whole(request, tmp_path_factory):
    """An agent, the outcome of its uninterrupted run, and the seconds that it took."""
    return request.param, *undisturbed(request.param, tmp_path_factory.mktemp("whole"))


def killed_and_continued(agent: str, folder: Path, after_s: float, seconds: float, draw: random.Random) -> int:
    """Kill a run after a time, then kill its continuations with probability 1/2; return the number of kills."""
    log, kills = folder.with_suffix(".log"), 0
    arguments = [*command(agent, folder), "resume=auto"]
    while True:
        pid = begin(arguments, log)
        if kills and draw.random() < 0.5:
            assert wait(pid) == 0, log.read_text()
            return kills
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
        code = wait(pid)
        if code == 0:
            return kills
        assert code == -signal.SIGKILL
        kills += 1
        after_s = draw.uniform(0.0, seconds)


@pytest.mark.by_default(1)
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.reliability)])
def test_a_killed_run_ends_as_one_that_was_left_alone(whole, tmp_path, kills):
    agent, wanted, seconds = whole
    draw, done = random.Random(agent), 0
    while done < kills:
        place = tmp_path / f"{done}"
        done += killed_and_continued(agent, place, draw.uniform(0.0, seconds), seconds, draw)
        assert_same(place, wanted)


# A long run does not grow: memory, open files, threads ----------------------------------------------------------------


class Use(NamedTuple):
    resident_kib: int
    files: int
    threads: int


def use(pid: int) -> Use:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Use(int(status["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]))


def watched(folder: Path, total_steps: int) -> list[Use]:
    """Train CartPole and return what the process used, from a fifth of the run on, when every kind of work has been done."""
    arguments = ["env=cartpole", "agent=a2c", "n_envs=10000", f"total_steps={total_steps}", "stop_when_solved=false"]
    often = ["checkpoint.every=2%", "eval.every=4%", "log.every=0.2%", "run_dir=run", "device=cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "warprun", *arguments, *often], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    records, found = folder / "run" / "metrics.jsonl", []
    while process.poll() is None:
        time.sleep(0.2)
        if records.exists() and records.read_bytes().count(b"\n") > 100:
            try:
                found.append(use(process.pid))
            except (OSError, KeyError):  # it has just ended
                break
    assert process.wait() == 0, process.stderr.read()
    return found


def check(found: list[Use]) -> None:
    """Compare the smallest use in the first quarter with that in the last.

    What leaks raises the smallest use too; a checkpoint that is being written at the moment of a look does not.
    """
    quarter = max(1, len(found) // 4)
    first, last = (Use(*map(min, zip(*part, strict=True))) for part in (found[:quarter], found[-quarter:]))
    print(f"{first} to {last}: memory {last.resident_kib / first.resident_kib - 1:+.2%}")
    assert last.resident_kib <= 1.01 * first.resident_kib
    assert last.files <= first.files
    assert last.threads <= first.threads


@pytest.mark.by_default(0)
@pytest.mark.parametrize("steps", [20_000_000, pytest.param(1_000_000_000, marks=pytest.mark.reliability)])
def test_a_run_does_not_grow(tmp_path, steps):
    check(watched(tmp_path, steps))
