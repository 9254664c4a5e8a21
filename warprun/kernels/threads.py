"""CPU threads for kernels and torch operations, which release Python's global lock while they compute.

Not Numba's parallel loops: they would compile every kernel a second time, and bring a second pool of threads beside torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch


class Threads:
    """`count` threads, the calling one among them."""

    def __init__(self, count: int) -> None:
        self.count = count
        # Each thread has its own count of torch's OpenMP threads.
        self.pool = ThreadPoolExecutor(count - 1, "warprun", torch.set_num_threads, (1,)) if count > 1 else None

    def share(self, work: Callable[[int, int, int], None], total: int) -> None:
        """Call `work(begin, end, thread)` on every thread that there is a part for of `total` pieces."""
        # Waking a thread takes longer than one piece of an environment that runs alone.
        count = max(1, min(self.count, total))
        ends = [total * n // count for n in range(count + 1)]
        others = [self.pool.submit(work, ends[n], ends[n + 1], n) for n in range(1, count)] if self.pool else []
        try:
            work(ends[0], ends[1], 0)
        finally:
            # Also after an error: nobody may still write when the caller goes on.
            for other in others:
                other.exception()
        for other in others:
            other.result()


@cache
def threads(count: int) -> Threads:
    """Return the threads of this process for `count`; they are made once."""
    return Threads(count)
