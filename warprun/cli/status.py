"""`warprun status` and `warprun cancel`: the jobs of a sweep, whoever started them. No torch."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.live import Live

from warprun.cli.process import DONE, FAILED
from warprun.cli.settings import one_run, read_settings
from warprun.errors import UserError, counted, printable
from warprun.runs import rundir, signals
from warprun.runs.records.terminal import table_console
from warprun.sweeps import launcher as launchers
from warprun.sweeps import plan
from warprun.sweeps.table import Board
from warprun.sweeps.view import rows_of


@dataclass
class _StatusSettings:
    """The settings of `warprun status`."""

    every_s: float = 2.0
    output_root: str = "outputs"


def status(arguments: Sequence[str]) -> int:
    """Print the table of a sweep, in a terminal until all jobs have ended; return FAILED if a job failed. Raises UserError."""
    settings = _StatusSettings()
    named = one_run("status", read_settings("status", settings, arguments))
    if not settings.every_s >= 0.1:
        raise UserError(f"every_s={settings.every_s} must be at least 0.1")
    folder = plan.latest(Path(settings.output_root)) if named in ("", "latest") else Path(named)
    board = Board.of(plan.read(folder))
    console = table_console()
    if console.is_terminal and _goes_on(board):
        with Live(console=console, auto_refresh=False, transient=True) as live, signals.flagged(), signals.requests.deferred():
            while _goes_on(board) and signals.requests.number is None:
                live.update(board.table(rows_of(console)), refresh=True)
                _sleep(settings.every_s)
                board = Board.of(plan.read(folder)) if board.plan.search is not None else board  # a study grows
                board.refresh()
    console.print(board.table())
    return FAILED if board.counts.get("failed", 0) else DONE


def _goes_on(board: Board) -> bool:
    """Return whether a job runs, or waits for somebody who starts it."""
    if "running" in board.counts or "waiting" not in board.counts:
        return "running" in board.counts
    found = launchers.submitted(board.plan.folder)
    return rundir.is_running(board.plan.folder) or bool(found and found[1])


@dataclass
class _CancelSettings:
    """The settings of `warprun cancel`."""

    output_root: str = "outputs"
    trust: bool = False


def cancel(arguments: Sequence[str]) -> int:
    """End the jobs of a sweep that a launcher has been given. Raises UserError."""
    settings = _CancelSettings()
    named = one_run("cancel", read_settings("cancel", settings, arguments))
    found = plan.read(plan.latest(Path(settings.output_root)) if named in ("", "latest") else Path(named))
    found.require_own(settings.trust)
    config, ids = launchers.submitted(found.folder) or (None, {})
    launcher = launchers.made(config, found, settings.trust) if config else None
    alive = launcher.alive(list(ids.values())) if launcher else set()
    if launcher is None or not alive:
        raise UserError(f"no job of {printable(found.folder)} is queued or running by itself; Ctrl-C ends those that a command waits for")
    jobs = {id: found.jobs[number] for number, id in ids.items() if id in alive}
    launchers.end(launcher, jobs, signal.SIGTERM)
    print(f"cancelled {counted(len(jobs), 'job')}")
    return DONE


def _sleep(seconds: float) -> None:
    """Wait, but no longer than until a signal."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and signals.requests.number is None:
        time.sleep(min(0.1, seconds))
