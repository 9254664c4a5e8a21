"""The progress of a run, computed from its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from warprun.runs.records.numbers import si
from warprun.runs.records.sink import Row


class Outcome(NamedTuple):
    """The latest results of one group of actors; None: not logged yet."""

    group: str
    """Empty if there is only one group."""
    train_return: float | None
    eval_return: float | None
    length: float | None
    """Steps per episode."""


class Progress:
    """Keep the latest value of every tag, and estimate how much of the run is done and how long the rest takes."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self.total_steps = _limit(config, "total_steps")
        minutes = _limit(config, "max_minutes")
        self._limit_s = 60.0 * minutes if minutes else None
        self.env_steps, self.wall_s = 0, 0.0
        self.values: dict[str, float] = {}
        self._first: Row | None = None

    def update(self, row: Row) -> None:
        """Add one row."""
        self.env_steps, self.wall_s = row.env_steps, row.wall_s
        self.values |= row.values
        self._first = self._first or row

    @property
    def fraction(self) -> float | None:
        """The fraction of the run that is done, 0 to 1; None if the run has no limit."""
        shares = []
        if self.total_steps:
            shares.append(self.env_steps / self.total_steps)
        if self._limit_s:
            shares.append(self.wall_s / self._limit_s)
        return min(1.0, max(shares)) if shares else None

    @property
    def left_s(self) -> float | None:
        """Estimated seconds to the end of the run; None if unknown."""
        times = []
        if self._limit_s:
            times.append(self._limit_s - self.wall_s)
        # Counted from the first row, so that compilation is left out.
        if self.total_steps and self._first and self.env_steps > self._first.env_steps:
            pace = (self.wall_s - self._first.wall_s) / (self.env_steps - self._first.env_steps)
            times.append((self.total_steps - self.env_steps) * pace)
        return max(0.0, min(times)) if times else None

    @property
    def steps_per_s(self) -> float | None:
        """Environment steps per second of the last log interval."""
        return self.values.get("perf/env_steps_per_s")

    @property
    def shares(self) -> dict[str, float]:
        """The fraction of the last log interval that each phase took, without phases that were not logged."""
        return {part: self.values[tag] for part in ("rollout", "update", "eval", "log") if (tag := f"perf/{part}_share") in self.values}

    @property
    def roles(self) -> list[tuple[str, str]]:
        """What learners and actors do, in words: role and text; empty without actors."""
        of = {tag.removeprefix("actors/"): value for tag, value in self.values.items() if tag.startswith("actors/")}
        if not of:
            return []
        learner = f"waits {of['learner_waiting_share']:.0%} of the time, lag {of['lag_mean']:.1f}, at most {of['lag_max']:.0f}"
        left_out = f", {of['lost']:.0f} lost" if of.get("lost") else ""
        dropped = f", {si(of['rollouts_dropped'])} dropped" if of.get("rollouts_dropped") else ""
        made = f"{si(of['rollouts'])} rollouts{dropped}, {si(of['unique_rollouts_per_s'])} new ones/s"
        return [("learner", learner), ("actors", f"wait {of['actor_waiting_share']:.0%} of the time, {made}{left_out}")]

    @property
    def outcomes(self) -> list[Outcome]:
        """One outcome per group of actors."""
        groups = sorted({tag.split("/")[1] for tag in self.values if tag.startswith(("train/", "eval/")) and tag.count("/") == 2})
        return [self._outcome(group) for group in groups or [""]]

    def _outcome(self, group: str) -> Outcome:
        part = f"{group}/" if group else ""
        # All groups share their episodes, so the length may be logged once for all.
        length = self.values.get(f"train/{part}episode_length", self.values.get("train/episode_length"))
        return Outcome(group, self.values.get(f"train/{part}return"), self.values.get(f"eval/{part}return"), length)


def _limit(config: Mapping[str, object], key: str) -> float | None:
    value = config.get(key)
    return value if isinstance(value, int | float) else None
