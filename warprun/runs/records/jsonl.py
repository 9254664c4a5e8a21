"""metrics.jsonl: one JSON object per line, for scripts and data frames."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import NoneType

from warprun.errors import UserError, printable
from warprun.files import open_regular, read_end
from warprun.runs.records.sink import Row, Sink

MAX_BYTES = 256 << 20
"""Largest file that is read: at 1 to 2 KB a row 100,000 rows and more."""
MAX_LINES = 500_000
MAX_VALUES = 4 << 20
"""Most numbers that are kept of a file; each takes some 100 bytes of memory."""
MAX_NUMBER = 1e100
"""Largest number that is read; all are float32 or counts. Sums and squares of larger ones would overflow."""
MAX_LINE_BYTES = 1 << 20
"""Longest line that is read."""
TAIL = 1 << 16
"""Bytes that are read for the last rows."""


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


def read_rows(path: Path, wanted: Callable[[str], bool] = lambda tag: True) -> list[dict[str, float]]:
    """Return the rows of a metrics.jsonl with their `wanted` tags; what is no row, such as a torn line, is left out.

    Raises OSError, and UserError if it is no regular file or one beyond the limits: a curve without its beginning would be another curve.
    """
    rows: list[dict[str, float]] = []
    values = 0
    names = _Names(wanted)
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise UserError(f"{printable(path)} is larger than {MAX_BYTES:,} bytes")
        # A part of a longer line is no row.
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b"")):
            row = _row(line, names)
            values += len(row)
            if number >= MAX_LINES or values > MAX_VALUES:
                raise UserError(f"{printable(path)} has more than {MAX_LINES:,} lines or {MAX_VALUES:,} numbers")
            if row:
                rows.append(row)
    return rows


def last_rows(path: Path) -> Iterator[dict[str, float]]:
    """Yield the rows at the end of a metrics.jsonl that can be read, the last one first; there may be none."""
    try:
        lines = read_end(path, TAIL).splitlines()
    except (OSError, UserError):
        return
    names = _Names(lambda tag: True)
    yield from filter(None, (_row(line, names) for line in reversed(lines)))


class _Names(dict[str, str | None]):
    """Tags -> the same text for all rows, or None if a tag is not wanted."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted

    def __missing__(self, tag: str) -> str | None:
        name = self[tag] = sys.intern(tag) if self._wanted(tag) else None
        return name


def _row(line: bytes, names: _Names) -> dict[str, float]:
    """Return the wanted values of a line; an empty dict if it is no row: an object of numbers, with env_steps and wall_s."""
    with suppress(ValueError, RecursionError):
        row = _DECODER.decode(line.decode())
        if isinstance(row, dict) and {*map(type, row.values())} <= {int, float, NoneType}:
            numbers = [*filter(None, row.values())]
            placed = all(row.get(tag) is not None and row[tag] >= 0 for tag in ("env_steps", "wall_s"))
            if placed and max(map(abs, numbers), default=0) <= MAX_NUMBER:
                return {name: math.nan if value is None else float(value) for tag, value in row.items() if (name := names[tag])}
    return {}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
"""For lines of at most MAX_LINE_BYTES, which bound what a hostile one costs: the hooks of `files.parse_json` take most of the time."""


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


class Appender:
    """Append records to a new file, or to the first `position` bytes of an existing one.

    A record whose write fails is removed before the next one is written, and when the file is closed.
    """

    def __init__(self, path: Path, position: int = 0) -> None:
        self.path = path
        self.position = position
        """Bytes of all whole records."""
        self._handle: int | None = None

    def write(self, record: bytes) -> None:
        """Append one record and hand it to the operating system. Raises OSError."""
        handle = self._open() if self._handle is None else self._handle
        # A failed write may have left a part of its record.
        if os.fstat(handle).st_size != self.position:
            os.ftruncate(handle, self.position)
        written = 0
        while written < len(record):
            written += os.pwrite(handle, record[written:], self.position + written)
        self.position += written

    def close(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            if os.fstat(handle).st_size != self.position:
                os.ftruncate(handle, self.position)
        finally:
            os.close(handle)

    def _open(self) -> int:
        # Not in the constructor: a disk that is full at the start of a run may have space later.
        self._handle = _open_for_writing(self.path, os.O_CREAT)
        return self._handle


def cut(path: Path, size: int) -> None:
    """Remove all but the first `size` bytes of a file. Raises OSError, also for a link."""
    handle = _open_for_writing(path, 0)
    try:
        os.ftruncate(handle, size)
    finally:
        os.close(handle)


def _open_for_writing(path: Path, flags: int) -> int:
    # A link in the folder of somebody else could lead to a file of the user. Without O_NONBLOCK the opening of a pipe waits for a reader.
    return os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o666)
