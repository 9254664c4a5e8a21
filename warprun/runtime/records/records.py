"""The records of a run: what it tells goes everywhere it should, and a place that fails never stops the training."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from warprun.runtime.records.jsonl import JsonLines
from warprun.runtime.records.sink import Mark, Row, Sink
from warprun.runtime.records.tensorboard import TensorBoard
from warprun.runtime.records.terminal import Terminal


class Records:
    """Hand what a run tells to metrics.jsonl, TensorBoard and the terminal.

    `live` None: draw in place where standard output is a terminal. `resume`: the mark of the checkpoint that the run continues from;
    what was recorded after it is cut off. No method raises because a place cannot be written to (a full disk): that is told once, in
    one line on standard error, and every later row is tried again.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], live: bool | None = None, resume: Mark | None = None) -> None:
        self._began = time.monotonic() - (resume.wall_s if resume else 0.0)
        self._metrics = JsonLines(folder, resume.metrics_bytes if resume else 0)
        self._sinks: list[Sink] = [self._metrics, Terminal(folder, config, live, resume)]
        if config.get("log", {}).get("tensorboard", True):
            self._sinks.insert(1, TensorBoard(folder, config, resume))
        self._failed: set[str] = set()

    def start(self, info: Mapping[str, object]) -> None:
        """Tell the hardware and versions; `info["device"]` names the device and why it was chosen."""
        self._tell(lambda sink: sink.start(info))

    def log(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Record the values of one log interval, after `env_steps` environment steps since the start of the run."""
        row = Row(int(env_steps), self.wall_s, {tag: float(value) for tag, value in values.items()})
        self._tell(lambda sink: sink.log(row))

    def message(self, text: str) -> None:
        """Show one line, such as what takes a while now."""
        self._tell(lambda sink: sink.message(text))

    def finish(self, summary: Mapping[str, float | str], status: str) -> None:
        """Show the outcome: finished, solved, failed or interrupted; `summary["wall_s"]` is in seconds."""
        self._tell(lambda sink: sink.finish(summary, status))

    def close(self) -> None:
        """Close the files and give the terminal back; may be called twice."""
        self._tell(lambda sink: sink.close())

    @property
    def wall_s(self) -> float:
        """Seconds that the run has taken, those before a resume included."""
        return time.monotonic() - self._began

    def mark(self, env_steps: int) -> Mark:
        """Tell the position in the records, for the meta of a checkpoint."""
        return Mark(int(env_steps), self.wall_s, self._metrics.position)

    def _tell(self, tell: Callable[[Sink], None]) -> None:
        for sink in self._sinks:
            try:
                tell(sink)
            # ValueError: standard output was closed, or cannot encode a character.
            except (OSError, ValueError) as error:
                self._warn(sink, error)

    def _warn(self, sink: Sink, error: Exception) -> None:
        if sink.name in self._failed:
            return
        self._failed.add(sink.name)
        # Standard error may be on the same full disk: then nobody is left to be told.
        with contextlib.suppress(OSError, ValueError):
            print(f"warning: {sink.name}: {error}; training goes on, with gaps in the records", file=sys.stderr, flush=True)
