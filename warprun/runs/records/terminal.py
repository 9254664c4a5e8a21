"""Standard output: a live view in a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from warprun.runs.records.console import PlainConsole
from warprun.runs.records.live import LiveView
from warprun.runs.records.numbers import duration, number
from warprun.runs.records.plain import PlainLines
from warprun.runs.records.progress import Progress
from warprun.runs.records.sink import Row, Sink

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
        for key, value in summary.items():
            table.add_row(Text(key, style="dim"), Text(_show(key, value)))
        self._console.print(table)
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
