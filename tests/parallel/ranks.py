"""Runs of several ranks, started with mpiexec as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.finished import QUIET, last_record, weights
from warprun.parallel.launch import mpiexec

pytest.importorskip("mpi4py")

MPIEXEC = mpiexec()
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def start(ranks: int, *arguments: str, timeout_s: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `warprun ARGUMENTS` in `ranks` processes, or without mpiexec if that is 1."""
    command = [sys.executable, "-m", "warprun", *arguments]
    if ranks > 1:
        command = [MPIEXEC, "-n", str(ranks), *command]
    environment = os.environ | ONE_THREAD
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, **options)


def train(ranks: int, folder: Path, *arguments: str) -> dict[str, Any]:
    """Train in `folder` and return the last record."""
    done = start(ranks, *QUIET, *arguments, f"run_dir={folder}")
    assert done.returncode == 0, done.stderr + done.stdout
    return last_record(folder)


def assert_same(ours: Path, theirs: Path) -> None:
    """The agents of two runs have the same bits."""
    a, b = weights(ours), weights(theirs)
    # The tables of where the next step is are not needed by one simulator.
    extra = {name for name in a.keys() ^ b.keys() if not name.endswith(("replay/following", "replay/newest"))}
    assert not extra
    for name in a.keys() & b.keys():
        assert torch.equal(a[name], b[name]), name
