"""Standard output: a live view in a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from warprun.kernels import waiting
from warprun.runs.records.sink import Row, Sink

FILE_COLUMNS = 120
"""Most columns of a table in a file."""
STATUS_STYLE = {"solved": "bold green", "finished": "bold green", "failed": "bold red", "interrupted": "bold yellow"}


class Terminal(Sink):
    """Show a run on standard output. With `live` None, the live view is shown if that is a terminal."""

    name = "terminal"

    def __init__(self, folder: Path, config: Mapping[str, object], live: bool | None = None) -> None:
        self._folder = folder
        self._title = str(config.get("name") or folder.name)
        self._progress = Progress(config)
        if live is None:
            live = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._console = PlainConsole(force_terminal=live, markup=False, emoji=False, highlight=False)
        self._view: Sink = LiveView(self._console, self._progress, self._title, _short(folder)) if live else PlainLines(self._progress)

    def start(self, info: Mapping[str, object]) -> None:
        """Print the first line of the run: its name, the device, and why that device."""
        self._view.message(f"{self._title} on {info['device']}" if "device" in info else self._title)
        self._view.start(info)

    def log(self, row: Row) -> None:
        """Show the progress of the run."""
        self._progress.update(row)
        self._view.log(row)

    def show(self, row: Row) -> None:
        """Show the progress of the run."""
        self.log(row)

    def message(self, text: str) -> None:
        """Print the text."""
        self._view.message(text)

    def finish(self, summary: Mapping[str, float | str], status: str) -> None:
        """Print a table of the outcome, then the run folder as the last line."""
        self._view.close()
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_row(Text(status, style=STATUS_STYLE.get(status, "bold")), Text(self._title, style="bold"))
        notes = {key: value for key, value in summary.items() if key.startswith("note")}
        for key, value in summary.items():
            if key not in notes:
                table.add_row(Text(key, style="dim"), Text(_show(key, value)))
        self._console.print(table)
        for key, value in notes.items():
            self._console.sentence(Text.assemble((key, "dim"), f"  {value}"))
        self._console.print(Text(_short(self._folder)), soft_wrap=True)

    def close(self) -> None:
        """Remove the live view."""
        self._view.close()


def _show(key: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return duration(value) if key == "wall_s" else number(value)


def _short(folder: Path) -> str:
    """Return the folder as one would type it here."""
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)


class PlainConsole(Console):
    """A console that raises an error if its reader has gone (`warprun | head`), where rich would exit."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("standard output has no reader any more")

    def print(self, *objects: object, **how: object) -> None:
        """Print as rich does; lines of a file have no blanks at their ends."""
        if self.is_terminal:
            super().print(*objects, **how)  # type: ignore[arg-type]
            return
        with self.capture() as captured:
            super().print(*objects, **how)  # type: ignore[arg-type]
        self.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))
        self.file.flush()

    def sentence(self, text: str | Text) -> None:
        """Print a text: in a terminal its lines break between words, in a file it is one line."""
        self.print(text, soft_wrap=not self.file.isatty())


def table_console() -> PlainConsole:
    """Return a console for texts of users: no markup, no emoji codes. A file has the width of the variable COLUMNS, else FILE_COLUMNS."""
    console = PlainConsole(markup=False, emoji=False, highlight=False)
    told = console.is_terminal or "COLUMNS" in os.environ
    return console if told else PlainConsole(markup=False, emoji=False, highlight=False, width=FILE_COLUMNS)


