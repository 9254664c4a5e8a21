"""How the other ranks follow rank 0: they begin when it is set up, and do what it orders."""

from __future__ import annotations

import os
import socket
from enum import IntEnum
from pathlib import Path

import torch

from warprun.learning.communicator import Communicator
from warprun.processes import Ranks, print_to
from warprun.run_folder import LOGS


def lead(ranks: Ranks, folder: Path, more: str) -> None:
    """Let the others begin, as rank 0 that is set up and has made the run folder; return when all are set up."""
    ranks.share(f"{folder.absolute()}\n{more}")
    with ranks.together():
        pass


def begin(ranks: Ranks) -> str:
    """Wait until rank 0 is set up: it compiles kernels that the others load, and makes the folder, to which they print.

    Return what else it shares.
    """
    with ranks.together():
        pass
    folder, _, more = ranks.share("").partition("\n")
    print_to(Path(folder) / LOGS / f"rank_{ranks.rank}.log")
    print(f"{ranks.name(ranks.rank)}, process {os.getpid()} on {socket.gethostname()}", flush=True)
    return more


class Order(IntEnum):
    """The next thing that all ranks that learn do together."""

    END = 0
    """End the run."""
    ITERATE = 1
    """Roll out and learn."""
    COUNT = 2
    """Add up the episodes that have ended, and compare the policies."""
    SAVE = 3
    """Bring to rank 0 what a checkpoint needs."""


def give(communicator: Communicator, order: Order, progress: float = 0.0) -> None:
    """Tell the other ranks what is next, and the progress of the run, which schedules follow."""
    if communicator.size > 1:
        communicator.broadcast_([torch.tensor([float(order), progress], dtype=torch.float64)])


def take(communicator: Communicator) -> tuple[Order, float]:
    """Return what rank 0 has ordered, and the progress of the run."""
    numbers = torch.zeros(2, dtype=torch.float64)
    communicator.broadcast_([numbers])
    order, progress = numbers.tolist()
    return Order(int(order)), progress
