"""The copy of an environment in a run folder: its source, and the tables that the agent was trained with.

environment/manifest.json   its origin, its options, and the SHA-256 of every file and table
environment/*.py            a copy of its files, with their relative paths
environment/tables.npz      a copy of its tables, smallest first, up to 1 MiB; of larger ones only the hash is kept

`env.module` in a config can be such a folder.
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
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType, NoneType
from typing import NamedTuple, TypeAlias, TypedDict, cast

import numpy as np

from warprun import user_code
from warprun.config.batched import BatchedEnvironment
from warprun.config.external import External, plain
from warprun.config.registry import NONE, Defined, define
from warprun.environment import Environment
from warprun.errors import MOST_PRINTED, UserError, one_line, printable
from warprun.files import BROKEN, read_array, read_json, read_limited, write_atomic
from warprun.run_folder import ENVIRONMENT, MANIFEST, MAX_NAME, SHA256, Copy, fields, is_path, require, write_manifest
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.user_code import ISOLATED, errors_of_user

TABLES = "tables.npz"
MAX_TABLE_BYTES = 1 << 20
"""Largest size of all copied tables together."""
MAX_ARCHIVE_BYTES = 2 * MAX_TABLE_BYTES
"""Largest size of the file of copied tables: compressed data can be larger than the data, and each table adds some hundred bytes."""
MAX_HEADER_BYTES = 4096
"""Of an array in a .npy file; that of a plain array has 128."""
NUMBERS = re.compile(r"[<>|=](b1|[iu][1248]|f[248]|f16|c8|c16)")
"""Data types of tables, in numpy's notation."""
_TABLE: dict[str, type | tuple[type, ...]] = {"dtype": str, "shape": list, "sha256": str, "array": bool, "copied": bool}
_MANIFEST: dict[str, type | tuple[type, ...]] = {
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
"""Fields of the manifest and of a table in it, with their types."""
Tables: TypeAlias = NamedTuple
"""Arrays and numbers, as the `tables` of an environment returns them."""


class Table(TypedDict):
    """A table in the manifest."""

    dtype: str
    """In numpy's notation, such as `<f4`."""
    shape: list[int]
    sha256: str
    array: bool
    """False for a number."""
    copied: bool
    """Whether the run folder has a copy."""


def keep(
    run: Path, module: str, options: Mapping[str, object], time_limit: int | None, environment: Defined, tables: Tables | None
) -> None:
    """Write the folder `environment` of a run. Raises UserError and OSError."""
    file = Path(module) if module.endswith(".py") else None
    if find(module):
        raise UserError(f"env.module={module} is the copy in a run folder; name the environment that it was copied from")
    found = user_code.read_file(file) if file else user_code.imported(module)
    other = environment.made if isinstance(environment, BatchedEnvironment) else type(environment)
    parts = [phase.function for phase in environment.phases] if isinstance(environment, Environment) else [other]
    made_from = {part.__module__.partition(".")[0] for part in parts}
    steps_in_python = isinstance(environment, ExternalEnvironment) and environment.recipe.arguments.get("files")
    changed = bool(steps_in_python) and steps_in_python != plain(found)
    if changed or any(package.startswith(ISOLATED) and package != found.package for package in made_from):
        raise UserError(f"environment {module} has changed during the set-up of the run; start the run again")
    folder = run / ENVIRONMENT
    folder.mkdir(exist_ok=True)  # a run that was killed in its set-up may have left one
    files, about = Copy.write(folder, found, "environment"), _described(tables)
    copies = {f"table/{name}": value for name, value in _values(tables).items() if about[name]["copied"]}
    if copies:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **copies)
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
        "tables": about,
    }
    write_manifest(folder, manifest)


def find(module: str) -> EnvironmentCopy | None:
    """Return the copy if `module` is the folder of one, else None. Raises UserError if its manifest is damaged."""
    path = Path(module, MANIFEST)
    try:
        given = fields(read_json(path), _MANIFEST, "the manifest")
        copy = Copy(path.parent, path, given.pop("entry"), given.pop("place"), given.pop("files"))
        return EnvironmentCopy(copy, **given)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"cannot read {printable(path)}: {error}") from None


