"""Several processes that learn, by torch.distributed: gloo for tensors of the CPU, NCCL for those of GPUs.

Beside the sums of a `Communicator` they exchange what one checkpoint needs of all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from warprun.parallel.watch import Watch
from warprun.state import State

LONGEST_S = 1e6
"""Longest wait of an operation: others may evaluate or save for long, and the watch finds those that are lost."""


class Distributed:
    """A `Communicator` of the processes of torch.distributed."""

    def __init__(self, rank: int, size: int, device: torch.device, watch: Watch) -> None:
        """Call `meet` before anything else. `watch` knows why an operation fails: because another process is lost."""
        self.rank, self.size = rank, size
        self.joined = 0
        """Sums and tensors of rank 0 so far that this process has come to; one that is behind the others keeps them waiting.

        Sums within a CUDA graph are not counted: Python does not see them. The orders of rank 0 are, one before each update.
        """
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
        count = torch.tensor(float(envs), dtype=torch.float64)
        self._together(lambda: dist.all_reduce(count))
        self._contributes, self._envs = envs > 0, int(count)

    def envs(self, own: int) -> int:
        return own * self.size if self._envs is None else self._envs

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._contributes:
            tensor.zero_()
        self.joined += 1
        self._together(lambda: dist.all_reduce(tensor))
        return tensor

    def any(self, flag: bool) -> bool:
        count = torch.tensor(float(flag))
        self._together(lambda: dist.all_reduce(count))
        return bool(count > 0)

    def broadcast_(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self._together(lambda tensor=tensor: dist.broadcast(tensor, 0))  # type: ignore[misc]
            self.joined += 1  # afterwards: while rank 0 evaluates, the others wait for its order without being ahead of it

    def send_state(self, own: State) -> None:
        """Send rank 0 the tensors that differ from its own; it calls `receive_states`."""
        names = sorted(own)
        differs = (self._digests(own, names)[self.rank] != 0).tolist()
        chosen = [name for name, other in zip(names, differs, strict=True) if other]
        header = [(name, str(own[name].dtype).removeprefix("torch."), list(own[name].shape)) for name in chosen]
        text = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
        for tensor in (torch.tensor([len(text)]), text, *(_bytes(own[name]) for name in chosen)):
            if tensor.numel():
                self._together(lambda tensor=tensor: dist.send(tensor, 0))  # type: ignore[misc]

    def receive_states(self, own: State) -> State:
        """Return what the others send: tensor NAME of rank 3 as `rank/3/NAME`."""
        self._digests(own, sorted(own))
        found = {}
        for rank in range(1, self.size):
            length = self._receive(torch.zeros(1, dtype=torch.int64), rank)
            text = self._receive(torch.zeros(int(length), dtype=torch.uint8), rank)
            for name, dtype, shape in json.loads(bytes(text.numpy())):
                tensor = found[f"rank/{rank}/{name}"] = torch.zeros(shape, dtype=getattr(torch, dtype))
                self._receive(_bytes(tensor), rank)
        return found

    def _receive(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        if tensor.numel():
            self._together(lambda: dist.recv(tensor, rank))
        return tensor

    def _digests(self, own: State, names: list[str]) -> torch.Tensor:
        """Return how the tensors of each rank differ from those of rank 0, [ranks, tensors]: 0 if they are the same."""
        table = torch.zeros((self.size, len(names), 2), dtype=torch.float64)
        parts = [divmod(digest([own[name]]), 2**32) for name in names]
        table[self.rank] = torch.tensor(parts, dtype=torch.float64)
        self.sum_(table)
        return (table != table[0]).any(-1)

    def _together(self, operation: Callable[[], object]) -> None:
        try:
            operation()
        except RuntimeError:
            # gloo says that a connection was closed; the watch says whose, and a little later why.
            self._watch.raise_reason()
            raise


def digest(tensors: Iterable[torch.Tensor]) -> int:
    """Return a hash of 64 bits of the contents of tensors."""
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(_bytes(tensor).numpy().data)
    return int.from_bytes(found.digest(), "little")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the content of a tensor as bytes on the CPU, on the same memory if it lies there in one piece."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return torch.from_numpy(flat.numpy().view(np.uint8)) if flat.numel() else torch.zeros(0, dtype=torch.uint8)
