"""Files that are complete after a crash at any point."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file. After a crash at any point it has either its old or its new content, complete. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        # On a full disk the unfinished file takes the space of the next try.
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Write a rename to the disk, so that it survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Some network file systems cannot sync folders.
            raise
    finally:
        os.close(handle)
