"""How often something happens in a run: "10s", "5min", "1e6 steps", "20 iterations", "5%" of the run, or "never". No numba, no torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from warprun.errors import UserError

UNITS: dict[str, tuple[str, float]] = {
    "s": ("seconds", 1.0),
    "min": ("seconds", 60.0),
    "h": ("seconds", 3600.0),
    "steps": ("env_steps", 1.0),
    "iterations": ("iterations", 1.0),
    "%": ("progress", 0.01),
}
"""Unit as it is typed -> the field of `Moment` that it counts, and its size."""
NEVER = "never"
ROUNDING = 1e-9
"""Part of an interval that counts as none."""
EXAMPLES = "10s, 5min, '1e6 steps', '20 iterations', 5% (of the run) or never"


class Moment(NamedTuple):
    """Where a run stands."""

    seconds: float
    """Wall-clock time."""
    env_steps: int
    """Environment steps, summed over the environments."""
    iterations: int
    """Rollouts with their updates."""
    progress: float
    """Part of the run that is over, 0 to 1."""


@dataclass(frozen=True)
class Cadence:
    """An interval; infinite for "never"."""

    counts: str
    """The field of `Moment` that is counted."""
    interval: float


def parse(key: str, text: str) -> Cadence:
    """Read a cadence; `key` is the setting that holds it, for the message of the UserError."""
    if text == NEVER:
        return Cadence("iterations", math.inf)
    match = re.fullmatch(r"\s*([-+.\deE]+)\s*([a-z%]+)\s*", text)
    unit = {"step": "steps", "iteration": "iterations"}.get(match[2], match[2]) if match else ""
    try:
        amount = float(match[1]) if match else math.nan
    except ValueError:
        amount = math.nan
    if unit not in UNITS or not 0 < amount < math.inf:
        raise UserError(f"{key}={text} cannot be read as an interval: write {EXAMPLES}")
    counts, size = UNITS[unit]
    return Cadence(counts, amount * size)


class Recurring:
    """Something that is due whenever a further interval is over.

    Intervals of steps, iterations and progress are counted from the start of the run, so that runs which differ in their seed alone do it
    at the same steps; intervals of seconds from the last time that it was due.
    """

    def __init__(self, cadence: Cadence, start: Moment) -> None:
        self._cadence = cadence
        self._next = self._after(getattr(start, cadence.counts))
        """Value of what is counted from which on it is due."""

    def due(self, now: Moment) -> bool:
        """Tell whether an interval ended since the last time that the answer was yes."""
        value = getattr(now, self._cadence.counts)
        if value < self._next:
            return False
        self._next = self._after(value)
        return True

    def _after(self, value: float) -> float:
        interval = self._cadence.interval
        if self._cadence.counts == "seconds" or math.isinf(interval):
            return value + interval
        # A little less than a multiple, which sums of percentages may miss by rounding.
        return (math.floor(value / interval + ROUNDING) + 1.0 - ROUNDING) * interval
