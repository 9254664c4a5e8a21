"""The view of jobs that a command waits for, and the loop that starts them. No torch."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from rich.live import Live

from warprun.errors import printable
from warprun.runs import signals
from warprun.runs.records.terminal import PlainConsole, table_console
from warprun.sweeps.events import Summary
from warprun.sweeps.launcher import Running
from warprun.sweeps.plan import Job
from warprun.sweeps.table import Board

LOOK_S = 0.05
"""Seconds between two looks at the jobs."""
DRAW_S = 1.0
"""Seconds between two looks at the records of running jobs."""


class View:
    """The view of running jobs: a table that changes in a terminal, else a line for every job that ends."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._console = table_console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if self._console.is_terminal else None
        self._next_s = 0.0
        self._summary = Summary(board)

    @contextmanager
    def open(self) -> Iterator[View]:
        """Show the view in this context."""
        try:
            if self._live:
                self._live.start()
            yield self
        finally:
            if self._live:
                self._live.stop()
            self._summary.close()

    def message(self, text: str) -> None:
        """Print a line; the reader may have gone."""
        with suppress(OSError):
            self._console.sentence(printable(text, 1000))

    def draw(self, running: Sequence[Job]) -> None:
        """Draw the table again if it is due."""
        if self._live and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + DRAW_S
            self._board.refresh(running)
            with suppress(OSError):
                self._live.update(self._board.table(rows_of(self._console)), refresh=True)

    def ended(self, job: Job) -> None:
        """Print how a job has ended, a failed one on standard error, and add it to the summary for TensorBoard."""
        self._board.refresh([job])
        self._summary.add()
        state = self._board.states[job.number]
        if state.state == "failed":
            line = printable(f"{self._board.names[job.number]}: {state.error}", 1000)
            with suppress(OSError):
                print(f"warprun: error: {line}", file=sys.stderr, flush=True)
        if not self._live:
            self.message(self._board.line(job))


def rows_of(console: PlainConsole) -> int:
    """Return the number of jobs that a table in this terminal has room for."""
    return max(3, console.height - 8)


def run(board: Board, jobs: Sequence[Job], running: Running) -> None:
    """Train jobs until all have ended. After a signal all running ones save a checkpoint; then KeyboardInterrupt is raised."""
    waiting, stopped = deque(jobs), False
    board.wait(jobs)
    with View(board).open() as view, signals.flagged(), signals.requests.deferred():
        while waiting or running.jobs:
            number = signals.requests.number
            if number is not None and not stopped:
                stopped = True
                waiting.clear()
                view.message(f"{signals.explain(number)}: {len(running.jobs)} jobs save checkpoints and end")
                running.stop(number)
            while waiting and not running.is_full:
                running.start(waiting.popleft())
            view.draw(running.jobs)
            for job in running.ended(LOOK_S):
                view.ended(job)
        if stopped:
            raise KeyboardInterrupt
