"""The copy of an environment in a run folder: its source, and the tables that the agent was trained with.

environment/manifest.json   its origin, its options, and the SHA-256 of every file and table
environment/*.py            a copy of its files, with their relative paths
environment/tables.npz      a copy of its tables, smallest first, up to 1 MiB; of larger ones only the hash is kept

`env.module` in a config can be such a folder. No numba, no torch.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import io
import json
import os
import zipfile
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Protocol, TypedDict, cast

import numpy as np

from warprun.config import sources
from warprun.config.registry import Defined, define, errors_of_user
from warprun.config.sources import Source, Sources
from warprun.environment import ISOLATED, Environment
from warprun.errors import UserError, one_line
from warprun.files import write_atomic

FOLDER, MANIFEST, TABLES = "environment", "manifest.json", "tables.npz"
MAX_TABLE_BYTES = 1 << 20
"""Largest size of all copied tables together."""


class Tables(Protocol):
    """A NamedTuple of arrays and numbers, as the `tables` of an environment returns it."""

    def _asdict(self) -> dict[str, np.ndarray | float]: ...

    def _replace(self, **values: np.ndarray | float) -> Tables: ...


class FileEntry(TypedDict):
    """A file in the manifest."""

    file: str
    """Path relative to the folder `environment`."""
    sha256: str


class TableEntry(TypedDict):
    """A table in the manifest."""

    dtype: str
    """In numpy's notation, such as `<f4`."""
    shape: list[int]
    sha256: str
    array: bool
    """False for a number."""


class StoredTable(TableEntry):
    """A table in the manifest, and whether the run folder has a copy of it."""

    copied: bool


def keep(
    run: Path, module: str, options: Mapping[str, object], time_limit: int | None, environment: Defined, tables: Tables | None
) -> None:
    """Write the folder `environment` of a run. Raises UserError and OSError."""
    file = Path(module) if module.endswith(".py") else None
    if find(module):
        raise UserError(f"env.module={module} is the copy in a run folder; name the environment that it was copied from")
    found = sources.read_file(file) if file else sources.imported(module)
    parts = [phase.function for phase in environment.phases] if isinstance(environment, Environment) else [type(environment)]
    made_from = {part.__module__.partition(".")[0] for part in parts}
    if any(package.startswith(ISOLATED) and package != found.package for package in made_from):
        raise UserError(f"environment {module} has changed during the set-up of the run; start the run again")
    folder = run / FOLDER
    folder.mkdir()
    layout = found.layout()
    for name, source in found.modules.items():
        (folder / layout[name]).parent.mkdir(parents=True, exist_ok=True)
        (folder / layout[name]).write_bytes(source.content)
    described, copies = _describe(tables), _copies(tables)
    if copies:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **{f"table/{name}": array for name, array in copies.items()})
        write_atomic(folder / TABLES, buffer.getvalue())
    manifest = {
        "module": module,
        "entry": found.entry,
        "place": str(file.resolve().parent) if file else None,
        "version": None if file else _version(module),
        "working_folder": str(Path.cwd()),
        "options": dict(options),
        "time_limit": time_limit,
        "files": {name: {"file": str(layout[name]), "sha256": source.sha256} for name, source in found.modules.items()},
        "tables": {name: about | {"copied": name in copies} for name, about in described.items()},
    }
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2).encode() + b"\n")


def find(module: str) -> Kept | None:
    """Return the copy if `module` is the folder of one, else None. Raises UserError if its manifest is damaged."""
    path = Path(module, MANIFEST)
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_bytes())
        return Kept(Path(module), **manifest)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


