"""Several processes, each with rollouts of its own, by torch.distributed: gloo for tensors of the CPU, NCCL for those of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from warprun.parallel.watch import Watch

LONGEST_S = 1e6
"""Longest time that an operation waits: others may roll out, evaluate or save for long, and the watch finds those that are lost."""


class Distributed:
    """A `Communicator` of the processes of torch.distributed."""

    def __init__(self, rank: int, size: int, device: torch.device, watch: Watch) -> None:
        """Call `meet` before anything else. `watch` knows why an operation fails: because another process is lost."""
        self.rank, self.size = rank, size
        self.joined = 0
        """Sums so far that this process has come to; one that is behind the others keeps them waiting."""
        self._envs: int | None = None
        self._contributes = True
        self._device, self._watch = device, watch

    def meet(self, store: dist.Store) -> None:
        """Connect with the other processes through `store`."""
        backend = "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo"
        self._together(
            lambda: dist.init_process_group(
                backend, store=store, rank=self.rank, world_size=self.size, timeout=timedelta(seconds=LONGEST_S)
            )
        )

    def part(self) -> None:
        """Leave the other processes; the last call of all."""
        dist.barrier() if self._device.type == "cpu" else self.any(False)
        dist.destroy_process_group()

    def contribute(self, envs: int) -> None:
        """Say from how many environments this process has something to learn now."""
        count = torch.tensor(float(envs), dtype=torch.float64)
        self._together(lambda: dist.all_reduce(count))
        self._contributes, self._envs = envs > 0, int(count)

    def envs(self, own: int) -> int:
        """Return from how many environments all processes learn now."""
        return own * self.size if self._envs is None else self._envs

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a tensor by its sum over the processes that contribute."""
        if not self._contributes:
            tensor.zero_()
        self.joined += 1
        self._together(lambda: dist.all_reduce(tensor))
        return tensor

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true in any process."""
        count = torch.tensor(float(flag))
        self._together(lambda: dist.all_reduce(count))
        return bool(count > 0)

    def broadcast_(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace `tensors` by those of rank 0."""
        for tensor in tensors:
            self._together(lambda tensor=tensor: dist.broadcast(tensor, 0))  # type: ignore[misc]

    def send(self, tensor: torch.Tensor) -> None:
        """Send a tensor of the CPU to rank 0, which calls `receive`."""
        self._together(lambda: dist.send(tensor, 0))

    def receive(self, tensor: torch.Tensor, rank: int) -> None:
        """Write what `rank` sends to a tensor of the CPU."""
        self._together(lambda: dist.recv(tensor, rank))

    def _together(self, operation: Callable[[], object]) -> None:
        try:
            operation()
        except RuntimeError:
            # gloo says that a connection was closed; the watch says whose, and a little later why.
            self._watch.explain()
            raise
