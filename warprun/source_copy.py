"""A copy of source files in a run folder, and its list with the SHA-256 of every file. No numba, no torch.

The list is part of a manifest that somebody else may have made, so it is checked before anything is read.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from warprun.errors import UserError, printable
from warprun.files import read_limited, write_atomic
from warprun.sources import Source, Sources

MAX_SOURCE_BYTES = 32 << 20
"""Largest size of a file, which may be an extension module."""
MAX_NAME = 200
"""Most characters of the name of a module."""
SHA256 = re.compile(r"[0-9a-f]{64}")


class FileEntry(TypedDict):
    """A file in the list."""

    file: str
    """Path relative to the folder of the copy."""
    sha256: str


def write(folder: Path, found: Sources, owner: str) -> dict[str, FileEntry]:
    """Copy files into `folder`, and return their list by module. Raises OSError, and UserError for a large file of the `owner`."""
    layout = found.layout()
    for name, source in found.modules.items():
        if len(source.content) > MAX_SOURCE_BYTES:
            raise UserError(f"{source.path} is larger than {MAX_SOURCE_BYTES:,} bytes; a run keeps a copy of each file of its {owner}")
        (folder / layout[name]).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / layout[name], source.content)
    return {name: {"file": str(layout[name]), "sha256": source.sha256} for name, source in found.modules.items()}


def check(entry: str, files: Mapping[str, object]) -> None:
    """Raise ValueError unless `files` is a list that `write` can have returned, with the module `entry` in it."""
    for name, file in files.items():
        if not isinstance(name, str) or not _is_module(name):
            raise ValueError(f"{printable(name)} is no name of a module")
        if not isinstance(file, dict) or file.keys() != {"file", "sha256"} or not all(isinstance(text, str) for text in file.values()):
            raise ValueError(f"files.{printable(name)} must be a mapping with file, sha256")
        if not _is_inside(file["file"]):
            raise ValueError(f"{printable(file['file'])} is no path of a file in the copy")
        if not SHA256.fullmatch(file["sha256"]):
            raise ValueError(f"the SHA-256 of {printable(file['file'])} is not one")
    if entry not in files:
        raise ValueError(f"{printable(entry)} is not among the files")


def read(folder: Path, entry: str, place: str, files: Mapping[str, FileEntry], manifest: Path) -> Sources:
    """Read a copy. Raises UserError if a file was altered.

    `place` is the folder of the original files: modules find their data files beside these, as long as that folder exists.
    """
    modules = {}
    inside = folder.resolve()
    for name, known in files.items():
        path = (folder / known["file"]).resolve()
        if not path.is_relative_to(inside):
            raise UserError(f"{printable(folder / known['file'])} is a link to a file outside {printable(inside)}")
        try:
            content = read_limited(path, MAX_SOURCE_BYTES)
        except FileNotFoundError:
            content = b""
        if hashlib.sha256(content).hexdigest() != known["sha256"]:
            raise UserError(f"{path} was altered after the run: its SHA-256 does not match that in {manifest}")
        modules[name] = Source(path, Path(place, known["file"]) if os.path.isdir(place) else path, content)
    return Sources(entry, modules)


def _is_module(name: str) -> bool:
    """Return whether `name` can be that of a module, which may be a file with any name, such as `my-env.py`."""
    return len(name) <= MAX_NAME and name.isprintable() and all(part and not {"/", "\\"} & set(part) for part in name.split("."))


def _is_inside(path: str) -> bool:
    """Return whether a relative path names a file below the folder that it starts from; links are another matter."""
    parts = path.split("/")
    return path.isprintable() and len(path) <= 1024 and all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in parts)
