"""What every place that records are written to has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Row(NamedTuple):
    """The values of one log interval."""

    env_steps: int
    wall_s: float  # since the first start of the run, pauses between a stop and a resume left out
    values: Mapping[str, float]


class Mark(NamedTuple):
    """A position in the records, kept in a checkpoint so that a resumed run continues from it; JSON-able through `_asdict()`."""

    env_steps: int = 0
    wall_s: float = 0.0
    metrics_bytes: int = 0  # length of metrics.jsonl


class Sink:
    """Receive what a run tells; what a sink does not override it ignores. Any method may raise OSError."""

    name = "records"

    def start(self, info: Mapping[str, object]) -> None:
        """Take the hardware and versions, before the first row."""

    def log(self, row: Row) -> None:
        """Take the values of one log interval."""

    def message(self, text: str) -> None:
        """Take one line for the reader."""

    def finish(self, summary: Mapping[str, float | str], status: str) -> None:
        """Take the outcome of the run, after the last row."""

    def close(self) -> None:
        """Let go of files and the terminal."""
