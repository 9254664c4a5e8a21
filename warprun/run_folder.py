"""The folder of a run as the rooms below `runs` know it: the names of its files, and the copies of the user's source files in it.

environment/    the environment: manifest.json, its files with their relative paths, and its tables (see `config.kept`)
networks/       networks of the user: manifest.json, and in 0/, 1/, ... a file that a setting names with the neighbours that it imports

A manifest lists the files of a copy with their SHA-256. Somebody else may have made it, so it is checked before anything is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, cast

from warprun.errors import UserError, printable, shown
from warprun.files import read_json, read_limited, refuse_links, write_atomic
from warprun.user_code import Source, Sources, errors_of_user, read_file

LOCK = "lock"
"""The file that the process holds which trains there."""
CONFIG, STATUS, VERSIONS = "config.yaml", "status.json", "versions.json"
ENVIRONMENT, NETWORKS = "environment", "networks"
"""Folders of copies."""
MANIFEST = "manifest.json"
LINES = {"last": "checkpoints", "best": "best"}
"""Value of `checkpoint` -> the folder of the checkpoints that it selects: the newest, and the one with the best evaluation."""
PLAN, JOBS = "plan.json", "jobs"
"""In the folder of a sweep: its plan, and the folder of what jobs have beside their runs."""
LOGS = "logs"
"""Folder of what ranks other than 0 print."""
SET_UP = {LOCK, LOGS, ENVIRONMENT, NETWORKS, VERSIONS, f"{VERSIONS}.tmp", f"{CONFIG}.tmp"}
"""What lies in a run folder before its config.yaml, which is written last."""
MAX_SOURCE_BYTES = 32 << 20
"""Largest size of a file in a copy, which may be an extension module."""
MAX_NAME = 200
"""Most characters of the name of a module."""
_Nested: TypeAlias = Mapping[str, Mapping[str, Mapping[str, str]]]
"""A manifest, as far as `digests` reads it."""
SHA256 = re.compile(r"[0-9a-f]{64}")


def folder_name(text: str) -> str:
    """Return text as the name of a folder: letters, digits, `.`, `_` and `-`, which no shell and no reader of settings takes for more."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "run"


def is_free(run_dir: Path) -> bool:
    """Return whether a run can begin in a folder: it is new or empty, or a run that was killed in its set-up left it.

    Raises OSError, and UserError if such a folder has links.
    """
    names = {path.name for path in run_dir.iterdir()} if run_dir.exists() else set()
    left = LOCK in names and names <= SET_UP
    if left:
        refuse_links(run_dir.resolve())
    return not names or left


class FileEntry(TypedDict):
    """A file in a manifest."""

    file: str
    """Path relative to the folder of the copy."""
    sha256: str


