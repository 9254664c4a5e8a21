"""How far a run is, drawn from its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from warprun.runtime.records.sink import Mark, Row


class Outcome(NamedTuple):
    """What the actors of one group achieve; NaN is shown, None was not logged yet."""

    group: str  # empty where there is one group
    train_return: float | None
    eval_return: float | None
    length: float | None  # steps of an episode


class Progress:
    """Keep the latest value of every tag, and tell how far the run is and how long it will take."""

    def __init__(self, config: Mapping[str, Any], resume: Mark | None = None) -> None:
        self.total_steps: float | None = config.get("total_steps")
        self._limit_s = 60.0 * config["max_minutes"] if config.get("max_minutes") else None
        self.env_steps, self.wall_s = (resume.env_steps, resume.wall_s) if resume else (0, 0.0)
        self.values: dict[str, float] = {}
        self._first: Row | None = None

    def update(self, row: Row) -> None:
        """Take one row."""
        self.env_steps, self.wall_s = row.env_steps, row.wall_s
        self.values |= row.values
        self._first = self._first or row

    @property
    def fraction(self) -> float | None:
        """The share of the run that is done, 0 to 1; None where nothing limits it."""
        shares = []
        if self.total_steps:
            shares.append(self.env_steps / self.total_steps)
        if self._limit_s:
            shares.append(self.wall_s / self._limit_s)
        return min(1.0, max(shares)) if shares else None

    @property
    def left_s(self) -> float | None:
        """Seconds that the run will still take; None where that is unknown."""
        times = []
        if self._limit_s:
            times.append(self._limit_s - self.wall_s)
        # From the first row on, so that compilation does not count.
        if self.total_steps and self._first and self.env_steps > self._first.env_steps:
            pace = (self.wall_s - self._first.wall_s) / (self.env_steps - self._first.env_steps)
            times.append((self.total_steps - self.env_steps) * pace)
        return max(0.0, min(times)) if times else None

    @property
    def steps_per_s(self) -> float | None:
        """Environment steps per second in the last log interval."""
        return self.values.get("perf/env_steps_per_s")

    @property
    def shares(self) -> dict[str, float]:
        """The parts of the last log interval that went into each phase; those that were not logged are left out."""
        return {part: self.values[tag] for part in ("rollout", "update", "eval", "log") if (tag := f"perf/{part}_share") in self.values}

    @property
    def outcomes(self) -> list[Outcome]:
        """One outcome for every group of actors."""
        groups = sorted({tag.split("/")[1] for tag in self.values if tag.startswith(("train/", "eval/")) and tag.count("/") == 2})
        return [self._outcome(group) for group in groups or [""]]

    def _outcome(self, group: str) -> Outcome:
        part = f"{group}/" if group else ""
        # Episodes end for all groups together, so their length may be logged once.
        length = self.values.get(f"train/{part}episode_length", self.values.get("train/episode_length"))
        return Outcome(group, self.values.get(f"train/{part}return"), self.values.get(f"eval/{part}return"), length)
