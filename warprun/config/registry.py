"""Names of config groups, environment modules, and the nearest known name to a misspelt one. No numba, no torch."""

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

from warprun.config import sources
from warprun.environment import ISOLATED, Environment, arguments
from warprun.errors import UserError
from warprun.simulation.simulator import SimulatorFactory

CONF = "warprun.conf"
Defined = Environment | SimulatorFactory
"""What an environment module defines: an environment of kernel functions, or a factory of simulators."""


def conf_packages() -> list[str]:
    """Return the packages that hold config groups: those with an entry point in the group `warprun.conf`, then warprun's own."""
    return [*(entry.value for entry in entry_points(group=CONF)), CONF]


def conf_folder() -> Path | None:
    """Return `./conf` if the working folder has one that is not warprun's own, else None."""
    folder = Path.cwd() / "conf"
    return folder if folder.is_dir() and folder.resolve() not in _folders(CONF) else None


def options(group: str) -> list[str]:
    """Return the names that a config group can be set to."""
    folders = [folder for package in conf_packages() for folder in _folders(package)]
    own = conf_folder()
    return sorted({path.stem for folder in [*([own] if own else []), *folders] for path in (folder / group).glob("*.yaml")})


def is_shipped(group: str, name: str) -> bool:
    """Return whether the file of `group=name` is warprun's own, and not one in ./conf or of another installed package."""
    own = conf_folder()
    others = [*([own] if own else []), *(folder for package in conf_packages() if package != CONF for folder in _folders(package))]
    return not any((folder / group / f"{name}.yaml").is_file() for folder in others)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name that is most similar to `name`, or an empty string."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""


def import_environment(
    module: str, options: Mapping[str, object] | None = None, time_limit: int | None = None
) -> tuple[Defined, ModuleType]:
    """Import an environment module, by dotted name or from a .py file; return its `environment`, with `options`, and the module.

    A file is read again if it, or a file beside it that it imports, has changed. `time_limit` None: the environment's own.
    """
    file = Path(module) if module.endswith(".py") else None
    if file and not file.is_file():
        raise UserError(f"environment file {module} does not exist (working folder: {Path.cwd()})")
    with errors_of_user(f"environment {module} fails to import"):
        loaded = sources.read_file(file).load() if file else sources.import_package(module)
        name = file.stem if file else module.rpartition(".")[2]
        return define(loaded, options or {}, time_limit, name, module), loaded


@contextmanager
def errors_of_user(what_fails: str) -> Iterator[None]:
    """Convert an exception that a user's code raises to a UserError with file and line; `what_fails` begins its message."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # The code of a user can raise anything. Its file and line help, frames of the importer do not.
        raise UserError(f"{what_fails}: {place_of(error)}{type(error).__name__}: {_line(error)}") from error


def define(loaded: ModuleType, options: Mapping[str, object], time_limit: int | None, name: str, module: str) -> Defined:
    """Return the environment that an imported module defines, with `options`. Raises UserError if it defines none."""
    made = getattr(loaded, "environment", None)
    if made is None:
        raise UserError(f"environment {module} does not define `environment`, an Environment (see warprun.environment.single_agent)")
    if isinstance(made, type):
        raise UserError(f"environment {module}: `environment` is the class {made.__name__}; write environment = {made.__name__}()")
    environment = _with_options(made, options, time_limit, name)
    if environment is None:
        raise UserError(
            f"environment {module}: `environment` is a {type(made).__name__}; it must be an Environment, or have `spec` and"
            " make_simulator(n_envs, horizon, seed, device, exploration)"
        )
    return environment


def _with_options(made: object, options: Mapping[str, object], time_limit: int | None, name: str) -> Defined | None:
    """Return the environment with its options; None if there is none.

    `made` is the `environment` of a module: the environment itself, or a function of the options that returns it.
    """
    make: Callable[..., object] | None = made if isinstance(made, FunctionType) else None
    known = arguments(make) if make else tuple(made.options) if isinstance(made, Environment) else ()
    limit = {} if time_limit is None else {"time_limit": time_limit}
    for option in options:
        if option not in known or option == "time_limit":
            listed = f"; it has {', '.join(known)}" if known else "; it has no options"
            settings = [*known, "time_limit", "solved_at", "params", "randomize"]  # env.NAME may be one of these, misspelt
            raise UserError(f"env.options.{option}: {name} has no option {option!r}{nearest(option, settings) or listed}")
    if make:
        made = make(**options, **(limit if "time_limit" in known else {}))
        options = {}
    if isinstance(made, SimulatorFactory):
        if time_limit is not None and made.spec.time_limit != time_limit:
            raise UserError(f"env.time_limit={time_limit}: {name} has a time limit of its own, {made.spec.time_limit}")
        return made
    if not isinstance(made, Environment):
        return None
    return replace(made, options={**made.options, **options}, time_limit=made.time_limit if time_limit is None else time_limit)


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(place).resolve() for place in (spec.submodule_search_locations or [])] if spec else []


def place_of(error: BaseException) -> str:
    """Return "FILE:LINE: " of the innermost frame in the code of the user; empty if there is none."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: "
    # The innermost frame in the code of the user, not in the importer or a library.
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")) + (str(Path(__file__).parents[1]), "<")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(libraries)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


def _line(error: Exception) -> str:
    words = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    return re.sub(rf"{ISOLATED}\w+\.", "", words)
