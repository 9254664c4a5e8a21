"""metrics.jsonl: one JSON object per line, for scripts and data frames."""

from __future__ import annotations

import json
import math
from pathlib import Path

from warprun.runtime.records.appender import Appender
from warprun.runtime.records.sink import Row, Sink


class JsonLines(Sink):
    """Write rows to metrics.jsonl. NaN and infinity, which JSON lacks, become null."""

    name = "metrics.jsonl"

    def __init__(self, folder: Path) -> None:
        self._file = Appender(folder / self.name)

    def log(self, row: Row) -> None:
        """Append one row as a line."""
        values = {tag: value if math.isfinite(value) else None for tag, value in row.values.items()}
        line = json.dumps({"env_steps": row.env_steps, "wall_s": round(row.wall_s, 3), **values}, allow_nan=False)
        self._file.write(line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
