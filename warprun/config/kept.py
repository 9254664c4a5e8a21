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
import math
import os
import re
import zipfile
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType, NoneType
from typing import Any, Protocol, TypedDict, cast

import numpy as np

from warprun import source_copy, sources
from warprun.config.external import External, plain
from warprun.config.registry import NONE, Defined, define
from warprun.config.run_folder import ENVIRONMENT
from warprun.environment import ISOLATED, Environment
from warprun.errors import MOST_PRINTED, UserError, one_line, printable
from warprun.files import read_json, read_limited, write_atomic
from warprun.npz import BROKEN, read_array
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.source_copy import MAX_NAME, MAX_SOURCE_BYTES, SHA256, FileEntry
from warprun.sources import Sources
from warprun.user_code import errors_of_user

FOLDER, MANIFEST, TABLES = ENVIRONMENT, "manifest.json", "tables.npz"
MAX_TABLE_BYTES = 1 << 20
"""Largest size of all copied tables together."""
MAX_ARCHIVE_BYTES = 2 * MAX_TABLE_BYTES
"""Largest size of the file of copied tables: compressed data can be larger than the data, and each table adds some hundred bytes."""


class Tables(Protocol):
    """A NamedTuple of arrays and numbers, as the `tables` of an environment returns it."""

    def _asdict(self) -> dict[str, np.ndarray | float]: ...

    def _replace(self, **values: np.ndarray | float) -> Tables: ...


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
    steps_in_python = isinstance(environment, ExternalEnvironment) and environment.recipe.arguments.get("files")
    changed = bool(steps_in_python) and steps_in_python != plain(found)
    if changed or any(package.startswith(ISOLATED) and package != found.package for package in made_from):
        raise UserError(f"environment {module} has changed during the set-up of the run; start the run again")
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)  # a run that was killed in its set-up may have left one
    files = source_copy.write(folder, found, "environment")
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
        "files": files,
        "tables": {name: about | {"copied": name in copies} for name, about in described.items()},
    }
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2).encode() + b"\n")


def find(module: str) -> Kept | None:
    """Return the copy if `module` is the folder of one, else None. Raises UserError if its manifest is damaged."""
    path = Path(module, MANIFEST)
    try:
        manifest = read_json(path)
        return _kept(Path(module), manifest)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"cannot read {printable(path)}: {error}") from None


def _kept(folder: Path, manifest: object) -> Kept:
    """Return a manifest of which every value is checked. Raises ValueError."""
    kept = Kept(folder, **_fields(manifest, _FIELDS, "the manifest"))
    _require(_is_text(kept.module) and (kept.place is None or _is_text(kept.place)), "module and place must be paths")
    _require(_is_text(kept.working_folder), "working_folder must be a path")
    _require(kept.time_limit is None or type(kept.time_limit) is int, "time_limit must be a whole number")
    source_copy.check(kept.entry, kept.files)
    total = 0
    for name, table in kept.tables.items():
        _require(name.isidentifier() and len(name) <= MAX_NAME, f"{printable(name)} is no name of a table")
        _fields(table, _TABLE_FIELDS, f"tables.{name}")
        _require(bool(_NUMBERS.fullmatch(table["dtype"])), f"table {name!r} has the dtype {printable(table['dtype'])}")
        _require(all(type(size) is int and 0 <= size < 2**48 for size in table["shape"]), f"the shape of table {name!r} is not one")
        _require(len(table["shape"]) <= 32 and bool(SHA256.fullmatch(table["sha256"])), f"table {name!r} is damaged")
        total += math.prod(table["shape"]) * np.dtype(table["dtype"]).itemsize if table["copied"] else 0
    _require(total <= MAX_TABLE_BYTES, f"the copied tables have more than {MAX_TABLE_BYTES:,} bytes")
    return kept


def _fields(found: object, types: Mapping[str, type | tuple[type, ...]], what: str) -> dict[str, Any]:
    """Return `found`, a mapping with exactly these fields, each of its type. Raises ValueError for anything else."""
    if not isinstance(found, dict) or found.keys() != types.keys():
        raise ValueError(f"{what} must be a mapping with {', '.join(types)}")
    for name, kind in types.items():
        _require(isinstance(found[name], kind), f"{what} has a {type(found[name]).__name__} as {name}")
    return found


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


_NUMBERS = re.compile(r"[<>|=](b1|[iu][1248]|f[248]|f16|c8|c16)")
"""Data types of tables, in numpy's notation."""
_TABLE_FIELDS: dict[str, type | tuple[type, ...]] = {"dtype": str, "shape": list, "sha256": str, "array": bool, "copied": bool}
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "module": str,
    "entry": str,
    "place": (str, NoneType),
    "version": (str, NoneType),
    "working_folder": str,
    "options": dict,
    "time_limit": (int, NoneType),
    "files": dict,
    "tables": dict,
}


