"""Sums over the blocks of a kernel, in a fixed order (CUDA)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels.mlp_cuda import read
from warprun.learning.kernels.cuda.tiles import barrier
from warprun.simulation.cuda_launch import launch, module_for, on_device, want

PARTS = 16
"""Threads that share the sum of one number over blocks."""

float32 = np.float32


class Begun(NamedTuple):
    """The beginning of a step of an optimizer, left by the kernel before it; kernels get device arrays in place of the tensors."""

    squares: torch.Tensor
    """Sums of the squares of parts of the gradient, in the order in which a step adds them."""
    steps: torch.Tensor
    """[1] float64: steps so far."""
    number: torch.Tensor
    """[1] float64: number of the step, from 1 on. Not in the place of `steps`, which another block of the step may still read."""
    size: int
    """Numbers of the gradient."""


def add_up(shared, first, thread, threads):
    """Leave the sum of what each of `threads` threads, a power of 2, wrote to `shared` from `first` on in the first of these numbers."""
    barrier()
    half = threads // 2
    while half > 0:
        if thread < half:
            shared[first + thread] += shared[first + thread + half]
        barrier()
        half //= 2


def add_up_pairs(shared, second, rows, features, thread):
    """Leave the sums of the rows of two tables [rows, features], at 0 and at `second`, in their first rows: each thread wrote a number."""
    while rows > 1:
        kept = (rows + 1) // 2
        barrier()
        if thread < (rows - kept) * features:
            shared[thread] += shared[kept * features + thread]
            shared[second + thread] += shared[second + kept * features + thread]
        rows = kept
    barrier()


def sum_over_blocks(partial, width, blocks, shared, lane, part, parts, at):
    """Add number `at` of every `parts`-th block, from `part` on, and write the sum to `shared`."""
    found = float32(0.0)
    if at < width:
        for b in range(part, blocks, parts):
            found += read(partial, b * width + at)
    shared[part * 32 + lane] = found


KERNEL = '''"""Sums over blocks on CUDA; written by warprun."""

from numba import cuda, float32

PARTS, SUMS = {parts}, 32 * {parts}


@cuda.jit(cache=CACHE, fastmath=False)
def reduce(partial, width, blocks, total, begun):
    lane, part = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
    shared = cuda.shared.array(SUMS, float32)
    at = cuda.blockIdx.x * 32 + lane
    sum_over_blocks(partial, width, blocks, shared, lane, part, PARTS, at)
    cuda.syncthreads()
    if part == 0:
        found = float32(0.0)
        for p in range(PARTS):
            found += shared[p * 32 + lane]
        if at < width:
            total[at] = found
        shared[lane] = found * found if at < begun.size else float32(0.0)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        squares = float32(0.0)
        for k in range(32):
            squares += shared[k]
        begun.squares[cuda.blockIdx.x] = squares
        if cuda.blockIdx.x == 0:
            begun.number[0] = begun.steps[0] + 1.0
'''


class BlockSums:
    """The memory in which each block of a kernel leaves `width` numbers, and their sums: a gradient and what else was computed with it."""

    def __init__(self, width: int, blocks: int, device: torch.device) -> None:
        self.partial = torch.empty(blocks * width, device=device)
        """[blocks * width]."""
        self.total = torch.empty(width, device=device)
        steps = torch.zeros(2, dtype=torch.float64, device=device)
        self.begun = Begun(torch.empty(-(-width // 32), device=device), steps[:1], steps[1:], width)
        """What `add` leaves for a step of an optimizer, which puts its own `steps` there."""
        self._version = -1
        """That of `total` when kernels wrote it last."""
        self._module = module_for("sums_cuda", KERNEL.format(parts=PARTS), {"sum_over_blocks": sum_over_blocks})

    def add(self, blocks: int) -> None:
        """Write the sums over the first `blocks` blocks to `total`."""
        launch(self._module, "reduce", (len(self.begun.squares), 32 * PARTS), self._arguments(blocks))
        self._version = self.total._version

    def hold(self, gradient: torch.Tensor) -> bool:
        """Return whether `gradient` is the one whose squares `begun` has: what `add` wrote last, and torch has not changed since."""
        same = gradient.data_ptr() == self.total.data_ptr() and len(gradient) == self.begun.size
        return same and gradient._version == self._version

    def compile_ahead(self) -> None:
        """Let another process compile the kernel (`kernels.ahead`)."""
        want(self._module, "reduce", self._arguments(1))

    def _arguments(self, blocks: int) -> tuple[object, ...]:
        return on_device(self.partial), len(self.total), blocks, on_device(self.total), on_device(self.begun)
