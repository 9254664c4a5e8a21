"""The timetable of a run: its evaluations, records, checkpoints and its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warprun.config.cadence import AUTO, Cadence, Moment, Recurring, parse
from warprun.config.registry import Defined
from warprun.config.schema import Config
from warprun.environment import Environment
from warprun.errors import RunHasEndedError
from warprun.runs.evaluation import CHUNK
from warprun.runs.position import Position

SHARE = 0.05
"""Largest share of the steps of training that evaluations take by default, without the one at the end."""
SHORTEST, LONGEST = 0.01, 0.25
"""Shares of `total_steps` between two evaluations by default."""


@dataclass(frozen=True)
class Limits:
    """The limits of a run, and its progress towards them."""

    total_steps: int
    max_minutes: float | None
    began_s: float
    """Wall-clock time from which progress counts: the end of compilation."""
    until_steps: int | None = None
    """Steps after which the run ends, if not after `total_steps`, which the progress refers to."""

    def moment(self, seconds: float, env_steps: int, iterations: int) -> Moment:
        """Return the state of the run; its progress is the larger of the progress in steps and in time."""
        progress = env_steps / self.total_steps
        if self.max_minutes is not None:
            progress = max(progress, (seconds - self.began_s) / max(60.0 * self.max_minutes - self.began_s, 1e-9))
        return Moment(seconds, env_steps, iterations, min(progress, 1.0))

    def reached(self, now: Moment, iteration_s: float) -> bool:
        """Return whether the run ends now: all steps are taken, or half of another iteration would exceed the time limit."""
        in_time = self.max_minutes is None or now.seconds + 0.5 * iteration_s < 60.0 * self.max_minutes
        return now.env_steps >= self._last_steps or not in_time

    @property
    def _last_steps(self) -> int:
        return self.total_steps if self.until_steps is None else min(self.until_steps, self.total_steps)

    @property
    def _named(self) -> str:
        is_early = self._last_steps < self.total_steps
        return f"until_steps={self._last_steps:,}" if is_early else f"total_steps={self.total_steps:,}"

    def refuse_ended(self, now: Moment, position: Position, folder: Path, stop_when_solved: bool) -> None:
        """Raise RunHasEndedError if the checkpoint of a run says that there is nothing left to do."""
        if self.reached(now, position.iteration_s) and not position.pending:
            raise RunHasEndedError(
                f"the run in {folder} has ended: it took {now.env_steps:,} env_steps of {self._named}; a larger"
                f" {self._named.partition('=')[0]} or max_minutes continues it"
            )
        if position.solved and stop_when_solved:
            raise RunHasEndedError(f"the run in {folder} has solved its environment; stop_when_solved=false continues it")


def timetable(config: Config, environment: Defined, boundary: Moment, due_s: Mapping[str, float]) -> dict[str, Recurring]:
    """Return what repeats in a run ("checkpoint", "log", "eval"), from `boundary` on; `due_s`: when each was due last."""
    intervals = {
        "checkpoint": parse("checkpoint.every", config.checkpoint.every),
        "log": parse("log.every", config.log.every),
        "eval": interval(config, environment),
    }
    return {name: Recurring(each, boundary._replace(seconds=due_s.get(name, 0.0))) for name, each in intervals.items()}


def interval(config: Config, environment: Defined) -> Cadence:
    """Return the interval between evaluations.

    By default it counts environment steps, and follows from the settings alone: an evaluation takes at most `SHARE` of it,
    also if all episodes have their full length. In environments made of kernels, a training step costs as much as
    `agent.work()` steps of an evaluation; in others, where the simulator may be slow, as much as one.
    """
    if config.eval.every != AUTO:
        return parse("eval.every", config.eval.every)
    chunks = math.ceil((environment.spec.time_limit or config.eval.max_steps) / CHUNK)
    steps = config.eval.episodes * chunks * CHUNK / SHARE / (config.agent.work() if isinstance(environment, Environment) else 1.0)
    return Cadence("env_steps", min(max(steps, SHORTEST * config.total_steps), LONGEST * config.total_steps))