@dataclass(frozen=True)
class Kept:
    """The manifest of the folder `environment` of a run."""

    folder: Path
    module: str
    """`env.module` in the config of the run."""
    entry: str
    """Name of the module that defines `environment`."""
    place: str | None
    """Folder of the environment file; None for a module that is imported by its dotted name."""
    version: str | None
    """Package of an importable module, and its version."""
    working_folder: str
    """Working folder of the run, which relative paths in options start from."""
    options: dict[str, object]
    time_limit: int | None
    files: dict[str, FileEntry]
    """By module."""
    tables: dict[str, StoredTable]
    """By name."""

    def environment(self, options: Mapping[str, object], time_limit: int | None) -> tuple[Defined, ModuleType]:
        """Import the environment, a file from its copy, a dotted name as Python does. Raises UserError."""
        with errors_of_user(f"environment {self.module} fails to import"):
            loaded = self.sources().load() if self.place else sources.import_package(self.module)
            resolved = self._resolved(loaded, options)
            return define(loaded, resolved, time_limit, self.entry.rpartition(".")[2], self.module), loaded

    def make_tables(self, environment: Environment, options: Mapping[str, object], time_limit: int | None) -> Tables:
        """Return the tables of `environment`. If its files and options are those of the run, the copies in the run folder are used."""
        assert environment.tables
        same = (_plain(options), time_limit) == (self.options, self.time_limit) and (self.place or not self.changed_files())
        copies = self._table_copies() if same else {}
        try:
            made = environment.tables(**environment.options)
        except Exception as error:
            missing = [name for name in self.tables if name not in copies]
            if missing or not copies:
                where = f"; the run keeps no copy of its tables {', '.join(missing)}" if same and missing else ""
                raise UserError(f"the tables of {self.module} cannot be made: {one_line(error)}{where}") from error
            return cast(Tables, namedtuple("Tables", list(copies))(**copies))  # type: ignore[misc]
        return made._replace(**copies)

    def differences(self) -> list[str]:
        """Return a line for each difference between the current files and tables and those of the run; it says which are used."""
        lines = []
        changed = self.changed_files()
        if changed:
            has = f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since the run"
            if self.place:
                lines.append(f"{has}; the run's own copy is used")
            else:
                lines.append(f"{has} ({self.version} then, {_version(self.module)} now); what is installed now is used")
        environment, _ = self.environment(self.options, self.time_limit)
        if not isinstance(environment, Environment) or not environment.tables or (changed and not self.place):
            return lines
        try:
            now = _describe(environment.tables(**environment.options))
        except Exception as error:
            lines.append(f"the data of tables {', '.join(self.tables)} cannot be read ({one_line(error)}); the run's own copy is used")
            return lines
        for name, about in self.tables.items():
            if name not in now or _content(about) != _content(now[name]):
                used = "the run's own copy is used" if about["copied"] else "the run keeps no copy of it, so the current table is used"
                lines.append(f"table {name!r} has changed since the run; {used}")
        return lines

    def changed_files(self) -> list[str]:
        """Return the paths of the environment's files that now differ from those of the run, without missing files."""
        if self.place is None:
            now = sources.imported(self.module).modules
            return sorted(name for name, known in self.files.items() if name not in now or now[name].sha256 != known["sha256"])
        given = Path(self.module).parent
        # If the run folder comes from another machine, look where a new run would find the file.
        place = next((place for place in (Path(self.place), given) if place.is_dir()), given)
        changed = []
        for known in self.files.values():
            present = place / known["file"]
            if present.is_file() and hashlib.sha256(present.read_bytes()).hexdigest() != known["sha256"]:
                changed.append(os.path.join(os.path.dirname(self.module), known["file"]))
        return changed

    def sources(self) -> Sources:
        """Read the copy of the environment's files. Raises UserError if one was altered."""
        modules = {}
        for name, known in self.files.items():
            path = (self.folder / known["file"]).resolve()
            content = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(content).hexdigest() != known["sha256"]:
                raise UserError(f"{path} was altered after the run: its SHA-256 does not match that in {self.folder / MANIFEST}")
            # The environment finds its data files beside the original file, as long as that folder exists.
            place = Path(str(self.place), known["file"])
            modules[name] = Source(path, place if Path(str(self.place)).is_dir() else path, content)
        return Sources(self.entry, modules)

    def _resolved(self, loaded: ModuleType, options: Mapping[str, object]) -> dict[str, object]:
        """Return the options, with absolute paths for files that were given relative to the working folder of the run."""
        made = vars(loaded).get("environment")
        defaults: dict[str, object] = {}
        if isinstance(made, Environment):
            defaults = made.options
        elif isinstance(made, FunctionType):
            defaults = {name: parameter.default for name, parameter in inspect.signature(made).parameters.items()}
        absolute: dict[str, str] = {}
        for name, value in {**defaults, **options}.items():
            # A word without suffix and slash is no path.
            if isinstance(value, str) and ("/" in value or Path(value).suffix) and Path.cwd() != Path(self.working_folder):
                path = Path(self.working_folder, value)
                absolute |= {name: str(path)} if path.exists() else {}
        return {**options, **absolute}

    def _table_copies(self) -> dict[str, np.ndarray | float]:
        path = self.folder / TABLES
        if not path.is_file():
            return {}
        try:
            with np.load(path, allow_pickle=False) as arrays:
                stored = {name.removeprefix("table/"): arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"cannot read {path}: {one_line(error)}") from None
        copies: dict[str, np.ndarray | float] = {}
        for name, about in self.tables.items():
            if about["copied"]:
                if name not in stored or _hash(stored[name]) != about["sha256"]:
                    raise UserError(f"{path} was altered after the run: table {name!r} does not match its SHA-256")
                copies[name] = stored[name] if about["array"] else stored[name].item()
        return copies


def _describe(tables: Tables | None) -> dict[str, TableEntry]:
    found: dict[str, TableEntry] = {}
    for name, value in (tables._asdict() if tables is not None else {}).items():
        array = np.asarray(value)
        is_array = isinstance(value, np.ndarray)
        found[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": _hash(array), "array": is_array}
    return found


def _content(table: TableEntry) -> tuple[str, list[int], str]:
    return table["dtype"], table["shape"], table["sha256"]


def _copies(tables: Tables | None) -> dict[str, np.ndarray]:
    """Return the tables to copy: the smallest, up to MAX_TABLE_BYTES together."""
    arrays = {name: np.asarray(value) for name, value in (tables._asdict() if tables is not None else {}).items()}
    copied: dict[str, np.ndarray] = {}
    total = 0
    for name, array in sorted(arrays.items(), key=lambda item: item[1].nbytes):
        total += array.nbytes
        if total <= MAX_TABLE_BYTES:
            copied[name] = array
    return copied


def _hash(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _plain(options: Mapping[str, object]) -> object:
    """Return the options in the form that a manifest stores: with lists instead of tuples."""
    return json.loads(json.dumps(dict(options)))


def _version(module: str) -> str | None:
    top = module.partition(".")[0]
    try:
        return f"{top} {importlib.metadata.version(top)}"
    except importlib.metadata.PackageNotFoundError:
        return None
