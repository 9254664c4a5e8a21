"""Peak throughput of the fused kernels on this machine: the FLOP rate of their matrix product alone."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

from warprun.kernels import compile as kernels
from warprun.kernels.simd import COLUMNS, multiply
from warprun.kernels.threads import threads

SIZE = 64
"""Inputs and outputs of the layer; its data fits in the L1 cache."""
REPEATS = 20_000

SOURCE = '''"""Repeated products of one layer; written by warprun."""

from numba import njit


@njit(nogil=True, cache=True, **FLAGS)
def repeat(times, w, bias, x, y, size):
    for _ in range(times):
        multiply(w, size, 1, bias, x, y, size, size, x.size // size, x, 0)
'''


@cache
def measure(count: int) -> float:
    """Return the FLOP/s of `count` threads together, the best of five measurements."""
    module = kernels.load_module("peak", SOURCE, {"multiply": multiply, "FLAGS": kernels.FLAGS})

    def work(begin: int, end: int, thread: int) -> None:
        rows = SIZE * COLUMNS
        w, bias, x, y = (np.zeros(n, np.float32) for n in (SIZE * SIZE, SIZE, rows, rows))
        module.repeat(REPEATS, w, bias, x, y, SIZE)

    operations = 2.0 * SIZE * SIZE * COLUMNS * REPEATS * count
    times = []
    for _ in range(6):  # the first run compiles
        began = time.perf_counter()
        threads(count).share(work, count)
        times.append(time.perf_counter() - began)
    return operations / min(times)
