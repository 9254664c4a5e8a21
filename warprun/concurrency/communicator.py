"""How processes that train together agree on numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch


class Communicator(Protocol):
    """Collective operations between the processes of one run; every process calls them in the same order.

    Agents use it for gradients, the moments of advantages, running statistics and metrics; the run for stopping, and to decide who
    writes files. Implementations must be usable with tensors of the run's device and must not make the host wait for a GPU in `mean_`.
    """

    rank: int
    """Number of this process, 0 to size - 1; rank 0 writes files."""
    size: int
    """Number of processes."""
    contributors: int
    """Processes that have something to learn from now: all but perhaps at the end of a run. Means are over these."""

    def mean_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a floating-point `tensor` by its mean over the processes that contribute, in place; return it."""

    def contribute(self, flag: bool) -> int:
        """Say whether this process has something to learn from now; return how many processes have."""

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true in any process."""

    def broadcast_(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace `tensors` by those of rank 0, in place."""
