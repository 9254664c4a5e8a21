"""The limits of a run, and its progress towards them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warprun.config.cadence import Moment
from warprun.errors import RunHasEndedError
from warprun.runs.position import Position


@dataclass(frozen=True)
class Limits:
    """The limits of a run, and its progress towards them."""

    total_steps: int
    max_minutes: float | None
    began_s: float
    """Wall-clock time from which progress counts: the end of compilation."""

    def moment(self, seconds: float, env_steps: int, iterations: int) -> Moment:
        """Return the state of the run; its progress is the larger of the progress in steps and in time."""
        progress = env_steps / self.total_steps
        if self.max_minutes is not None:
            progress = max(progress, (seconds - self.began_s) / max(60.0 * self.max_minutes - self.began_s, 1e-9))
        return Moment(seconds, env_steps, iterations, min(progress, 1.0))

    def reached(self, now: Moment, iteration_s: float) -> bool:
        """Return whether the run ends now: all steps are taken, or half of another iteration would exceed the time limit."""
        in_time = self.max_minutes is None or now.seconds + 0.5 * iteration_s < 60.0 * self.max_minutes
        return now.env_steps >= self.total_steps or not in_time

    def refuse_ended(self, now: Moment, position: Position, folder: Path, stop_when_solved: bool) -> None:
        """Raise RunHasEndedError if the checkpoint of a run says that there is nothing left to do."""
        if self.reached(now, position.iteration_s) and not position.pending:
            raise RunHasEndedError(
                f"the run in {folder} has ended: it took {now.env_steps:,} env_steps of total_steps={self.total_steps:,}; a larger"
                " total_steps or max_minutes continues it"
            )
        if position.solved and stop_when_solved:
            raise RunHasEndedError(f"the run in {folder} has solved its environment; stop_when_solved=false continues it")
