"""Runs of several processes that learn together, started as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.finished import QUIET, last_record

ROOT = Path(__file__).parents[2]
ENDLESS = [*QUIET, "eval.final_episodes=2", "stop_when_solved=false"]
CARTPOLE = ["env=cartpole", "agent=a2c", "n_envs=13", "agent.horizon=8"]


def warprun(*arguments: str, timeout_s: float = 120, start: Sequence[str] = (), **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `warprun ARGUMENTS`; `environment` changes variables, and `start` is what starts several processes."""
    environment = os.environ | options.pop("environment", {})
    command = [*start, sys.executable, "-m", "warprun", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, **options)


def train(processes: int, folder: Path, *arguments: str) -> dict[str, Any]:
    """Train in `folder` and return the last record."""
    several = ["concurrency=ddp", f"concurrency.processes={processes}"] if processes > 1 else []
    done = warprun(*ENDLESS, *arguments, *several, f"run_dir={folder}", cwd=ROOT)
    assert done.returncode == 0, done.stderr + done.stdout
    return last_record(folder)


def pids(folder: Path) -> dict[int, int]:
    """Return rank -> process id, of the ranks of a run that still exist; -1 is the process that has started them."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"run_dir={folder}".encode() not in path.with_name("cmdline").read_bytes().split(b"\0"):
                continue
            entries = dict(entry.split(b"=", 1) for entry in path.read_bytes().split(b"\0") if b"=" in entry)
            if path.with_name("stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found[int(entries.get(b"RANK", b"-1"))] = int(path.parent.name)
    return found


def wait_until_gone(folder: Path, timeout_s: float = 5) -> None:
    """Wait until no process of a run exists."""
    deadline = time.monotonic() + timeout_s
    while pids(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not pids(folder)
