"""The facade of all records of a run. A sink that fails never stops the training."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from warprun.runtime.records.jsonl import JsonLines
from warprun.runtime.records.sink import Row, Sink
from warprun.runtime.records.tensorboard import TensorBoard
from warprun.runtime.records.terminal import Terminal


class Records:
    """Pass the records of a run to metrics.jsonl, TensorBoard and the terminal.

    `config` is the run's config as `schema.to_dict` returns it. With `live` None, the live view is shown if standard output is a terminal.
    No method raises if a sink cannot be written to, such as on a full disk: one line on standard error says so once, and every later row is
    tried again.
    """

    def __init__(self, folder: Path, config: Mapping[str, object], live: bool | None = None) -> None:
        self._began = time.monotonic()
        self._sinks: list[Sink] = [JsonLines(folder), Terminal(folder, config, live)]
        log = config.get("log")
        if not isinstance(log, Mapping) or log.get("tensorboard", True):
            self._sinks.insert(1, TensorBoard(folder, config))
        self._failed: set[str] = set()

    def start(self, info: Mapping[str, object]) -> None:
        """Record the hardware and versions; `info["device"]` names the device and says why it was chosen."""
        self._tell(lambda sink: sink.start(info))

    def log(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Record the values of one log interval; `env_steps` counts from the start of the run."""
        row = Row(int(env_steps), self.wall_s, {tag: float(value) for tag, value in values.items()})
        self._tell(lambda sink: sink.log(row))

    def message(self, text: str) -> None:
        """Show one line of text."""
        self._tell(lambda sink: sink.message(text))

    def finish(self, summary: Mapping[str, float | str], status: str) -> None:
        """Record the outcome; `status` is finished, solved, failed or interrupted, `summary["wall_s"]` is in seconds."""
        self._tell(lambda sink: sink.finish(summary, status))

    def close(self) -> None:
        """Close the files and release the terminal. A second call does nothing."""
        self._tell(lambda sink: sink.close())

    @property
    def wall_s(self) -> float:
        """Seconds since the start of the run."""
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
