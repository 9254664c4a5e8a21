"""Several processes, each with rollouts of its own, by torch.distributed: gloo on CPU, NCCL on GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist


class Distributed:
    """A `Communicator` of the processes of torch.distributed."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        """Call `meet` before anything else."""
        self.rank, self.size = rank, size
        self.contributors = size
        self._contributes = True
        self._device = device

    def meet(self, store: dist.Store, timeout_s: float) -> None:
        """Connect with the other processes through `store`; an operation that waits for longer than `timeout_s` fails."""
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=timedelta(seconds=timeout_s))

    def contribute(self, flag: bool) -> int:
        """Say whether this process has something to learn from now; return how many have."""
        count = torch.tensor(float(flag), device=self._device)
        dist.all_reduce(count)
        self._contributes, self.contributors = flag, int(count)
        return self.contributors

    def mean_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a tensor by its mean over the processes that contribute."""
        if not self._contributes:
            tensor.zero_()
        dist.all_reduce(tensor)
        return tensor.div_(self.contributors)

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true in any process."""
        count = torch.tensor(float(flag), device=self._device)
        dist.all_reduce(count)
        return bool(count > 0)

    def broadcast_(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace `tensors` by those of rank 0."""
        for tensor in tensors:
            dist.broadcast(tensor, 0)
