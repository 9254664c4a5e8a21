"""The live view of a run in a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from warprun.runs.records.numbers import duration, number, si
from warprun.runs.records.progress import Progress
from warprun.runs.records.sink import Row, Sink


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
        self._live.update(view(self._progress, self._title, self._device, self._folder), refresh=True)

    def message(self, text: str) -> None:
        """Print the text above the view."""
        self._console.print(Text(text))

    def close(self) -> None:
        """Remove the view and show the cursor again."""
        self._live.stop()


def view(progress: Progress, name: str, device: str, folder: str) -> RenderableType:
    """Return the view, for terminals of 60 columns or more."""
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