def _is_text(path: str) -> bool:
    return "\0" not in path and len(path) <= 4096


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

    def environment(self, options: Mapping[str, object], time_limit: int | None, chosen: External = NONE) -> tuple[Defined, ModuleType]:
        """Import the environment, a file from its copy, a dotted name as Python does. Raises UserError."""
        with errors_of_user(f"environment {self.module} fails to import"):
            found = self.sources() if self.place else None
            loaded = found.load() if found else sources.import_package(self.module)
            resolved = self._resolved(loaded, options)
            return define(loaded, resolved, time_limit, self.entry.rpartition(".")[2], self.module, chosen, found), loaded

    def make_tables(self, environment: Environment, options: Mapping[str, object], time_limit: int | None) -> Tables:
        """Return the tables of `environment`. If its files and options are those of the run, the copies in the run folder are used."""
        assert environment.tables
        same = (_plain(options), time_limit) == (self.options, self.time_limit) and (self.place or not self.changed_files())
        copies = self._table_copies() if same else {}
        try:
            made = cast(Tables, environment.make_tables())
        except (Exception, SystemExit) as error:
            missing = [name for name in self.tables if name not in copies]
            if missing or not copies:
                where = f"; the run keeps no copy of its tables {', '.join(missing)}" if same and missing else ""
                raise UserError(f"the tables of {self.module} cannot be made: {one_line(error)}{where}") from error
            return cast(Tables, namedtuple("Tables", list(copies))(**copies))  # type: ignore[misc]
        return made._replace(**copies)

    def differences(self) -> list[str]:
        """Return a line for each difference between the current files and tables and those of the run; it says which are used."""
        return [printable(line, MOST_PRINTED) for line in self._differences()]

    def _differences(self) -> list[str]:
        lines = []
        changed = self.changed_files()
        if changed:
            has = f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since the run"
            if self.place:
                lines.append(f"{has}; the run's own copy is used")
            else:
                lines.append(f"{has} ({self.version} then, {_version(self.module)} now); what is installed now is used")
        if not self.tables or (changed and not self.place):
            return lines
        environment, _ = self.environment(self.options, self.time_limit)
        if not isinstance(environment, Environment) or not environment.tables:
            return lines
        try:
            now = _describe(cast(Tables, environment.make_tables()))
        except (Exception, SystemExit) as error:
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
        place = next((place for place in (Path(self.place), given) if os.path.isdir(place)), given)
        changed = []
        for known in self.files.values():
            try:
                content = read_limited(place / known["file"], MAX_SOURCE_BYTES)
            except (FileNotFoundError, UserError):
                continue
            if hashlib.sha256(content).hexdigest() != known["sha256"]:
                changed.append(os.path.join(os.path.dirname(self.module), known["file"]))
        return changed

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each module's file."""
        return {name: file["sha256"] for name, file in self.files.items()}

    def source_path(self, module: str) -> Path:
        """Return the path of the copy of a module."""
        return self.folder / self.files[module]["file"]

    def sources(self) -> Sources:
        """Read the copy of the environment's files. Raises UserError if one was altered."""
        return source_copy.read(self.folder, self.entry, str(self.place), self.files, self.folder / MANIFEST)

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
                absolute |= {name: str(path)} if os.path.exists(path) else {}
        return {**options, **absolute}

    def _table_copies(self) -> dict[str, np.ndarray | float]:
        path = self.folder / TABLES
        copies: dict[str, np.ndarray | float] = {}
        try:
            with zipfile.ZipFile(io.BytesIO(read_limited(path, MAX_ARCHIVE_BYTES))) as archive:
                for name, about in self.tables.items():
                    if about["copied"]:
                        table = _read_table(archive, name, about)
                        if _hash(table) != about["sha256"]:
                            raise ValueError(f"table {name!r} does not match its SHA-256")
                        copies[name] = table if about["array"] else table.item()
        except FileNotFoundError:
            return {}
        except BROKEN as error:
            raise UserError(f"{printable(path)} was altered after the run, or it is damaged: {printable(one_line(error))}") from None
        return copies


def _read_table(archive: zipfile.ZipFile, name: str, about: TableEntry) -> np.ndarray:
    """Read a table that must have the declared dtype and shape, without reading more than that takes. Raises the errors of `npz.BROKEN`."""
    member = archive.getinfo(f"table/{name}.npy")
    dtype, shape = np.dtype(about["dtype"]), tuple(about["shape"])
    size = math.prod(shape) * dtype.itemsize
    if member.file_size > size + MAX_HEADER_BYTES or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"table {name!r} is larger than the manifest says")
    table = read_array(archive, member)
    if (table.shape, table.dtype) != (shape, dtype):
        raise ValueError(f"table {name!r} does not have the dtype and shape in the manifest")
    return table


MAX_HEADER_BYTES = 4096
"""Of an array in a .npy file; that of a plain array has 128."""


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
