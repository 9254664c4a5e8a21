"""A long run does not grow: memory, open files, threads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest


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
def test_a_run_does_not_grow(tmp_path):
    check(watched(tmp_path, 20_000_000))


@pytest.mark.reliability
def test_a_billion_steps_do_not_grow(tmp_path):
    check(watched(tmp_path, 1_000_000_000))
