"""Runs of one or several processes, started as a user does, and what tests see of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.finished import QUIET, last_record, until
from warprun.parallel.launch import leftovers, mpiexec, shared_memory

ROOT = Path(__file__).parents[2]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
ENDLESS = [*QUIET, "eval.final_episodes=2", "stop_when_solved=false"]


def command(ranks: int, *arguments: str) -> list[str]:
    """Return the command `warprun ARGUMENTS` in `ranks` processes, without mpiexec if that is 1."""
    own = [sys.executable, "-m", "warprun", *arguments]
    if ranks == 1:
        return own
    pytest.importorskip("mpi4py")
    return [mpiexec(), "-n", str(ranks), *own]


def start(
    ranks: int, *arguments: str, timeout_s: float = 300, environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `warprun ARGUMENTS` in `ranks` processes; `environment` changes variables."""
    variables = os.environ | ONE_THREAD | (environment or {})
    given = command(ranks, *arguments)
    return subprocess.run(given, capture_output=True, text=True, timeout=timeout_s, env=variables, **options)


def train(ranks: int, folder: Path, *arguments: str) -> dict[str, Any]:
    """Train in `folder` and return the last record."""
    done = start(ranks, *QUIET, *arguments, f"run_dir={folder}", cwd=ROOT)
    assert done.returncode == 0, done.stderr + done.stdout
    return last_record(folder)


class Run:
    """A long run that a test disturbs."""

    def __init__(self, ranks: int, folder: Path, *arguments: str, **environment: str) -> None:
        if not Path("/proc/self").exists():
            pytest.skip("finds processes in /proc")
        self.folder, self._memory = folder, shared_memory()
        self.process = subprocess.Popen(
            command(ranks, *arguments, f"run_dir={folder}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | ONE_THREAD | environment,
        )

    def wait_for_checkpoint(self) -> None:
        """Wait until there is a checkpoint, or the run has ended."""
        manifest = self.folder / "checkpoints" / "manifest.json"
        until(lambda: manifest.exists() or self.process.poll() is not None)

    def pids(self) -> dict[int, int]:
        """Return rank -> process id, of the ranks that still exist; -1 is the process that has started them."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"run_dir={self.folder}".encode() not in path.with_name("cmdline").read_bytes().split(b"\0"):
                    continue
                entries = dict(entry.split(b"=", 1) for entry in path.read_bytes().split(b"\0") if b"=" in entry)
                if path.with_name("stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    found[int(entries.get(b"RANK", entries.get(b"PMI_RANK", b"-1")))] = int(path.parent.name)
        return found

    def end(self, patience_s: float) -> str:
        """Return what the run says on standard error, if it ends within `patience_s`."""
        try:
            return self.process.communicate(timeout=patience_s)[1]
        except subprocess.TimeoutExpired:
            for pid in self.pids().values():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            raise

    def wait_until_gone(self, patience_s: float = 5) -> None:
        """Wait until no process of the run exists, and see that it leaves no shared memory."""
        until(lambda: not self.pids(), patience_s)
        assert not leftovers(self._memory)
