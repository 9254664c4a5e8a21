"""metrics.jsonl: one JSON object per line, for scripts and data frames."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path

from warprun.files import open_regular
from warprun.runtime.records.appender import Appender
from warprun.runtime.records.sink import Row, Sink

MAX_BYTES = 256 << 20
"""Most bytes at the end of a file that are read when a run continues: at 1 to 2 KB a row, its last 100,000 rows and more."""
MAX_LINE_BYTES = 1 << 20
"""Longest line that is read."""


class JsonLines(Sink):
    """Write rows to metrics.jsonl. NaN and infinity, which JSON lacks, become null."""

    name = "metrics.jsonl"

    def __init__(self, folder: Path, position: int = 0) -> None:
        """Continue after the first `position` bytes, or after the last whole line if the file is shorter."""
        path = folder / self.name
        if position and (not path.is_file() or path.stat().st_size < position):
            position = _whole_lines(path) if path.is_file() else 0
        self._file = Appender(path, position)

    def log(self, row: Row) -> None:
        """Append one row as a line."""
        values = {tag: value if math.isfinite(value) else None for tag, value in row.values.items()}
        line = json.dumps({"env_steps": row.env_steps, "wall_s": round(row.wall_s, 3), **values}, allow_nan=False)
        self._file.write(line.encode() + b"\n")

    def files(self) -> dict[str, int]:
        """Return the size of the file."""
        return {self.name: self._file.position}

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_rows(path: Path) -> list[dict[str, float]]:
    """Return the rows in the last MAX_BYTES of a metrics.jsonl; what is no row, such as a torn line, is left out.

    Raises OSError, and UserError if it is no regular file.
    """
    rows = []
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_BYTES))
        while line := file.readline(MAX_LINE_BYTES):  # a part of a longer line is no row
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict) and all(value is None or type(value) in (int, float) for value in row.values()):
                    rows.append({tag: math.nan if value is None else value for tag, value in row.items()})
    return rows


def _whole_lines(path: Path) -> int:
    """Return the bytes up to the last line end in the last MAX_BYTES of a file; 0 if there is none. Raises OSError and UserError."""
    with open_regular(path) as file:
        end = os.fstat(file.fileno()).st_size
        first = max(0, end - MAX_BYTES)
        while end > first:
            begin = max(first, end - MAX_LINE_BYTES)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0
