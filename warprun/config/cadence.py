"""Intervals in a run: "10s", "5min", "1e6 steps", "20 iterations", "5%" of the run, or "never"."""

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
"""Unit in the text -> the field of `Moment` that it measures, and the size of the unit."""
NEVER = "never"
AUTO = "auto"
"""The interval between evaluations that `runs.timetable.interval` chooses."""
ROUNDING = 1e-9
"""Tolerance for rounding errors, as a share of the interval."""
EXAMPLES = "10s, 5min, '1e6 steps', '20 iterations', 5% (of the run) or never"


class Moment(NamedTuple):
    """The progress of a run at one moment."""

    seconds: float
    """Wall-clock time."""
    env_steps: int
    """Environment steps, summed over the environments."""
    iterations: int
    """Completed iterations, each a rollout and its update."""
    progress: float
    """Completed share of the run, 0 to 1."""


@dataclass(frozen=True)
class Cadence:
    """An interval; infinite for "never"."""

    counts: str
    """The field of `Moment` that is measured."""
    interval: float


def parse(key: str, text: str) -> Cadence:
    """Parse the text of an interval; `key` is its setting, for the message of the UserError."""
    if text == NEVER:
        return Cadence("iterations", math.inf)
    match = re.fullmatch(r"\s*([-+.\deE]+)\s*([a-z%]+)\s*", text)
    unit = {"step": "steps", "iteration": "iterations"}.get(match[2], match[2]) if match else ""
    try:
        amount = float(match[1]) if match else math.nan
    except ValueError:
        amount = math.nan
    if unit not in UNITS or not 0 < amount < math.inf:
        auto = ", or auto" if key == "eval.every" else ""
        raise UserError(f"{key}={text} is not an interval: write {EXAMPLES}{auto}")
    counts, size = UNITS[unit]
    return Cadence(counts, amount * size)


class Recurring:
    """Tells when an action that repeats at an interval is due.

    Intervals of steps, iterations and progress count from the start of the run, so runs that differ only in their seed act at the same
    steps. Intervals of seconds count from the last time that the action was due.
    """

    def __init__(self, cadence: Cadence, start: Moment) -> None:
        """`start`: the last time that the action was due, or any later moment before it is due again."""
        self._cadence = cadence
        self.due_s = start.seconds
        """Wall-clock time when the action was due last."""
        self._next = self._after(getattr(start, cadence.counts))
        """Value of the measured field from which on the action is due."""

    @property
    def counts(self) -> str:
        """The field of `Moment` that is measured."""
        return self._cadence.counts

    def due(self, now: Moment) -> bool:
        """Return whether an interval has ended since the last call that returned True."""
        value = getattr(now, self._cadence.counts)
        if value < self._next:
            return False
        self._next = self._after(value)
        self.due_s = now.seconds
        return True

    def _after(self, value: float) -> float:
        interval = self._cadence.interval
        if self._cadence.counts == "seconds" or math.isinf(interval):
            return value + interval
        # Slightly less than the multiple, because sums of percentages may fall short of it by rounding.
        return (math.floor(value / interval + ROUNDING) + 1.0 - ROUNDING) * interval
