"""The table of the jobs of a sweep, and the estimate of the time left. No torch."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warprun.errors import UserError, printable
from warprun.runs import rundir
from warprun.runs.progress import facts
from warprun.runs.records.jsonl import JsonLines, read_rows
from warprun.runs.records.terminal import duration
from warprun.runs.summary import measured
from warprun.sweeps.plan import Job, Plan
from warprun.sweeps.returns import Returns

STYLES = {"failed": "red", "killed": "red", "interrupted": "yellow", "running": "green", "waiting": "dim"}
ORDER = ("running", "failed", "killed", "interrupted", "solved", "finished", "waiting")
"""States in the order in which their jobs are shown if there is no room for all."""
MANY, FEW, BEST = 50, 30, 10
"""Jobs of a sweep above which the table is a summary, its most rows if there is room, and how many of them are of the best jobs."""
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
        return cls(plan, plan.names(), [state_of(job) for job in plan.jobs])

    def refresh(self, jobs: Sequence[Job] | None = None) -> None:
        """Read the states of some jobs again, or of all that are not done."""
        for job in self.plan.jobs if jobs is None else jobs:
            if not self.states[job.number].is_done:
                self.states[job.number] = state_of(job)

    def wait(self, jobs: Sequence[Job]) -> None:
        """Show jobs that begin, or begin again, as waiting."""
        for job in jobs:
            self.states[job.number] = replace(self.states[job.number], state=WAITING, error="")

    def begun(self, job: Job) -> None:
        """Show a job that begins, or begins again, with the settings that the plan has now."""
        self.names = self.plan.names()
        self.states += [state_of(new) for new in self.plan.jobs[len(self.states) :]]
        self.states[job.number] = state_of(job)

    @property
    def counts(self) -> Mapping[str, int]:
        """State -> number of jobs."""
        found: dict[str, int] = {}
        for state in self.states:
            found[state.state] = found.get(state.state, 0) + 1
        return found

    def title(self) -> str:
        """Return the counts in one line, and the time left with as many jobs at a time as run now."""
        counts = self.counts
        done = sum(counts.get(state, 0) for state in rundir.ENDED)
        total = len(self.states)
        parts = [f"{done} of {total} jobs finished", *(f"{counts[state]} {state}" for state in COUNTED if state in counts)]
        left = self._left_s(counts.get("running", 0))
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
        if len(shown) > MANY:
            shown = self._chosen(FEW if most is None else min(FEW, most // 2))  # long settings take two lines
        elif most is not None and len(shown) > most:
            newest = sorted(shown, key=lambda job: (ORDER.index(self.states[job.number].state), job.number))[: max(1, most - 1)]
            shown = sorted(newest)
        groups = sorted({state.group for state in self.states if state.group})
        of_groups = [f"return: that of group {printable(', '.join(groups))} (eval.group)"] if groups else []
        table = Table(title="\n".join([self.title(), *self._spread(), *of_groups]), title_justify="left")
        for name in ("job", "settings", "state", "return", "env_steps", "wall time", "left", "error or folder"):
            is_number = name in ("job", "return", "env_steps", "wall time", "left")
            table.add_column(name, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
        for job in shown:
            table.add_row(str(job.number), printable(self.names[job.number]), *self._row(job))
        hidden = len(self.plan.jobs) - len(shown)
        return Group(table, Text(f"and {hidden:,} more jobs", style="dim")) if hidden else table

    def returns(self) -> list[float]:
        """Return the returns of all jobs that are done."""
        return [state.returned for state in self.states if state.is_done and state.returned is not None]

    def _spread(self) -> list[str]:
        """Return the line of a large sweep on the returns of its jobs, if there are some."""
        returns = self.returns() if len(self.plan.jobs) > MANY else []
        if not returns:
            return []
        return [f"{len(returns):,} returns: {Returns.of(returns).describe()}; {self.counts.get('solved', 0):,} solved"]

    def _chosen(self, most: int) -> list[Job]:
        """Return the jobs that a table of few rows shows: first those that run or did not end well, then the best."""
        open_ones = [job for job in self.plan.jobs if self.states[job.number].state not in (WAITING, *rundir.ENDED)]
        done = [
            (state.returned, -(state.env_steps or 0), -number)  # of equal returns the earlier one
            for number, state in enumerate(self.states)
            if state.is_done and state.returned is not None
        ]
        best = [self.plan.jobs[-number] for *_, number in heapq.nlargest(min(BEST, max(1, most // 2)), done)]
        open_ones.sort(key=lambda job: ORDER.index(self.states[job.number].state))
        return [*open_ones[: most - len(best)], *best]

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
        """Return a line about a job that has ended."""
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


WAITING = "waiting"


@dataclass(frozen=True)
class State:
    """The state of one job."""

    state: str
    """waiting, running, finished, solved, failed, interrupted or killed."""
    error: str = ""
    """Why it failed, or was interrupted, in one line."""
    env_steps: int | None = None
    wall_s: float | None = None
    """Seconds of the run, over all its processes."""
    returned: float | None = None
    """Return of the last evaluation, else of the training episodes."""
    stderr: float | None = None
    """Standard error of the return."""
    progress: float | None = None
    """Part of the run that is done, from 0 to 1."""
    attempts: int = 0
    group: str = ""
    """Of several groups the one whose return that is."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.state in rundir.ENDED

    @property
    def left_s(self) -> float | None:
        """Seconds that a running job still needs, by its progress; None if unknown."""
        if self.state != "running" or not self.progress or self.wall_s is None:
            return None
        return self.wall_s * (1.0 - self.progress) / self.progress


def state_of(job: Job) -> State:
    """Return the state of a job: status.json of its folder, and what its run has recorded so far."""
    status = rundir.read_status(job.folder)
    state = str(status.get("state", WAITING))
    ran = rundir.read_status(job.run) if state in (WAITING, *rundir.ENDED) else facts(job.run)
    evaluated = _number(ran, "eval")
    group = ran.get("group")
    return State(
        state,
        str(status.get("error", "") or ""),
        _whole(ran, "env_steps"),
        _number(ran, "wall_s"),
        _number(ran, "train") if evaluated is None else evaluated,
        None if evaluated is None else _number(ran, "eval_stderr"),
        1.0 if state in rundir.ENDED else _number(ran, "progress"),
        _whole(status, "attempts") or 0,
        group if isinstance(group, str) else "",
    )


def evaluations(job: Job, group: str | None) -> list[tuple[int, float]]:
    """Return (env_steps, return of a group) of every evaluation that a run has recorded; `group` None: the environment's first."""
    try:
        rows = read_rows(job.run / JsonLines.name, lambda tag: tag == "env_steps" or tag.startswith("eval/"))
    except (OSError, UserError):
        return []
    found = []
    for row in rows:
        tags = [tag for tag in row if tag.startswith("eval/") and tag.endswith("/return") and group in (None, tag.split("/")[1])]
        if tags:
            found.append((int(row["env_steps"]), row[tags[0]]))
    return found


def _number(found: Mapping[str, object], key: str) -> float | None:
    value = found.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _whole(found: Mapping[str, object], key: str) -> int | None:
    value = _number(found, key)
    return None if value is None or abs(value) >= 2**63 else int(value)
