"""Shared memory that killed processes of MPI leave in /dev/shm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = Path("/dev/shm")
NAMES = ("mpich_sh*", "ucx_shm_*")
"""Names that MPICH gives: for a moment, while its processes meet."""


@contextmanager
def removed() -> Iterator[None]:
    """Remove at the end what processes of this context have left: files of this user that are new and that no process holds."""
    before = _files()
    try:
        yield
    finally:
        # The order matters: a process that makes such a file opens it, maps it, and only then closes it.
        new = _files() - before
        held = _opened() | _mapped() if new else set()
        for path in new - held:
            with suppress(OSError):
                path.unlink()


def _files() -> set[Path]:
    found = set()
    for path in (path for name in NAMES for path in FOLDER.glob(name)):
        with suppress(OSError):
            if path.stat().st_uid == os.getuid():
                found.add(path)
    return found


def _opened() -> set[Path]:
    """Return the files that processes of this user have open."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            found.add(link.readlink())
    return found


def _mapped() -> set[Path]:
    """Return the files in /dev/shm that are part of the memory of processes of this user."""
    found = set()
    for table in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            found |= {Path(line.split()[5]) for line in table.read_text().splitlines() if f"{FOLDER}/" in line}
    return found