@dataclass(frozen=True)
class Copy:
    """A copy of source files as a manifest lists it. Raises ValueError for a list that `write` cannot have returned."""

    folder: Path
    manifest: Path
    entry: str
    """Name of the module that defines the environment or the network."""
    place: str | None
    """Folder of the original files; None: they belong to a package, which is imported from where it is installed."""
    files: Mapping[str, FileEntry]
    """By module."""

    @staticmethod
    def write(folder: Path, found: Sources, owner: str) -> dict[str, FileEntry]:
        """Copy files into `folder`; return their list. Raises OSError, and UserError for a large file of the `owner`."""
        layout = found.layout()
        for name, source in found.modules.items():
            if len(source.content) > MAX_SOURCE_BYTES:
                kept = f"a run keeps a copy of each file of its {owner}"
                raise UserError(f"{source.path} is larger than {MAX_SOURCE_BYTES:,} bytes; {kept}")
            (folder / layout[name]).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / layout[name], source.content)
        return {name: {"file": str(layout[name]), "sha256": source.sha256} for name, source in found.modules.items()}

    def __post_init__(self) -> None:
        for name, file in self.files.items():
            require(_is_module(name), f"{printable(name)} is no name of a module")
            fields(file, {"file": str, "sha256": str}, f"files.{printable(name)}")
            require(_is_inside(file["file"]), f"{printable(file['file'])} is no path of a file in the copy")
            require(bool(SHA256.fullmatch(file["sha256"])), f"the SHA-256 of {printable(file['file'])} is not one")
        require(self.entry in self.files, f"{printable(self.entry)} is not among the files")
        require(self.place is None or is_path(self.place), "place must be a path")

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each module's file."""
        return {name: file["sha256"] for name, file in self.files.items()}

    def changed(self, place: Path) -> list[str]:
        """Return the paths of files that have other contents in the folder `place` than here; without those that are missing there."""
        changed = []
        for known in self.files.values():
            with suppress(FileNotFoundError, UserError):
                if hashlib.sha256(read_limited(place / known["file"], MAX_SOURCE_BYTES)).hexdigest() != known["sha256"]:
                    changed.append(known["file"])
        return changed

    def sources(self) -> Sources:
        """Read the files. Raises UserError if one was altered.

        Modules find their data files beside the original files, as long as the folder of these exists.
        """
        modules = {}
        inside, place = self.folder.resolve(), self.place or ""
        for name, known in self.files.items():
            path = (self.folder / known["file"]).resolve()
            if not path.is_relative_to(inside):
                raise UserError(f"{printable(self.folder / known['file'])} is a link to a file outside {printable(inside)}")
            try:
                content = read_limited(path, MAX_SOURCE_BYTES)
            except FileNotFoundError:
                content = b""
            if hashlib.sha256(content).hexdigest() != known["sha256"]:
                raise UserError(f"{path} was altered after the run: its SHA-256 does not match that in {self.manifest}")
            modules[name] = Source(path, Path(place, known["file"]) if os.path.isdir(place) else path, content)
        return Sources(self.entry, modules)


@dataclass(frozen=True)
class Named:
    """A class of the user that a setting names: PLACE:CLASS."""

    place: str
    """A .py file, the dotted name of a module, or the folder of a copy."""
    name: str

    @property
    def is_file(self) -> bool:
        return self.place.endswith(".py")

    @property
    def is_copy(self) -> bool:
        place = Path(self.place)
        return place.parent.name == NETWORKS and place.name.isdigit() and (place.parent / MANIFEST).is_file()

    def load(self, key: str) -> object:
        """Import the class; the setting is called `key`. Raises UserError, with file and line for errors of the code."""
        with errors_of_user(f"{key}={self.place}:{self.name} cannot be imported", "a network"):
            if self.is_copy:
                module = _network(Path(self.place)).sources().load()
            else:
                module = read_file(Path(self.place)).load() if self.is_file else import_module(self.place)
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


def keep_networks(run: Path, settings: Sequence[tuple[str, str]]) -> None:
    """Copy the files that `settings`, (key, value) each, name into the folder of a run. Raises UserError and OSError."""
    manifest: dict[str, dict[str, object]] = {}
    for key, value in settings:
        own = named(key, value)
        if own.is_copy:
            raise UserError(f"{key}={value} is the copy in a run folder; name the file that it was copied from")
        if own.is_file and own.place not in manifest:
            found, folder = read_file(Path(own.place)), run / NETWORKS / str(len(manifest))
            folder.mkdir(parents=True, exist_ok=True)
            files, place = Copy.write(folder, found, "networks"), str(Path(own.place).resolve().parent)
            manifest[own.place] = {"folder": folder.name, "entry": found.entry, "place": place, "files": files}
    if manifest:
        write_manifest(run / NETWORKS, manifest)


def network_in_run(run: Path, key: str, value: str) -> str:
    """Return the setting `key`=`value` of the run in a folder with the copy of its file in place of the file. Raises UserError."""
    place, _, name = value.rpartition(":")
    if not place.endswith(".py"):
        return value
    copy = networks(run / NETWORKS).get(place)
    if copy is None:
        raise UserError(f"{printable(run)} has no copy of {printable(place)}, its {key}")
    return f"{copy.folder}:{name}"


