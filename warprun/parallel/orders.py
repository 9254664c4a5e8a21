"""What rank 0 tells the other ranks that learn to do next."""

from __future__ import annotations

from enum import IntEnum

import torch

from warprun.learning.communicator import Communicator


class Order(IntEnum):
    """What all ranks do together."""

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
