"""Measures how long the phases of an iteration take."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch


class Spent(NamedTuple):
    """The time of a phase."""

    mean_ms: float
    """Mean over the runs of the phase."""
    total_ms: float


class PhaseClock:
    """Measures the phases of an iteration without making the host wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._spent: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event] | float]] = defaultdict(list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the `with` block to phase `name`."""
        if not self._on_gpu:
            began = time.perf_counter()
            yield
            self._spent[name].append(time.perf_counter() - began)
            return
        # Events take the time on the device's stream: when the host gets here, kernels may not have run yet.
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self._spent[name].append((start, end))

    def read(self) -> dict[str, Spent]:
        """Return the time of every phase since the last call (waits for the device)."""
        if self._on_gpu:
            torch.cuda.synchronize()
        found = {}
        for name, spent in self._spent.items():
            times = [1e3 * s if isinstance(s, float) else s[0].elapsed_time(s[1]) for s in spent]
            found[name] = Spent(sum(times) / len(times), sum(times))
        self._spent.clear()
        return found
