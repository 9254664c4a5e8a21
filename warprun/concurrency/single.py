"""One process: the identity of every collective operation."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class SingleProcess:
    """The `Communicator` of a run in one process."""

    rank = 0
    size = 1

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return `tensor`: one process is its own sum."""
        return tensor

    def contribute(self, envs: int) -> None:
        """Do nothing: one process always learns from all it has."""

    def envs(self, own: int) -> int:
        """Return `own`."""
        return own

    def any(self, flag: bool) -> bool:
        """Return `flag`."""
        return flag

    def broadcast_(self, tensors: Iterable[torch.Tensor]) -> None:
        """Leave `tensors` as they are."""
