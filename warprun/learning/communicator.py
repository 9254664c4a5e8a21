"""How processes that train together agree on numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch


class Communicator(Protocol):
    """Collective operations between the processes of one run; every process calls them in the same order.

    Agents use it for gradients, the moments of advantages, running statistics and metrics. Implementations must be usable with tensors
    of the run's device and must not make the host wait for a GPU in `sum_`.
    """

    rank: int
    """Number of this process, 0 to size - 1; rank 0 writes files."""
    size: int
    """Number of processes."""

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a floating-point `tensor` by its sum over the processes that contribute, in place; return it."""

    def contribute(self, envs: int) -> None:
        """Say from how many environments this process has something to learn now; 0: it has nothing, and no part in sums."""

    def envs(self, own: int) -> int:
        """Return from how many environments all processes learn now, of which `own` are those of this one."""

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true in any process."""

    def broadcast_(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace `tensors` by those of rank 0, in place."""


def mean_(communicator: Communicator, rows: int, *tensors: torch.Tensor) -> None:
    """Replace `tensors`, means over `rows` rows of this process each, by the means over the rows of all processes, in one exchange.

    All have the dtype of the first. In one process nothing changes.
    """
    if communicator.size == 1:
        return
    sums = communicator.sum_(torch.cat([*(tensor.reshape(-1) for tensor in tensors), tensors[0].new_ones(1)]).mul_(rows))
    sums.div_(sums[-1:].clone())
    for tensor, mean in zip(tensors, sums[:-1].split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


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
