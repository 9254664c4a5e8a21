"""Sums over the blocks of a kernel, in a fixed order (CUDA)."""

from __future__ import annotations

import numpy as np
import torch

from warprun.kernels.mlp_cuda import read
from warprun.simulation.cuda_launch import launch, module_for, on_device, want

PARTS = 16
"""Threads that share the sum of one number over blocks."""

float32 = np.float32


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
def reduce(partial, width, blocks, total):
    lane, part = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
    shared = cuda.shared.array(SUMS, float32)
    at = cuda.blockIdx.x * 32 + lane
    sum_over_blocks(partial, width, blocks, shared, lane, part, PARTS, at)
    cuda.syncthreads()
    if part == 0 and at < width:
        found = float32(0.0)
        for p in range(PARTS):
            found += shared[p * 32 + lane]
        total[at] = found
'''


class BlockSums:
    """The memory in which each block of a kernel leaves `width` numbers, and their sums."""

    def __init__(self, width: int, blocks: int, device: torch.device) -> None:
        self.partial = torch.empty(blocks * width, device=device)
        """[blocks * width]."""
        self.total = torch.empty(width, device=device)
        self._module = module_for("sums_cuda", KERNEL.format(parts=PARTS), {"sum_over_blocks": sum_over_blocks})

    def add(self, blocks: int) -> None:
        """Write the sums over the first `blocks` blocks to `total`."""
        launch(self._module, "reduce", (-(-len(self.total) // 32), 32 * PARTS), self._arguments(blocks))

    def compile_ahead(self) -> None:
        """Let another process compile the kernel (`kernels.ahead`)."""
        want(self._module, "reduce", self._arguments(1))

    def _arguments(self, blocks: int) -> tuple[object, ...]:
        return on_device(self.partial), len(self.total), blocks, on_device(self.total)
