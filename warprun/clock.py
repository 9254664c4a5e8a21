"""Where the time of a run goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class PhaseClock:
    """Measures the phases of an iteration without making the host wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._spent: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event] | float]] = defaultdict(list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside towards phase `name`."""
        if not self._on_gpu:
            began = time.perf_counter()
            yield
            self._spent[name].append(time.perf_counter() - began)
            return
        # Events are times on the device's own stream: kernels are still to run when the host comes by here.
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self._spent[name].append((start, end))

    def read(self) -> dict[str, float]:
        """Return the mean milliseconds of every phase since the last reading (waits for the device)."""
        if self._on_gpu:
            torch.cuda.synchronize()
        means = {}
        for name, spent in self._spent.items():
            times = [1e3 * s if isinstance(s, float) else s[0].elapsed_time(s[1]) for s in spent]
            means[name] = sum(times) / len(times)
        self._spent.clear()
        return means
