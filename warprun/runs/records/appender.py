"""A file that grows by whole records only, also on a full disk."""

from __future__ import annotations

import os
from pathlib import Path


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
