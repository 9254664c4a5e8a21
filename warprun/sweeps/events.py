"""TensorBoard of a sweep: one event file in its folder with the results of all jobs, over the jobs that have ended.

The jobs of a large sweep write no event files of their own: TensorBoard would read hundreds. No torch.
"""

from __future__ import annotations

import sys
import time

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.text.summary_v2 import text_pb

from warprun.errors import program, typed
from warprun.runs.records.tensorboard import EventFile, scalars
from warprun.runs.rundir import ENDED
from warprun.sweeps.plan import Job, Plan
from warprun.sweeps.returns import Returns
from warprun.sweeps.table import Board

MOST_FILES = 32
"""Jobs of a sweep that write event files of their own without being told to."""
MOST_ROWS = 100
"""Most rows of the table of settings."""
SETTING = "log.tensorboard="


def added(plan: Plan, job: Job) -> list[str]:
    """Return the overrides that a job gets because it belongs to a large sweep."""
    is_large = len(plan.jobs) > MOST_FILES and plan.search is None
    return [f"{SETTING}false"] if is_large and not any(override.startswith(SETTING) for override in job.overrides) else []


def note(plan: Plan, waits: bool) -> str:
    """Return one line on the event files of a sweep whose jobs write none of their own; empty for others.

    `waits`: whether the command waits for the jobs, and writes one in the sweep folder.
    """
    if not any(added(plan, job) for job in plan.jobs):
        return ""
    first = f"one event file in the sweep folder for all {len(plan.jobs):,} jobs" if waits else "jobs write no event files"
    later = f"{program()} report {typed(plan.folder)} tensorboard=true"
    return f"TensorBoard: {first}; each writes its own with log.tensorboard=true, or later by `{later}`"


class Summary:
    """The event file of a sweep. A failure to write is told once and ends nothing."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._file = EventFile(board.plan.folder)
        self._failed = False

    def add(self) -> None:
        """Write the results of all jobs that are done, at the number of those that have ended as step."""
        counts = self._board.counts
        ended = len(self._board.states) - counts.get("waiting", 0) - counts.get("running", 0)
        returns = self._board.returns()
        if not returns or self._is_unwanted():
            return
        found = Returns.of(returns)
        done = sum(counts.get(state, 0) for state in ENDED)
        values = {f"sweep/return_{name}": value for name, value in found._asdict().items()}
        values |= {"sweep/solved_share": counts.get("solved", 0) / done, "sweep/failed": float(counts.get("failed", 0))}
        self._write(scalars(values, ended, time.time()))

    def close(self) -> None:
        """Write the table of settings and close the file."""
        if self._file.is_begun:
            self._write(Event(wall_time=time.time(), summary=text_pb("settings", self._table())))
        self._file.close()

    def _table(self) -> str:
        """Return a Markdown table: for each setting the jobs, interquartile mean and median of returns, and how many are solved.

        It is no page of HPARAMS, which knows one setting for each folder with event files.
        """
        settings: dict[str, list[int]] = {}
        for number, name in enumerate(self._board.names):
            if self._board.states[number].is_done and self._board.states[number].returned is not None:
                setting = " ".join(part for part in name.split(" ") if not part.startswith("seed=")) or "(all defaults)"
                settings.setdefault(setting, []).append(number)
        rows = []
        for setting, numbers in settings.items():
            states = [self._board.states[number] for number in numbers]
            rows.append(
                (
                    Returns.of([state.returned or 0.0 for state in states]),
                    setting,
                    sum(state.state == "solved" for state in states),
                    len(states),
                )
            )
        rows.sort(key=lambda row: -row[0].iqm)
        head = "| settings | jobs | IQM | median | best | solved |\n|---|--:|--:|--:|--:|--:|\n"
        lines = [
            f"| `{name}` | {jobs} | {spread.iqm:.4g} | {spread.median:.4g} | {spread.best:.4g} | {solved} |"
            for spread, name, solved, jobs in rows
        ]
        more = f"\n\nand {len(rows) - MOST_ROWS:,} more settings" if len(rows) > MOST_ROWS else ""
        return head + "\n".join(lines[:MOST_ROWS]) + more

    def _is_unwanted(self) -> bool:
        return all(f"{SETTING}false" in job.overrides for job in self._board.plan.jobs)

    def _write(self, event: Event) -> None:
        try:
            self._file.write([event])
        except OSError as error:
            if not self._failed:
                print(f"warning: cannot write the event file of the sweep: {error.strerror}", file=sys.stderr, flush=True)
            self._failed = True
