"""The table of a sweep's jobs, and how long they will take. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warprun.errors import printable
from warprun.runs.records.terminal import duration
from warprun.runs.summary import measured
from warprun.sweeps import states
from warprun.sweeps.plan import Job, Plan
from warprun.sweeps.states import State

STYLES = {"failed": "red", "killed": "red", "interrupted": "yellow", "running": "green", "waiting": "dim"}
ORDER = ("running", "failed", "killed", "interrupted", "solved", "finished", "waiting")
"""Which jobs are shown first if not all can be."""
COUNTED = ("running", "failed", "killed", "interrupted", "waiting")


@dataclass
class Board:
    """The states of all jobs of a plan. The state of a job that is done is read once."""

    plan: Plan
    names: list[str]
    states: list[State]

    @classmethod
    def of(cls, plan: Plan) -> Board:
        """Return the board of a plan as it is now."""
        return cls(plan, plan.names(), [states.read(job) for job in plan.jobs])

    def refresh(self, jobs: Sequence[Job] | None = None) -> None:
        """Read the states of some jobs again, or of all that are not done."""
        for job in self.plan.jobs if jobs is None else jobs:
            if not self.states[job.number].is_done:
                self.states[job.number] = states.read(job)

    def grow(self) -> None:
        """Add the jobs that the plan has got since."""
        self.names = self.plan.names()
        self.states += [states.read(job) for job in self.plan.jobs[len(self.states) :]]

    @property
    def counts(self) -> Mapping[str, int]:
        """State -> number of jobs."""
        found: dict[str, int] = {}
        for state in self.states:
            found[state.state] = found.get(state.state, 0) + 1
        return found

    def title(self, workers: int | None = None) -> str:
        """Return the counts in one line; with `workers` jobs at a time, or as many as run now, also the time left."""
        counts = self.counts
        done = sum(counts.get(state, 0) for state in states.DONE)
        total = len(self.states)
        parts = [f"{done} of {total} jobs finished", *(f"{counts[state]} {state}" for state in COUNTED if state in counts)]
        left = self._left_s(workers or counts.get("running", 0))
        return ", ".join([*parts, *([f"about {duration(left)} left"] if left is not None else [])])

    def _left_s(self, workers: int) -> float | None:
        """Return the seconds until the last job ends; None if nothing is known."""
        running = [state.left_s for state in self.states if state.state == "running"]
        took = [state.wall_s for state in self.states if state.is_done and state.wall_s]
        took += [state.wall_s + left for state in self.states if (left := state.left_s) is not None and state.wall_s]
        if not workers or not running or not took:
            return None
        mean = sum(took) / len(took)
        rest = [mean if left is None else left for left in running]
        return max(max(rest), (sum(rest) + mean * self.counts.get("waiting", 0)) / workers)

    def table(self, most: int | None = None) -> RenderableType:
        """Return the table of all jobs, or of `most`: those that run and have failed first."""
        shown = list(self.plan.jobs)
        if most is not None and len(shown) > most:
            newest = sorted(shown, key=lambda job: (ORDER.index(self.states[job.number].state), job.number))[: max(1, most - 1)]
            shown = sorted(newest)
        table = Table(title=self.title(), title_justify="left")
        for name in ("job", "settings", "state", "return", "env_steps", "wall time", "left", "error or folder"):
            table.add_column(
                name, justify="right" if name in ("job", "return", "env_steps", "wall time", "left") else "left", overflow="fold"
            )
        for job in shown:
            table.add_row(str(job.number), printable(self.names[job.number]), *self._row(job))
        hidden = len(self.plan.jobs) - len(shown)
        return Group(table, Text(f"and {hidden:,} more jobs", style="dim")) if hidden else table

    def _row(self, job: Job) -> list[str | Text]:
        state = self.states[job.number]
        return [
            Text(state.state, style=STYLES.get(state.state, "")),
            "" if state.returned is None else measured(state.returned, state.stderr),
            "" if state.env_steps is None else f"{state.env_steps:,}",
            "" if state.wall_s is None else duration(state.wall_s),
            "" if state.left_s is None else duration(state.left_s),
            printable(state.error) if state.error and not state.is_done else job.run.name if state.state != "waiting" else "",
        ]

    def line(self, job: Job) -> str:
        """Return one line about a job that has ended."""
        state, counts = self.states[job.number], self.counts
        ended = len(self.states) - counts.get("waiting", 0) - counts.get("running", 0)
        what = [f"{ended}/{len(self.states)} {state.state}: {printable(self.names[job.number])}"]
        if state.is_done and state.returned is not None:
            what.append(f"return {measured(state.returned, state.stderr)}")
        if state.is_done and state.env_steps is not None:
            what.append(f"{state.env_steps:,} env_steps")
        return ", ".join([*what, *([duration(state.wall_s)] if state.wall_s is not None else [])]) + (
            f": {state.error}" if state.error else ""
        )
