"""One process: the identity of every collective operation."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class SingleProcess:
    """The `Communicator` of a run in one process."""

    rank = 0
    size = 1
    contributors = 1

    def mean_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return `tensor`: one process is its own mean."""
        return tensor

    def contribute(self, flag: bool) -> int:
        """Return 1 if `flag`."""
        return int(flag)

    def any(self, flag: bool) -> bool:
        """Return `flag`."""
        return flag

    def broadcast_(self, tensors: Iterable[torch.Tensor]) -> None:
        """Leave `tensors` as they are."""
