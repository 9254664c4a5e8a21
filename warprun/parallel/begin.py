"""How a rank other than 0 begins: it waits for rank 0, and prints to a file of the run folder."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from warprun.parallel.watch import Watch
from warprun.run_folder import LOGS


class Ranks(Protocol):
    """The ranks of a run, and how they agree: `actors.world.World` or `concurrency.team.Team`."""

    @property
    def watch(self) -> Watch:
        """Finds ranks that are lost."""

    def share(self, text: str) -> str:
        """Return the text of rank 0."""

    def together(self) -> AbstractContextManager[None]:
        """Do something in all ranks or in none."""


def begin(ranks: Ranks, process: int, name: Callable[[int], str]) -> str:
    """Wait, as process number `process`, until rank 0 is set up: it compiles kernels that the others load, and makes the folder.

    Return what else it shares.
    """
    with ranks.together():
        pass
    folder, _, more = ranks.share("").partition("\n")
    _redirect(Path(folder) / LOGS / f"rank_{process}.log")
    print(f"{name(process)}, process {os.getpid()} on {socket.gethostname()}", flush=True)
    return more


def _redirect(path: Path) -> None:
    """Send everything that this process prints to a file."""
    path.parent.mkdir(exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    sys.stdout.flush()
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.close(handle)
