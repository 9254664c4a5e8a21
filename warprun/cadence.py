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

    def periods(self, moment: Moment) -> float:
        """Return how many whole intervals are over."""
        return 0.0 if math.isinf(self.interval) else math.floor(getattr(moment, self.counts) / self.interval + 1e-9)


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
        raise UserError(f"{key}={text} says not how often: write {EXAMPLES}")
    counts, size = UNITS[unit]
    return Cadence(counts, amount * size)


class Recurring:
    """Something that is due whenever a further interval is over.

    Intervals of steps, iterations and progress are counted from the start of the run, so that runs which differ in their seed alone do it
    at the same steps; intervals of seconds from the last time that it was due.
    """

    def __init__(self, cadence: Cadence, start: Moment) -> None:
        self._cadence = cadence
        self._began = start.seconds
        self._periods = cadence.periods(self._counted(start))

    def due(self, now: Moment) -> bool:
        """Tell whether an interval ended since the last time that the answer was yes."""
        periods = self._cadence.periods(self._counted(now))
        if periods <= self._periods:
            return False
        if self._cadence.counts == "seconds":
            self._began = now.seconds
        else:
            self._periods = periods
        return True

    def _counted(self, moment: Moment) -> Moment:
        return moment._replace(seconds=moment.seconds - self._began)
