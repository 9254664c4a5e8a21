"""Names of config groups, environment modules, and the nearest known name to a misspelt one. No numba, no torch."""

from __future__ import annotations

import dis
import importlib.util
import inspect
import keyword
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, ModuleType

import yaml

from warprun.config import sources
from warprun.environment import ISOLATED, Environment, arguments
from warprun.errors import ContractError, UserError, nearest, shown
from warprun.files import read_limited
from warprun.simulation.simulator import SimulatorFactory
from warprun.spec import Spec

CONF = "warprun.conf"
MAX_CONFIG_BYTES = 1 << 20
"""Size limit of the config file of an environment."""
MAX_NAME = 200
"""Most characters of the name of a module."""
Defined = Environment | SimulatorFactory
"""What an environment module defines: an environment of kernel functions, or a factory of simulators."""


def conf_packages() -> list[str]:
    """Return the packages that hold config groups: those with an entry point in the group `warprun.conf`, then warprun's own."""
    return [*(entry.value for entry in entry_points(group=CONF)), CONF]


def check_working_folder() -> None:
    """Raise UserError if the working folder has been removed or cannot be read."""
    try:
        Path.cwd()
    except OSError as error:
        raise UserError(f"the working folder cannot be used: {error.strerror}; change to another folder") from None


def conf_folder() -> Path | None:
    """Return `./conf` if the working folder has one that is not warprun's own, else None."""
    folder = Path.cwd() / "conf"
    return folder if folder.is_dir() and folder.resolve() not in _folders(CONF) else None


def options(group: str) -> list[str]:
    """Return the names that a config group can be set to."""
    folders = [folder for package in conf_packages() for folder in _folders(package)]
    own = conf_folder()
    return sorted(
        {path.stem for folder in [*([own] if own else []), *folders] for path in (folder / group).glob("*.yaml") if path.is_file()}
    )


def is_shipped(group: str, name: str) -> bool:
    """Return whether the file of `group=name` is warprun's own, and not one in ./conf or of another installed package."""
    own = conf_folder()
    others = [*([own] if own else []), *(folder for package in conf_packages() if package != CONF for folder in _folders(package))]
    return not any((folder / group / f"{name}.yaml").is_file() for folder in others)


def is_dotted(name: str) -> bool:
    """Return whether `name` can be the dotted name of a module."""
    return len(name) <= MAX_NAME and all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))


def environment_modules(outside: Path) -> set[str]:
    """Return the modules that config files of environments name: those of warprun, of installed packages, and of ./conf.

    The files in ./conf do not count if the working folder is in the folder `outside`.
    """
    folders = [folder for package in conf_packages() for folder in _folders(package)]
    own, here = conf_folder(), Path.cwd().resolve()
    if own and outside.resolve() not in (here, *here.parents):
        folders.append(own)
    found = set()
    for path in (path for folder in folders for path in (folder / "env").glob("*.yaml")):
        try:
            config = yaml.safe_load(read_limited(path, MAX_CONFIG_BYTES))
        except (FileNotFoundError, UserError, yaml.YAMLError, ValueError, RecursionError):
            continue  # it says so when it is used
        if isinstance(config, dict) and isinstance(config.get("module"), str):
            found.add(config["module"])
    return found


def import_environment(
    module: str, options: Mapping[str, object] | None = None, time_limit: int | None = None
) -> tuple[Defined, ModuleType]:
    """Import an environment module, by dotted name or from a .py file; return its `environment`, with `options`, and the module.

    A file is read again if it, or a file beside it that it imports, has changed. `time_limit` None: the environment's own.
    """
    file = Path(module) if module.endswith(".py") else None
    if file and file.is_dir():
        raise UserError(f"environment file {module} is a folder (working folder: {Path.cwd()})")
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
    except ContractError as error:
        place = "" if error.names_place else place_of(error) or f"{what_fails}: "
        raise UserError(f"{place}{_line(error)}") from error
    except BaseException as error:
        # The code of a user can raise anything, SystemExit too. Its file and line help, frames of the importer do not.
        if isinstance(error, KeyboardInterrupt) and not _is_raised_by_code(error):
            raise
        ending = "; an environment cannot end the program" if isinstance(error, SystemExit | KeyboardInterrupt) else ""
        raise UserError(f"{what_fails}: {place_of(error)}{type(error).__name__}: {_line(error)}{ending}") from error


def _is_raised_by_code(error: BaseException) -> bool:
    """Return whether a `raise` statement raised the error. The handler of a signal can raise after any instruction."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


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
            settings = [
                *known,
                "time_limit",
                "solved_at",
                "on_nan",
                "name",
                "module",
                "params",
                "randomize",
                "options",
            ]  # env.NAME may be one of these, misspelt
            raise UserError(f"env.options.{option}: {name} has no option {option!r}{nearest(option, settings) or listed}")
    if make:
        made = _called(make, {**options, **(limit if "time_limit" in known else {})})
        options = {}
    if isinstance(made, SimulatorFactory) and not isinstance(made, type):
        if not isinstance(made.spec, Spec):
            raise ContractError(f"spec of {type(made).__name__} must be a warprun.spec.Spec, not {shown(made.spec)}")
        if time_limit is not None and made.spec.time_limit != time_limit:
            raise UserError(f"env.time_limit={time_limit}: {name} has a time limit of its own, {made.spec.time_limit}")
        return made
    if not isinstance(made, Environment):
        return None
    return replace(made, options={**made.options, **options}, time_limit=made.time_limit if time_limit is None else time_limit)


def _called(make: Callable[..., object], options: Mapping[str, object]) -> object:
    """Return the environment that a function `environment` makes with these options."""
    where = f"{make.__code__.co_filename}:{make.__code__.co_firstlineno} in {make.__name__}"  # type: ignore[attr-defined]
    for name, parameter in inspect.signature(make).parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if needed and name not in options:
            raise UserError(f"{where}: argument {name!r} needs a default, or a value: env.{name}=")
    made = make(**options)
    if inspect.iscoroutine(made):
        made.close()
        raise UserError(f"{where}: an async function cannot make an environment; write def without async")
    if isinstance(made, type) or not isinstance(made, Environment | SimulatorFactory):
        raise UserError(f"{where}: it must return an Environment or a SimulatorFactory; it returns {shown(made)}")
    return made


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(place).resolve() for place in (spec.submodule_search_locations or [])] if spec else []


def place_of(error: BaseException) -> str:
    """Return "FILE:LINE: " of the innermost frame in the code of the user; empty if there is none."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: " if error.lineno else f"{error.filename}: " if error.filename else ""
    # The innermost frame in the code of the user, not in the importer or a library.
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")) + (str(Path(__file__).parents[1]), "<")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(libraries) and "site-packages" not in Path(frame.filename).parts
    ]
    if not frames:
        return ""
    function = "" if frames[-1].name == "<module>" else f" in {frames[-1].name}"
    return f"{frames[-1].filename}:{frames[-1].lineno}{function}: "


def _line(error: BaseException) -> str:
    try:
        words = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    except Exception:  # __str__ of an error is code of the user
        words = "(its text cannot be read)"
    return re.sub(rf"{ISOLATED}\w+\.", "", words)
