"""The facade of all records of a run. A sink that fails never stops the training."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from warprun.errors import UserError, printable
from warprun.runs.records.jsonl import JsonLines, cut, read_rows
from warprun.runs.records.services import services
from warprun.runs.records.sink import PREFIX, Row, Sink
from warprun.runs.records.terminal import Terminal


class RecordsEnd(NamedTuple):
    """The end of the records, where a run continues."""

    wall_s: float = 0.0
    """Seconds that the run has taken."""
    env_steps: int = 0
    """Environment steps of the last row."""
    files: Mapping[str, int] = {}
    """Name of every file -> bytes that are valid."""


START = RecordsEnd()
SILENCE_S = 10.0
"""Longest time in which the terminal shows no progress."""


class Records:
    """Pass the records of a run to metrics.jsonl, TensorBoard, the terminal, and the services of `log.services`.

    `config` is the run's config as `schema.to_dict` returns it. With `live` None, the live view is shown if standard output is a terminal.
    No method raises if a sink cannot be written to, such as on a full disk: one line on standard error says so once, and every later row is
    tried again.
    """

    def __init__(self, folder: Path, config: Mapping[str, object], live: bool | None = None, end: RecordsEnd = START) -> None:
        """Open the sinks without writing to them.

        `end`: the end of an earlier process; then call `cut_back` before the first row.
        """
        self._folder = folder
        self._began = time.monotonic() - end.wall_s
        self._env_steps = end.env_steps
        self._earlier = end.files
        self._sinks: list[Sink] = [JsonLines(folder, end.files.get(JsonLines.name, 0)), Terminal(folder, config, live)]
        log = config.get("log")
        if not isinstance(log, Mapping) or log.get("tensorboard", True):
            from warprun.runs.records.tensorboard import TensorBoard  # imports a library that most processes of a run do not need

            self._sinks.insert(1, TensorBoard(folder, config, end.env_steps if end.files else None))
        self._sinks += services(folder, config)
        self.summary: Mapping[str, float | str] = {}
        """What `finish` got."""
        self._failed: set[str] = set()
        self._shown = self.wall_s, end.env_steps
        """Seconds and environment steps when the terminal last showed the progress."""

    def cut_back(self) -> list[dict[str, float]]:
        """Remove what an earlier process recorded after `end`, and return the rows that are left. Raises UserError."""
        try:
            for path in self._folder.glob(f"{PREFIX}*"):
                if path.name not in self._earlier:
                    path.unlink()
            for name, wanted in self._earlier.items():
                path = self._folder / name
                size = path.stat().st_size if path.is_file() else 0
                if size < wanted:
                    self.message(f"{printable(path)} has {size} of {wanted} bytes: records were lost, and have a gap")
                elif size > wanted:
                    cut(path, wanted)
            lines = self._folder / JsonLines.name
            if not lines.exists():
                return []
            try:
                return read_rows(lines)
            except UserError as error:
                self.message(f"{error}: notes on curves are those of what follows")
                return []
        except OSError as error:
            raise UserError(f"cannot continue the records: {error.filename or self._folder}: {error.strerror}") from None

    @property
    def end(self) -> RecordsEnd:
        """Where a later process can continue these records."""
        files = dict(self._earlier)
        for sink in self._sinks:
            files |= sink.files()
        return RecordsEnd(self.wall_s, self._env_steps, files)

    def start(self, info: Mapping[str, object]) -> None:
        """Record the hardware and versions; `info["device"]` names the device and says why it was chosen."""
        self._tell(lambda sink: sink.start(info))

    def log(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Record the values of one log interval; `env_steps` counts from the start of the run."""
        row = Row(int(env_steps), self.wall_s, {tag: float(value) for tag, value in values.items()})
        self._env_steps = row.env_steps
        self._tell(lambda sink: sink.log(row))
        self.shown(row.env_steps)

    def show(self, env_steps: int) -> None:
        """Show on the terminal how far the run is, if it has shown nothing for a while."""
        before_s, before = self._shown
        elapsed_s = self.wall_s - before_s
        if elapsed_s > SILENCE_S:
            row = Row(env_steps, self.wall_s, {"perf/env_steps_per_s": (env_steps - before) / elapsed_s})
            self._tell(lambda sink: sink.show(row))
            self.shown(env_steps)

    def shown(self, env_steps: int) -> None:
        """Note that the terminal shows the progress of now, or that there is none to show yet."""
        self._shown = self.wall_s, env_steps

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the `with` block out of the speed that `show` shows."""
        began_s = self.wall_s
        yield
        before_s, before = self._shown
        self._shown = before_s + self.wall_s - began_s, before

    def message(self, text: str) -> None:
        """Show one line of text."""
        self._tell(lambda sink: sink.message(text))

    def finish(self, summary: Mapping[str, float | str], status: str) -> None:
        """Record the outcome; `status` is finished, solved, failed or interrupted, `summary["wall_s"]` is in seconds."""
        self.summary = summary
        self._tell(lambda sink: sink.finish(summary, status))

    def close(self) -> None:
        """Close the files and release the terminal. A second call does nothing."""
        self._tell(lambda sink: sink.close())

    @property
    def wall_s(self) -> float:
        """Seconds that the run has taken, in all its processes."""
        return time.monotonic() - self._began

    def _tell(self, tell: Callable[[Sink], None]) -> None:
        for sink in self._sinks:
            try:
                tell(sink)
            # ValueError: standard output is closed, or cannot encode a character.
            except (OSError, ValueError) as error:
                self._warn(sink, error)

    def _warn(self, sink: Sink, error: Exception) -> None:
        if sink.name in self._failed:
            return
        self._failed.add(sink.name)
        # Standard error may be on the same full disk.
        with contextlib.suppress(OSError, ValueError):
            print(f"warning: {sink.name}: {error}; training goes on, with gaps in the records", file=sys.stderr, flush=True)
