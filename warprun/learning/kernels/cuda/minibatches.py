"""Kernels (CUDA) for the work between the gradients of minibatches; `cpu.minibatches` is the same on CPU.

The advantages of all minibatches of an epoch are picked at once, and their moments computed: one block for each minibatch, and of large
minibatches sums of several blocks before. An order is made by sorting random keys: by one block as long as its shared memory holds them, by
torch if there are more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from warprun.kernels.mlp_cuda import read, write
from warprun.learning.draws import Stream
from warprun.learning.formulas import adapted
from warprun.learning.kernels.cuda.returns import mean_and_variance
from warprun.learning.kernels.cuda.sums import add_up
from warprun.learning.kernels.cuda.tiles import barrier, stream_key, words
from warprun.learning.kernels.draws import TOGETHER, bits_of
from warprun.learning.operations import Moments, TorchOperations
from warprun.simulation.cuda_launch import WARP, launch, module_for, on_device, want
from warprun.simulation.cuda_layers import most_shared_bytes

THREADS = 256
MOST_BLOCKS = 64
"""Blocks that pick one minibatch."""
ALONE = 4
"""Rows of a thread up to which one block picks a minibatch."""
SORTING = 1024
"""Threads of a block that sorts, or picks a whole minibatch."""

float32, float64, int64, uint32, uint64 = np.float32, np.float64, np.int64, np.uint32, np.uint64


def key_of_row(stream, row, step_rows):
    """Return the random key of a row, 31 bits; rows of a step that stay together have the same one."""
    runs = (step_rows + TOGETHER - 1) // TOGETHER
    run = row // step_rows * runs + row % step_rows // TOGETHER if step_rows > 1 else row
    return bits_of(stream_key(stream), run) >> uint32(1)


def sort(numbers, size, thread, threads):
    """Sort `size` numbers, a power of 2, in shared memory: bitonic sorting, Batcher 1968."""
    width = 2
    while width <= size:
        apart = width // 2
        while apart > 0:
            barrier()
            for pair in range(thread, size // 2, threads):
                low = 2 * pair - pair % apart
                first, second = numbers[low], numbers[low + apart]
                if (first > second) == (low // width % 2 == 0):
                    numbers[low], numbers[low + apart] = second, first
            apart //= 2
        width *= 2
    barrier()


KERNELS = '''"""Minibatches on CUDA; written by warprun."""

from numba import cuda, float32, float64, int32, int64, uint64

SORTING, NUMBERS = {sorting}, 2 * {sorting}


@cuda.jit(cache=CACHE, fastmath=False)
def keys(stream, step_rows, out):
    row = cuda.grid(1)
    if row < out.size:
        out[row] = int32(key_of_row(stream, row, step_rows))


@cuda.jit(cache=CACHE, fastmath=False)
def order(stream, step_rows, size, out):
    numbers = cuda.shared.array(0, uint64)
    # Rows behind their keys: equal keys keep the order of their rows.
    for row in range(cuda.threadIdx.x, size, SORTING):
        key = uint64(key_of_row(stream, row, step_rows)) if row < out.size else uint64(0xFFFFFFFF)
        numbers[row] = (key << uint64(32)) | uint64(row)
    sort(numbers, size, cuda.threadIdx.x, SORTING)
    for row in range(cuda.threadIdx.x, out.size, SORTING):
        out[row] = int64(numbers[row] & uint64(0xFFFFFFFF))


@cuda.jit(cache=CACHE, fastmath=False)
def pick(advantage, order, parts, blocks, picked, sums, out):
    thread, threads, part, block = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks
    shared = cuda.shared.array(NUMBERS, float64)
    begin, end = order.size * part // parts, order.size * (part + 1) // parts
    # float64, because the variance may be small compared with the mean.
    total, square = float64(0.0), float64(0.0)
    for m in range(begin + block * threads + thread, end, blocks * threads):
        x = read(advantage, read(order, m))
        write(picked, m, x)
        total += float64(x)
        square += float64(x) * float64(x)
    shared[thread], shared[threads + thread] = total, square
    add_up(shared, 0, thread, threads)
    add_up(shared, threads, thread, threads)
    if thread == 0:
        if blocks == 1:
            out[2 * part], out[2 * part + 1] = mean_and_variance(shared[0], shared[threads], end - begin)
        else:
            sums[2 * cuda.blockIdx.x], sums[2 * cuda.blockIdx.x + 1] = shared[0], shared[threads]


@cuda.jit(cache=CACHE, fastmath=False)
def part_moments(sums, rows, blocks, out):
    part, parts = cuda.blockIdx.x, cuda.gridDim.x
    if cuda.threadIdx.x == 0:
        total, square = float64(0.0), float64(0.0)
        for b in range(part * blocks, (part + 1) * blocks):
            total += sums[2 * b]
            square += sums[2 * b + 1]
        count = rows * (part + 1) // parts - rows * part // parts
        out[2 * part], out[2 * part + 1] = mean_and_variance(total, square, count)


@cuda.jit(cache=CACHE, fastmath=False)
def adapt(kl, desired, given, low, high, factor, learning_rate):
    if cuda.threadIdx.x == 0:
        found = adapted(factor[0], float64(kl[0]), desired, low, high)
        factor[0], learning_rate[0] = found, found * given
'''


class CudaMinibatches:
    """The operations of one group that only several gradient steps need, see `Operations`."""

    def __init__(self, reference: TorchOperations) -> None:
        self._adapted = reference.rate_factor.view(1), reference.learning_rate.view(1)
        self._numbers = tuple(map(float64, (reference.config.learning_rate, *reference.rate_limits)))
        self._adapts = reference.config.adapts_learning_rate
        functions = (adapted, add_up, key_of_row, mean_and_variance, read, sort, write)
        names = {function.__name__: function for function in functions}
        self._module = module_for("minibatches_cuda", KERNELS.format(sorting=SORTING), names)

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        rate = self._adapted[1]
        order, number = torch.zeros_like(rate, dtype=torch.int64), torch.zeros_like(rate, dtype=torch.float32)
        numbers, sums, rows = on_device(number), on_device(rate), on_device(order)
        want(self._module, "order", (words(Stream(0, order)), 1, 1, rows))
        want(self._module, "pick", (numbers, rows, 1, 1, numbers, sums, numbers))
        want(self._module, "part_moments", (sums, 1, 1, numbers))
        if self._adapts:
            want(self._module, "adapt", self._adaption(number, 0.0))

    def permutation(self, n: int, seed: int, draw: torch.Tensor, step_rows: int = 1) -> torch.Tensor:
        """Return a random order of 0..n-1, [n] int64, see `draws.permutation`."""
        size = 1 << (n - 1).bit_length()
        if 8 * size <= most_shared_bytes():
            order = torch.empty(n, dtype=torch.int64, device=draw.device)
            launch(self._module, "order", (1, SORTING), (words(Stream(seed, draw)), step_rows, size, on_device(order)), 8 * size)
            return order
        keys = torch.empty(n, dtype=torch.int32, device=draw.device)
        launch(self._module, "keys", (-(-n // THREADS), THREADS), (words(Stream(seed, draw)), step_rows, on_device(keys)))
        return keys.sort(stable=True).indices

    def pick(self, advantage: torch.Tensor, order: torch.Tensor, parts: Sequence[slice]) -> list[tuple[torch.Tensor, Moments]]:
        """Return the advantages of each minibatch, with their mean and variance, see `Operations`."""
        rows, count = len(order), len(parts)
        # Few rows a thread take less time than a launch for the sums of several blocks.
        blocks, threads = 1, max(WARP, 1 << (-(-rows // (count * ALONE)) - 1).bit_length())
        if threads > SORTING:
            blocks, threads = min(MOST_BLOCKS, -(-rows // (count * THREADS))), THREADS
        picked, out = torch.empty_like(advantage[:rows]), advantage.new_empty(2 * count)
        sums = on_device(advantage.new_empty(2 * count * blocks, dtype=torch.float64))
        given = on_device(advantage), on_device(order), count, blocks, on_device(picked), sums, on_device(out)
        launch(self._module, "pick", (count * blocks, threads), given)
        if blocks > 1:
            launch(self._module, "part_moments", (count, 32), (sums, rows, blocks, on_device(out)))
        moments = out.view(count, 2).unbind()
        return [(picked[part], (mean, variance)) for part, (mean, variance) in zip(parts, moments, strict=True)]

    def adapt(self, kl: torch.Tensor, desired: float) -> None:
        """Change the learning rate by the divergence of an update, [], see `Operations`."""
        launch(self._module, "adapt", (1, 32), self._adaption(kl, desired))

    def _adaption(self, kl: torch.Tensor, desired: float) -> tuple[object, ...]:
        return (on_device(kl.view(1)), float64(desired), *self._numbers, *map(on_device, self._adapted))