def _network(folder: Path) -> Copy:
    for copy in networks(folder.parent).values():
        if copy.folder.name == folder.name:
            return copy
    raise UserError(f"{printable(folder.parent / MANIFEST)} does not list {printable(folder.name)}")


def networks(folder: Path) -> dict[str, Copy]:
    """Return the copies in the folder `networks` of a run, by the file that the setting names. Raises UserError."""
    path, copies = folder / MANIFEST, {}
    types: dict[str, type | tuple[type, ...]] = {"folder": str, "entry": str, "place": str, "files": dict}
    try:
        found = read_json(path)
        for n, (place, about) in enumerate(found.items() if isinstance(found, dict) else [("", found)]):
            entry = fields(about, types, "the manifest")
            require(entry["folder"] == str(n), f"folder {n} has another name")
            copies[place] = Copy(folder / entry.pop("folder"), path, **entry)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"cannot read {printable(path)}: {printable(error)}") from None
    return copies


def digests(run: Path) -> dict[tuple[str, str], str]:
    """Return the SHA-256 of what the user wrote and a run was trained with: (file, "") and (table, environment) -> digest.

    Without those of a manifest that is missing or damaged. Files in different folders may have one name, so the path of a file begins as
    in the setting that leads to it.
    """
    found: dict[tuple[str, str], str] = {}
    with suppress(UserError, OSError, ValueError, AttributeError, KeyError, TypeError):
        about = cast(_Nested, read_json(run / ENVIRONMENT / MANIFEST))
        found |= _digests_of(str(about["module"]), about)
        made_by = json.dumps([about["module"], about["options"], about["time_limit"]], sort_keys=True)
        found |= {(f"table {name}", made_by): str(table["sha256"]) for name, table in about["tables"].items()}
    with suppress(UserError, OSError, ValueError, AttributeError, KeyError, TypeError):
        for setting, copy in cast(Mapping[str, _Nested], read_json(run / NETWORKS / MANIFEST)).items():
            found |= _digests_of(setting, copy)
    return found


def _digests_of(setting: str, copy: _Nested) -> dict[tuple[str, str], str]:
    place = os.path.dirname(setting)
    return {(os.path.normpath(os.path.join(place, file["file"])), ""): str(file["sha256"]) for file in copy["files"].values()}


def write_manifest(folder: Path, content: Mapping[str, object]) -> None:
    """Write the manifest of a folder of copies. Raises OSError."""
    write_atomic(folder / MANIFEST, json.dumps(content, indent=2).encode() + b"\n")


def fields(found: object, types: Mapping[str, type | tuple[type, ...]], what: str) -> dict[str, Any]:
    """Return `found`, a mapping with exactly these fields, each of its type. Raises ValueError for anything else."""
    if not isinstance(found, dict) or found.keys() != types.keys():
        raise ValueError(f"{what} must be a mapping with {', '.join(types)}")
    for name, kind in types.items():
        require(isinstance(found[name], kind), f"{what} has a {type(found[name]).__name__} as {name}")
    return found


def require(holds: bool, message: str) -> None:
    """Raise ValueError with a message if a condition does not hold."""
    if not holds:
        raise ValueError(message)


def is_path(text: str) -> bool:
    """Return whether a text of a manifest can be a path."""
    return "\0" not in text and len(text) <= 4096


def _is_module(name: str) -> bool:
    """Return whether `name` can be that of a module, which may be a file with any name, such as `my-env.py`."""
    return len(name) <= MAX_NAME and name.isprintable() and all(part and not {"/", "\\"} & set(part) for part in name.split("."))


def _is_inside(path: str) -> bool:
    """Return whether a relative path names a file below the folder that it starts from; links are another matter."""
    parts = path.split("/")
    return path.isprintable() and len(path) <= 1024 and all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in parts)
