"""The environment of a run, as its folder keeps it: the source, and the tables that it was trained with.

environment/manifest.json   where it came from, its options, and the SHA-256 of every file and table
environment/*.py            a copy of the environment's files, with their relative paths
environment/tables.npz      a copy of its tables, smallest first, up to 1 MiB; of the others only the hash is kept

The name of such a folder can stand where a config has the module of an environment. No numba, no torch.
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
from typing import Any

import numpy as np

from warprun.config import sources
from warprun.config.registry import define, import_errors
from warprun.config.sources import Source, Sources
from warprun.environment import Environment
from warprun.errors import UserError, one_line
from warprun.runtime.rundir import write_atomic

FOLDER, MANIFEST, TABLES = "environment", "manifest.json", "tables.npz"
MAX_TABLE_BYTES = 1 << 20
"""Of the tables that are copied."""


def keep(run: Path, module: str, options: Mapping[str, Any], time_limit: int | None, environment: Environment, tables: Any) -> None:
    """Write the folder `environment` of a run: what `environment` and its `tables` were made from. Raises UserError and OSError."""
    file = Path(module) if module.endswith(".py") else None
    if find(module):
        raise UserError(f"env.module={module} is what a run keeps; name the environment that it was made from")
    found = sources.read_file(file) if file else sources.imported(module)
    made_from = {phase.function.__module__.partition(".")[0] for phase in environment.phases}
    if any(package.startswith(sources.PREFIX) and package != found.package for package in made_from):
        raise UserError(f"environment {module} has changed while the run was set up; start it again")
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
    """Return what a run keeps where `module` is the name of such a folder. Raises UserError where its manifest is damaged."""
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
    """As the run's config has it."""
    entry: str
    """Name of the module that defines `environment`."""
    place: str | None
    """Folder of the environment file; None: the module is importable by its dotted name."""
    version: str | None
    """Of the package that an importable module is part of."""
    working_folder: str
    """Of the run: relative paths in options begin there."""
    options: dict[str, Any]
    time_limit: int | None
    files: dict[str, dict[str, str]]
    """Module -> its file, relative to this folder, and SHA-256."""
    tables: dict[str, dict[str, Any]]
    """Name -> dtype, shape, SHA-256, and whether there is a copy."""

    def environment(self, options: Mapping[str, Any], time_limit: int | None) -> tuple[Environment, ModuleType]:
        """Import the environment: a file from its copy, a dotted name as Python does. Raises UserError."""
        with import_errors(self.module):
            loaded = self.sources().load() if self.place else sources.import_package(self.module)
            resolved = self._resolved(loaded, options)
            return define(loaded, resolved, time_limit, self.entry.rpartition(".")[2], self.module), loaded

    def make_tables(self, environment: Environment, options: Mapping[str, Any], time_limit: int | None) -> Any:
        """Return the tables of `environment`, the run's own where they are copied and it is the same under the same options."""
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
            return namedtuple("Tables", list(copies))(**copies)  # type: ignore[misc]
        return made._replace(**copies)

    def differences(self) -> list[str]:
        """Say, a line each, which files and tables are not now what they were for the run, and which are used."""
        lines = []
        changed = self.changed_files()
        if changed:
            has = f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since the run"
            if self.place:
                lines.append(f"{has}; the run's own copy is used")
            else:
                lines.append(f"{has} ({self.version} then, {_version(self.module)} now); what is installed now is used")
        environment, _ = self.environment(self.options, self.time_limit)
        if not environment.tables or (changed and not self.place):
            return lines
        try:
            now = _describe(environment.tables(**environment.options))
        except Exception as error:
            lines.append(f"the data of tables {', '.join(self.tables)} cannot be read ({one_line(error)}); the run's own copy is used")
            return lines
        for name, about in self.tables.items():
            if any(about[key] != now.get(name, {}).get(key) for key in ("dtype", "shape", "sha256")):
                used = "the run's own copy is used" if about["copied"] else "the run keeps no copy of it, so that of today is used"
                lines.append(f"table {name!r} has changed since the run; {used}")
        return lines

    def changed_files(self) -> list[str]:
        """Return the files of the environment that are there now and differ from those of the run, as a user would name them."""
        if self.place is None:
            now = sources.imported(self.module).modules
            return sorted(name for name, known in self.files.items() if name not in now or now[name].sha256 != known["sha256"])
        given = Path(self.module).parent
        # Where the run folder came from elsewhere, the file may lie where it would for a new run.
        place = next((place for place in (Path(self.place), given) if place.is_dir()), given)
        changed = []
        for known in self.files.values():
            present = place / known["file"]
            if present.is_file() and hashlib.sha256(present.read_bytes()).hexdigest() != known["sha256"]:
                changed.append(os.path.join(os.path.dirname(self.module), known["file"]))
        return changed

    def sources(self) -> Sources:
        """Read the copy of the environment's files. Raises UserError where one is not what the run kept."""
        modules = {}
        for name, known in self.files.items():
            path = (self.folder / known["file"]).resolve()
            content = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(content).hexdigest() != known["sha256"]:
                raise UserError(f"{path} is not what the run kept: its SHA-256 is not that of {self.folder / MANIFEST}")
            # Data files are looked for beside the file that was copied, as long as its folder is there.
            place = Path(str(self.place), known["file"])
            modules[name] = Source(path, place if Path(str(self.place)).is_dir() else path, content)
        return Sources(self.entry, modules)

    def _resolved(self, loaded: ModuleType, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options, with relative paths of files in the run's working folder made absolute."""
        made, defaults = vars(loaded).get("environment"), {}
        if isinstance(made, Environment):
            defaults = made.options
        elif isinstance(made, FunctionType):
            defaults = {name: parameter.default for name, parameter in inspect.signature(made).parameters.items()}
        absolute: dict[str, str] = {}
        for name, value in {**defaults, **options}.items():
            # A word without suffix and slash is the name of something else.
            if isinstance(value, str) and ("/" in value or Path(value).suffix) and Path.cwd() != Path(self.working_folder):
                path = Path(self.working_folder, value)
                absolute |= {name: str(path)} if path.exists() else {}
        return {**options, **absolute}

    def _table_copies(self) -> dict[str, Any]:
        path = self.folder / TABLES
        if not path.is_file():
            return {}
        try:
            with np.load(path, allow_pickle=False) as arrays:
                stored = {name.removeprefix("table/"): arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"cannot read {path}: {one_line(error)}") from None
        copies = {}
        for name, about in self.tables.items():
            if about["copied"]:
                if name not in stored or _hash(stored[name]) != about["sha256"]:
                    raise UserError(f"{path} is not what the run kept: table {name!r} does not match its SHA-256")
                copies[name] = stored[name] if about["array"] else stored[name].item()
        return copies


def _describe(tables: Any) -> dict[str, dict[str, Any]]:
    found = {}
    for name, value in (tables._asdict() if tables is not None else {}).items():
        array = np.asarray(value)
        is_array = isinstance(value, np.ndarray)
        found[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": _hash(array), "array": is_array}
    return found


def _copies(tables: Any) -> dict[str, np.ndarray]:
    """Return the tables that are copied: the smallest, up to MAX_TABLE_BYTES together."""
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


def _plain(options: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(options)))


def _version(module: str) -> str | None:
    top = module.partition(".")[0]
    try:
        return f"{top} {importlib.metadata.version(top)}"
    except importlib.metadata.PackageNotFoundError:
        return None
