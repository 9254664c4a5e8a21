"""Classes of the user that a setting names as FILE.py:CLASS or MODULE:CLASS, and the copies of their files in a run folder.

networks/manifest.json   the settings, and the SHA-256 of every file
networks/0/*.py          a copy of the first file with the neighbours that it imports, with their relative paths; and so on

A run that is opened later takes the copy: then the setting is FOLDER:CLASS with such a folder. No numba, no torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from warprun import source_copy, sources
from warprun.errors import UserError, printable, shown
from warprun.files import read_json, write_atomic
from warprun.source_copy import MAX_NAME, FileEntry
from warprun.sources import Sources
from warprun.user_code import errors_of_user

FOLDER, MANIFEST = "networks", "manifest.json"


@dataclass(frozen=True)
class Named:
    """A setting PLACE:CLASS."""

    place: str
    """A .py file, the dotted name of a module, or the folder of a copy."""
    name: str

    @property
    def is_file(self) -> bool:
        return self.place.endswith(".py")

    @property
    def is_copy(self) -> bool:
        place = Path(self.place)
        return place.parent.name == FOLDER and place.name.isdigit() and (place.parent / MANIFEST).is_file()

    def load(self, key: str) -> object:
        """Import the class; the setting is called `key`. Raises UserError, with file and line for errors of the code."""
        with errors_of_user(f"{key}={self.place}:{self.name} cannot be imported", "a network"):
            if self.is_copy:
                module = _copy(Path(self.place)).load()
            elif self.is_file:
                module = sources.read_file(Path(self.place)).load()
            else:
                module = import_module(self.place)
        if self.name not in vars(module):
            raise UserError(f"{key}={self.place}:{self.name}: {self.place} does not define {self.name}")
        found: object = vars(module)[self.name]
        return found


def named(key: str, value: str) -> Named:
    """Return the parts of the setting `key`=`value`. Raises UserError."""
    place, _, name = value.rpartition(":")
    own = Named(place, name)
    dotted = len(place) <= MAX_NAME and all(part.isidentifier() for part in place.split("."))
    if not name.isidentifier() or not (own.is_file or dotted or own.is_copy):
        raise UserError(f"{key}={shown(value)}: give FILE.py:CLASS or MODULE:CLASS, such as ./mynet.py:MyNetwork")
    if own.is_file and not Path(place).is_file():
        raise UserError(f"{key}={printable(value)}: there is no file {printable(place)} (working folder: {Path.cwd()})")
    return own


def keep(run: Path, settings: Sequence[tuple[str, str]]) -> None:
    """Copy the files that `settings`, (key, value) each, name into the folder `networks` of a run. Raises UserError and OSError."""
    manifest: dict[str, dict[str, object]] = {}
    for key, value in settings:
        own = named(key, value)
        if own.is_copy:
            raise UserError(f"{key}={value} is the copy in a run folder; name the file that it was copied from")
        if own.is_file and own.place not in manifest:
            found, folder = sources.read_file(Path(own.place)), run / FOLDER / str(len(manifest))
            folder.mkdir(parents=True, exist_ok=True)
            files = source_copy.write(folder, found, "networks")
            place = str(Path(own.place).resolve().parent)
            manifest[own.place] = {"folder": folder.name, "entry": found.entry, "place": place, "files": files}
    if manifest:
        write_atomic(run / FOLDER / MANIFEST, json.dumps(manifest, indent=2).encode() + b"\n")


def in_run(run: Path, key: str, value: str) -> str:
    """Return the setting `key`=`value` of the run in a folder with the copy of its file in place of the file. Raises UserError."""
    place, _, name = value.rpartition(":")
    if not place.endswith(".py"):
        return value
    entry = _manifest(run / FOLDER / MANIFEST).get(place)
    if entry is None:
        raise UserError(f"{printable(run)} has no copy of {printable(place)}, its {key}")
    return f"{run / FOLDER / entry.folder}:{name}"


@dataclass(frozen=True)
class _Entry:
    """A file in the manifest."""

    folder: str
    entry: str
    place: str
    files: dict[str, FileEntry]


def _copy(folder: Path) -> Sources:
    path = folder.parent / MANIFEST
    for entry in _manifest(path).values():
        if entry.folder == folder.name:
            return source_copy.read(folder, entry.entry, entry.place, entry.files, path)
    raise UserError(f"{printable(path)} does not list {printable(folder.name)}")


def _manifest(path: Path) -> dict[str, _Entry]:
    """Return a manifest of which every value is checked. Raises UserError."""
    try:
        found = read_json(path)
        if not isinstance(found, dict):
            raise TypeError("it must be a mapping")
        entries = {str(place): _Entry(**about) for place, about in found.items()}
        for n, entry in enumerate(entries.values()):
            if entry.folder != str(n) or not isinstance(entry.place, str) or "\0" in entry.place or not isinstance(entry.files, dict):
                raise TypeError("it has values of other types")
            source_copy.check(entry.entry, entry.files)
    except FileNotFoundError:
        return {}
    except (TypeError, ValueError) as error:
        raise UserError(f"cannot read {printable(path)}: {printable(error)}") from None
    return entries