@dataclass(frozen=True)
class EnvironmentCopy:
    """The folder `environment` of a run, as its manifest describes it. Raises ValueError for values that `keep` cannot have written."""

    copy: Copy
    module: str
    """`env.module` in the config of the run."""
    version: str | None
    """Package of an importable module, and its version."""
    working_folder: str
    """Working folder of the run, which relative paths in options start from."""
    options: dict[str, object]
    time_limit: int | None
    tables: dict[str, Table]
    """By name."""

    def __post_init__(self) -> None:
        require(is_path(self.module) and is_path(self.working_folder), "module and working_folder must be paths")
        require(self.time_limit is None or type(self.time_limit) is int, "time_limit must be a whole number")
        total = 0
        for name, table in self.tables.items():
            require(name.isidentifier() and len(name) <= MAX_NAME, f"{printable(name)} is no name of a table")
            fields(table, _TABLE, f"tables.{name}")
            require(bool(NUMBERS.fullmatch(table["dtype"])), f"table {name!r} has the dtype {printable(table['dtype'])}")
            sizes = all(type(size) is int and 0 <= size < 2**48 for size in table["shape"])
            require(sizes, f"the shape of table {name!r} is not one")
            require(len(table["shape"]) <= 32 and bool(SHA256.fullmatch(table["sha256"])), f"table {name!r} is damaged")
            total += math.prod(table["shape"]) * np.dtype(table["dtype"]).itemsize if table["copied"] else 0
        require(total <= MAX_TABLE_BYTES, f"the copied tables have more than {MAX_TABLE_BYTES:,} bytes")

    @property
    def is_file(self) -> bool:
        """Whether the environment is a file, which is imported from its copy, and not an importable module."""
        return self.copy.place is not None

    def environment(self, options: Mapping[str, object], time_limit: int | None, chosen: External = NONE) -> tuple[Defined, ModuleType]:
        """Import the environment, a file from its copy, a dotted name as Python does. Raises UserError."""
        with errors_of_user(f"environment {self.module} fails to import"):
            found = self.copy.sources() if self.is_file else None
            loaded = found.load() if found else user_code.import_package(self.module)
            resolved = self._resolved(loaded, options)
            return define(loaded, resolved, time_limit, self.copy.entry.rpartition(".")[2], self.module, chosen, found), loaded

    def make_tables(self, environment: Environment, options: Mapping[str, object], time_limit: int | None) -> Tables:
        """Return the tables of `environment`. If its files and options are those of the run, the copies in the run folder are used."""
        assert environment.tables
        same = self._is_as_made(options, time_limit) and (self.is_file or not self._changed_files())
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

    def _is_as_made(self, options: Mapping[str, object], time_limit: int | None) -> bool:
        """Return whether these settings are those that the tables of the run were made with."""
        plain_options = json.loads(json.dumps(dict(options)))  # as the manifest stores them, with lists instead of tuples
        return (plain_options, time_limit) == (self.options, self.time_limit)

    def differences(self, options: Mapping[str, object], time_limit: int | None) -> list[str]:
        """Return a line for each difference between the current files and tables, with these settings, and those of the run; it says which
        are used."""
        lines = []
        changed = self._changed_files()
        if changed:
            has = f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since the run"
            if self.is_file:
                lines.append(f"{has}; the run's own copy is used")
            else:
                lines.append(f"{has} ({self.version} then, {_version(self.module)} now); what is installed now is used")
        if self.tables and (self.is_file or not changed):
            lines += self._different_tables(options, time_limit)
        return [printable(line, MOST_PRINTED) for line in lines]

    def _different_tables(self, options: Mapping[str, object], time_limit: int | None) -> list[str]:
        environment, _ = self.environment(options, time_limit)
        if not isinstance(environment, Environment) or not environment.tables:
            return []
        same = self._is_as_made(options, time_limit)
        try:
            now = _described(cast(Tables, environment.make_tables()))
        except (Exception, SystemExit) as error:
            if not same:
                return []  # `make_tables` raises it
            return [f"the data of tables {', '.join(self.tables)} cannot be read ({one_line(error)}); the run's own copy is used"]
        current = (
            "the run keeps no copy of it, so the current table is used" if same else "with other settings of env the current table is used"
        )
        used = {True: "the run's own copy is used" if same else current, False: current}
        return [
            f"table {name!r} has changed since the run; {used[about['copied']]}"
            for name, about in self.tables.items()
            if name not in now or any(about[key] != now[name][key] for key in ("dtype", "shape", "sha256"))
        ]

    def _changed_files(self) -> list[str]:
        """Return the paths of the environment's files that now differ from those of the run, without missing files."""
        then = self.copy.hashes()
        if self.copy.place is None:
            now = user_code.imported(self.module).hashes()
            return sorted(name for name, known in then.items() if now.get(name) != known)
        given = Path(self.module).parent
        # If the run folder comes from another machine, look where a new run would find the file.
        place = next((place for place in (Path(self.copy.place), given) if os.path.isdir(place)), given)
        return [os.path.join(os.path.dirname(self.module), name) for name in self.copy.changed(place)]

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
        path = self.copy.folder / TABLES
        copies: dict[str, np.ndarray | float] = {}
        try:
            with zipfile.ZipFile(io.BytesIO(read_limited(path, MAX_ARCHIVE_BYTES))) as archive:
                for name, about in self.tables.items():
                    if about["copied"]:
                        table = _read_table(archive, name, about)
                        copies[name] = table if about["array"] else table.item()
        except FileNotFoundError:
            if any(about["copied"] for about in self.tables.values()):
                raise UserError(
                    f"{printable(path)}, the copy of the tables of the run, is missing: copy the whole folder of the run again"
                ) from None
            return {}
        except BROKEN as error:
            raise UserError(f"{printable(path)} was altered after the run, or it is damaged: {printable(one_line(error))}") from None
        return copies


