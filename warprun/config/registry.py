"""From names to things: config groups, environment modules and the nearest name to a misspelt one. No numba, no torch."""

from __future__ import annotations

import difflib
import importlib.util
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from warprun.config import sources
from warprun.environment import Environment, arguments
from warprun.errors import UserError

CONF = "warprun.conf"


def conf_packages() -> list[str]:
    """Return the packages that hold config groups: those that others installed (entry points of group `warprun.conf`), then ours."""
    return [*(entry.value for entry in entry_points(group=CONF)), CONF]


def conf_folder() -> Path | None:
    """Return `./conf` where the working folder has one that is not warprun's own."""
    folder = Path.cwd() / "conf"
    return folder if folder.is_dir() and folder.resolve() not in _folders(CONF) else None


def options(group: str) -> list[str]:
    """Return the names that a config group can be set to."""
    folders = [folder for package in conf_packages() for folder in _folders(package)]
    own = conf_folder()
    return sorted({path.stem for folder in [*([own] if own else []), *folders] for path in (folder / group).glob("*.yaml")})


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name that looks most like `name`, or nothing."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""


def import_environment(
    module: str, options: Mapping[str, Any] | None = None, time_limit: int | None = None
) -> tuple[Environment, ModuleType]:
    """Import an environment module, by dotted name or from a .py file; return its `environment`, with `options`, and the module.

    A file is read again where it, or a neighbour that it imports, has changed. `time_limit` is the environment's own where it is None.
    """
    file = Path(module) if module.endswith(".py") else None
    if file and not file.is_file():
        raise UserError(f"environment file {module} does not exist (working folder: {Path.cwd()})")
    with import_errors(module):
        loaded = sources.read_file(file).load() if file else sources.import_package(module)
        name = file.stem if file else module.rpartition(".")[2]
        return define(loaded, options or {}, time_limit, name, module), loaded


@contextmanager
def import_errors(module: str) -> Iterator[None]:
    """Turn what an environment module raises while it is imported into a UserError with the place."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # An environment is the user's code and can raise anything; what helps is the place, not the importer's frames.
        raise UserError(f"environment {module} fails to import: {_place(error)}{type(error).__name__}: {_line(error)}") from error


def define(loaded: ModuleType, options: Mapping[str, Any], time_limit: int | None, name: str, module: str) -> Environment:
    """Return the environment that an imported module defines, with `options`; raise UserError where it defines none."""
    environment = _with_options(getattr(loaded, "environment", None), options, time_limit, name)
    if environment is None:
        raise UserError(f"environment {module} does not define `environment`, an Environment (see warprun.environment.single_agent)")
    return environment


def _with_options(made: Any, options: Mapping[str, Any], time_limit: int | None, name: str) -> Environment | None:
    """Return what a module calls `environment`, an Environment or a function of the options that makes one; None if it is neither."""
    make: Callable[..., Any] | None = made if isinstance(made, FunctionType) else None
    known = arguments(make) if make else tuple(made.options) if isinstance(made, Environment) else ()
    limit = {} if time_limit is None else {"time_limit": time_limit}
    for option in options:
        if option not in known or option == "time_limit":
            listed = f"; it has {', '.join(known)}" if known else "; it has no options"
            settings = [*known, "time_limit", "solved_at", "params", "vary"]  # for env.NAME may have meant one of these
            raise UserError(f"env.options.{option}: {name} has no option {option!r}{nearest(option, settings) or listed}")
    if make:
        made = make(**options, **(limit if "time_limit" in known else {}))
        options = {}
    if not isinstance(made, Environment):
        return None
    return replace(made, options={**made.options, **options}, time_limit=made.time_limit if time_limit is None else time_limit)


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(place).resolve() for place in (spec.submodule_search_locations or [])] if spec else []


def _place(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: "
    # The innermost frame of the user's own: not the importer's, nor one in a library that merely refused what it was given.
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")) + (str(Path(__file__).parents[1]), "<")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(libraries)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


def _line(error: Exception) -> str:
    words = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    return re.sub(rf"{sources.PREFIX}\w+\.", "", words)
