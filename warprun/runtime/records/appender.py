"""A file that grows by whole records only, also on a full disk."""

from __future__ import annotations

import os
from pathlib import Path


class Appender:
    """Append records to a new file. A record whose write fails is removed before the next one is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
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
        if handle is not None:
            os.close(handle)

    def _open(self) -> int:
        # Not in the constructor: a disk that is full at the start of a run may have space later.
        self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        return self._handle
