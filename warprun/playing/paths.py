"""The files that `warprun play` records to. Imports neither numba nor torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from warprun.errors import UserError, shown

TABLES = (".csv", ".npz")
FILMS = (".gif", ".mp4", ".html")


def record_paths(given: Sequence[str]) -> tuple[Path, ...]:
    """Return the files to record to. Raises UserError for one that cannot be written."""
    paths = tuple(Path(name) for name in given)
    for name, path in zip(given, paths, strict=True):
        what = f"record={shown(name)}"
        if path.suffix not in TABLES + FILMS:
            raise UserError(f"{what} must end in one of {' '.join(TABLES + FILMS)}")
        try:
            if not path.parent.is_dir():
                raise UserError(f"{what}: there is no folder {path.parent}")
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise UserError(f"{what}: no permission to write into {path.parent}")
            if path.is_symlink() or (path.exists() and not path.is_file()):
                raise UserError(f"{what} is a link or no regular file; choose another name")
        except (OSError, ValueError) as error:
            raise UserError(f"{what}: {error.strerror if isinstance(error, OSError) else error}") from None
    if len({path.absolute() for path in paths}) < len(paths):
        raise UserError("record= names a file twice")
    return paths