def _read_table(archive: zipfile.ZipFile, name: str, about: Table) -> np.ndarray:
    """Read a table that must be the declared one, without reading more than that takes. Raises the errors of `files.BROKEN`."""
    member = archive.getinfo(f"table/{name}.npy")
    dtype, shape = np.dtype(about["dtype"]), tuple(about["shape"])
    size = math.prod(shape) * dtype.itemsize
    if member.file_size > size + MAX_HEADER_BYTES or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"table {name!r} is larger than the manifest says")
    table = read_array(archive, member)
    if (table.shape, table.dtype) != (shape, dtype):
        raise ValueError(f"table {name!r} does not have the dtype and shape in the manifest")
    if _hash(table) != about["sha256"]:
        raise ValueError(f"table {name!r} does not match its SHA-256")
    return table


def _values(tables: Tables | None) -> dict[str, np.ndarray | float]:
    return {} if tables is None else tables._asdict()


def _described(tables: Tables | None) -> dict[str, Table]:
    """Return what a manifest says of tables; the smallest are copied, up to MAX_TABLE_BYTES together."""
    values = _values(tables)
    arrays = {name: np.asarray(value) for name, value in values.items()}
    found: dict[str, Table] = {}
    for name, array in arrays.items():
        is_array = isinstance(values[name], np.ndarray)
        found[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": _hash(array), "array": is_array, "copied": False}
    total = 0
    for name, array in sorted(arrays.items(), key=lambda item: item[1].nbytes):
        total += array.nbytes
        found[name]["copied"] = total <= MAX_TABLE_BYTES
    return found


def _hash(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@cache
def _version(module: str) -> str | None:
    top = module.partition(".")[0]
    try:
        return f"{top} {importlib.metadata.version(top)}"
    except importlib.metadata.PackageNotFoundError:
        return None
