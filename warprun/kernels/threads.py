"""CPU threads for kernels and torch operations, which release Python's global interpreter lock (GIL) while they compute.

Numba's parallel loops are not used: they would compile every kernel a second time and add a second thread pool beside torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch


class Threads:
    """A pool of `count` threads, including the calling thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        # torch keeps the number of OpenMP threads per thread, so every worker has to set it.
        self.pool = ThreadPoolExecutor(count - 1, "warprun", torch.set_num_threads, (1,)) if count > 1 else None

    def share(self, work: Callable[[int, int, int], None], total: int) -> None:
        """Split the items 0 .. `total` - 1 evenly and call `work(begin, end, thread)` on each thread that gets any; wait for all."""
        # Waking a thread can take longer than one item, so a thread without items is not woken.
        count = max(1, min(self.count, total))
        ends = [total * n // count for n in range(count + 1)]
        others = [self.pool.submit(work, ends[n], ends[n + 1], n) for n in range(1, count)] if self.pool else []
        try:
            work(ends[0], ends[1], 0)
        finally:
            # Also after an error: no thread may still write when the caller continues.
            for other in others:
                other.exception()
        for other in others:
            other.result()


@cache
def threads(count: int) -> Threads:
    """Return the pool of `count` threads of this process, created at the first call."""
    return Threads(count)
