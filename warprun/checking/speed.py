"""How fast a simulator steps, without a policy."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 0.5


def steps_per_second(run: Callable[[], object], steps: int) -> float:
    """Return environment steps per second of `run`, a call of which takes `steps`; the first call does not count."""
    run()
    done, began = 0, time.perf_counter()
    while True:
        run()
        done += steps
        elapsed = time.perf_counter() - began
        if elapsed > SECONDS:
            return done / elapsed


def rate(steps: float) -> str:
    """Return a number of steps per second for people."""
    return f"{steps / 1e6:.3g} M" if steps >= 1e6 else f"{steps:,.0f}"
