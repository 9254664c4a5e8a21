"""A file that grows by whole records, even on a disk that fills up now and then."""

from __future__ import annotations

import os
from pathlib import Path


class Appender:
    """Append records to a file; a record that could not be written leaves no trace, and the next one is tried afresh.

    `position` is the length of the file in bytes: what lies beyond the one handed in is cut off at the first write.
    """

    def __init__(self, path: Path, position: int = 0) -> None:
        self.path = path
        self.position = position
        self._handle: int | None = None

    def write(self, record: bytes) -> None:
        """Append one record and hand it to the operating system. Raises OSError."""
        handle = self._open() if self._handle is None else self._handle
        # Part of the last record may be there, from a failed write.
        if os.fstat(handle).st_size != self.position:
            os.ftruncate(handle, self.position)
        written = 0
        while written < len(record):
            written += os.pwrite(handle, record[written:], self.position + written)
        self.position += written

    def close(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _open(self) -> int:
        # Not in the constructor: a disk that is full at the start of a run may have room later.
        self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        # A file shorter than the position (lost with a crashed machine) must not be filled up with zeros.
        self.position = min(self.position, os.fstat(self._handle).st_size)
        return self._handle