def prefix(value: float) -> tuple[float, str]:
    """Return the factor in which three digits of a count or a rate are written, and its SI prefix: (1e6, " M")."""
    # 999.5 k and above rounds to 1.00 M.
    found = ((factor, name) for factor, name in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")) if abs(value) >= 0.9995 * factor)
    return next(found, (1.0, ""))


def si(value: float) -> str:
    """Write a count or a rate with three digits and an SI prefix: 1.23 M."""
    if not math.isfinite(value):
        return str(value)
    factor, name = prefix(value)
    if not name:
        return f"{value:.0f}" if abs(value) >= 99.95 or value == int(value) else f"{value:.3g}"
    scaled = value / factor
    return f"{scaled:.{2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0}f}{name}"


def number(value: float) -> str:
    """Write any quantity with four digits: 195.0, 0.01235, 15,234, 2.50 M."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 999_500:
        return si(value)
    if isinstance(value, int) or abs(value) >= 999.95:
        return f"{value:,.0f}"
    # '#' keeps the zeros at the end, so that a number that changes does not change its width.
    return f"{value:#.4g}" if value else "0.000"


def duration(seconds: float) -> str:
    """Write a time as 12 s, 3:07 or 2:03:07 (hours); days come in front: 1 d 2:03:07."""
    if not math.isfinite(seconds):
        return str(seconds)
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h}:{m:02}:{s:02}"
    if h:
        return f"{h}:{m:02}:{s:02}"
    return f"{m}:{s:02}" if m else f"{s} s"


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
        anew = any(map(_is_share, row.values))  # shares of another interval are parts of another whole
        kept = {tag: value for tag, value in self.values.items() if not (anew and _is_share(tag))}
        self.values = {**kept, **row.values}  # another dict: the view may be drawn from the last one, by another thread
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
        """The work of learners and actors, in words: role and text; empty without actors."""
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


def _is_share(tag: str) -> bool:
    return tag.startswith("perf/") and tag.endswith("_share")


def _limit(config: Mapping[str, object], key: str) -> float | None:
    value = config.get(key)
    return value if isinstance(value, int | float) else None


class PlainLines(Sink):
    """Print a line per log interval, but at most one every `every_s` seconds."""

    def __init__(self, progress: Progress, every_s: float = 5.0) -> None:
        self._progress = progress
        self._every_s = every_s
        self._next = 0.0

    def log(self, row: Row) -> None:
        """Print a line, unless the last one is younger than `every_s`."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            print(line(self._progress), flush=True)

    def message(self, text: str) -> None:
        """Print the text."""
        print(text, flush=True)


def line(progress: Progress) -> str:
    """Return the progress of a run as `key=value` words, in ASCII, for log files of unknown encoding."""
    words = {"wall": duration(progress.wall_s), "env_steps": si(progress.env_steps)}
    if progress.fraction is not None:
        words["done"] = f"{progress.fraction:.0%}"
    if progress.steps_per_s is not None:
        words["env_steps/s"] = si(progress.steps_per_s)
    for group, train_return, eval_return, length in progress.outcomes:
        part = f"{group}." if group else ""
        outcome = {"return": train_return, "eval": eval_return, "length": length}
        words |= {f"{part}{key}": number(value) for key, value in outcome.items() if value is not None}
    words |= {f"{part}_time": f"{share:.0%}" for part, share in progress.shares.items()}
    if progress.left_s is not None:
        words["left"] = duration(progress.left_s)
    return " ".join(f"{key}={value.replace(' ', '')}" for key, value in words.items())


class LiveView(Sink):
    """Draw the state of a run in place, at most every `every_s` seconds; messages appear above it.

    It is drawn only with a new row: a thread that redraws would take time from the kernels.
    """

    def __init__(self, console: Console, progress: Progress, name: str, folder: str, every_s: float = 0.4) -> None:
        self._console = console
        self._progress = progress
        self._title = name
        self._folder = folder
        self._device = ""
        self._every_s = every_s
        self._next = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._waits_for = ""
        self._open = ExitStack()

    def start(self, info: Mapping[str, object]) -> None:
        """Store the name of the device for the view."""
        self._device = str(info.get("device", ""))

    def log(self, row: Row) -> None:
        """Draw the view, unless the last one is younger than `every_s`."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every_s
        if not self._live.is_started:
            self._live.start()
            self._open.enter_context(waiting.shown_by(self._wait_for))
        self._draw()

    def _wait_for(self, text: str) -> None:
        self._waits_for = text
        self._draw()

    def _draw(self) -> None:
        now = copy(self._progress)  # which does not change while it is drawn: rows come from another thread than the line of a wait
        self._live.update(view(now, self._title, self._device, self._folder, self._waits_for), refresh=True)

    def message(self, text: str) -> None:
        """Print the text above the view."""
        self._console.print(Text(text))

    def close(self) -> None:
        """Remove the view and show the cursor again."""
        self._open.close()
        self._live.stop()


def view(progress: Progress, name: str, device: str, folder: str, waits_for: str = "") -> RenderableType:
    """Return the view, for terminals of 60 columns or more. `waits_for`: what the run waits for at the moment."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", min_width=10)
    grid.add_column(ratio=1)
    if progress.steps_per_s is not None:
        grid.add_row("speed", Text(f"{si(progress.steps_per_s)} env steps/s", style="bold green"))
    grid.add_row("steps", si(progress.env_steps) + (f" of {si(progress.total_steps)}" if progress.total_steps else ""))
    left = "" if progress.left_s is None else f", {duration(progress.left_s)} left"
    grid.add_row("time", duration(progress.wall_s) + left)
    if progress.shares:
        grid.add_row("spent in", ", ".join(f"{part} {100 * share:.0f} %" for part, share in progress.shares.items()))
    for role, text in progress.roles:
        grid.add_row(role, Text(text))
    if waits_for:
        grid.add_row("waits for", Text(waits_for))
    grid.add_row("device", Text(device))
    grid.add_row("folder", Text(folder, overflow="fold"))
    parts: list[RenderableType] = [grid, Text(), _outcomes(progress)]
    if progress.fraction is not None:
        parts += [Text(), _bar(progress.fraction)]
    return Panel(Group(*parts), title=Text(name, style="bold"), title_align="left", border_style="dim", padding=(0, 1), width=78)


def _outcomes(progress: Progress) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", style="dim", min_width=10)
    for column in ("train return", "eval return", "episode length"):
        table.add_column(column, justify="right", min_width=12)
    for group, *values in progress.outcomes:
        table.add_row(group, *("–" if value is None else number(value) for value in values))
    return table


def _bar(fraction: float) -> Table:
    bar = Table.grid(expand=True, padding=(0, 1, 0, 0))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", width=6)
    bar.add_row(ProgressBar(total=1.0, completed=fraction, complete_style="green"), f"{100 * fraction:.0f} %")
    return bar
