"""Work on large batches in cache-sized slices, on threads, with the same bits for any number of threads.

On CPU the number of rows alone decides how a batch is cut into slices. One thread computes each slice (torch itself runs with one thread;
its operations release the GIL), and gradients are added in the order of the slices. So the number of threads does not change the result.
On CUDA the whole batch is one slice.
"""

from __future__ import annotations

import copy
import ctypes
import platform
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar, cast

import torch

from warprun.kernels.threads import Threads
from warprun.kernels.threads import threads as threads_of_process

ROWS = 4096
"""Most rows of a slice: activations of 64 features, 1 MB, still fit the second-level cache."""
SEQUENCES = 2
"""By how many times slices of sequences may be larger: kernels take tiles of them through the caches, so fewer calls count for more."""
TOGETHER = 4
"""The number of slices is a multiple of this, so that 2 or 4 threads finish at the same time."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of settings in glibc's malloc.h."""

R = TypeVar("R")


class Slices:
    """Cuts batches into slices, computes the slices on `threads` threads and collects the results."""

    def __init__(self, device: torch.device, threads: int) -> None:
        self.on_cpu = device.type == "cpu"
        self.rows = ROWS
        self.threads: Threads | None = None
        if self.on_cpu:
            use_one_torch_thread()
            self.threads = threads_of_process(threads)

    def undivided(self) -> Slices:
        """Return slices that leave every batch in one piece, on the thread that asks."""
        whole = copy.copy(self)
        whole.rows = 2**63
        return whole

    def of_samples(self, steps: int) -> Slices:
        """Return slices for batches of samples, each of `steps` rows, instead of rows."""
        if steps == 1:
            return self
        wider = copy.copy(self)
        wider.rows = max(1, SEQUENCES * self.rows // steps)
        return wider

    def cut(self, rows: int) -> list[slice]:
        """Return the slices of a batch of `rows` rows; their sizes differ by one at most."""
        count = -(-rows // self.rows)
        if not self.on_cpu or count <= 1:
            return [slice(0, rows)]
        return split(rows, -(-count // TOGETHER) * TOGETHER)

    def map(self, function: Callable[[slice], R], rows: int) -> list[R]:
        """Return `function` of every slice of a batch of `rows` rows, in their order."""
        parts = self.cut(rows)
        if self.threads is None or len(parts) == 1:
            return [function(part) for part in parts]
        results: list[R | None] = [None] * len(parts)

        def work(begin: int, end: int, _: int) -> None:
            for n in range(begin, end):
                results[n] = function(parts[n])

        self.threads.share(work, len(parts))
        return cast(list[R], results)

    def gradient(
        self, terms: Callable[[slice], tuple[torch.Tensor, ...]], parameters: Sequence[torch.Tensor], rows: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of a loss that is a mean over `rows` rows, and the terms [K] of the loss.

        `terms(part)` returns means over the rows of a slice, the loss first; the result weights them by the slice's share of the rows.
        """

        def of_slice(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
            share = (part.stop - part.start) / rows
            with torch.enable_grad():
                means = terms(part)
                gradients = torch.autograd.grad(means[0] * share, parameters, allow_unused=True, materialize_grads=True)
            return torch.cat([g.reshape(-1) for g in gradients]), torch.stack(means).detach() * share

        (gradient, total), *rest = self.map(of_slice, rows)
        for more_gradient, more_terms in rest:
            gradient += more_gradient
            total += more_terms
        return gradient, total


def use_one_torch_thread() -> None:
    """Make torch compute on the thread that calls it, and keep the memory that it frees."""
    torch.set_num_threads(1)
    # glibc would give freed memory back: page faults on activations cost a fifth of an update.
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def split(rows: int, count: int) -> list[slice]:
    """Cut `rows` rows into `count` slices whose sizes differ by one at most."""
    ends = [rows * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]
