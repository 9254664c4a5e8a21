"""Names of config groups and their folders, and the environments that modules define."""

from __future__ import annotations

import importlib.util
import inspect
import keyword
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Literal

from warprun import user_code
from warprun.config.batched import batched_environment, is_batched
from warprun.config.external import External, check_arguments, external_environment, is_external, steps
from warprun.environment import Environment
from warprun.errors import ContractError, UserError, nearest, needs, shown, similar, typed
from warprun.run_folder import MAX_NAME
from warprun.simulation.external.recipe import Closes, ExternalEnvironment
from warprun.simulation.simulator import SimulatorFactory
from warprun.spec import Spec
from warprun.user_code import Sources, errors_of_user, source_line

CONF = "warprun.conf"
CONFIG_DIR = "WARPRUN_CONFIG_DIR"
"""Environment variable with the folder of `--config-dir`, so that the processes that a command starts have it too."""
NONE = External()
"""No setting of `External`."""
EXTRAS = {"gymnasium": "gymnasium", "gymnax": "gymnax", "brax": "brax", "jumanji": "jumanji", "jax": "jax", "mpi4py": "mpi"}
"""Libraries that files of environments import -> the extra of warprun that installs them."""
Kind = Literal["batch", "gymnasium", "functions", "simulators", "maker"]
Defined = Environment | ExternalEnvironment | SimulatorFactory
"""What a module defines: an environment of kernel functions, one with the interface of Gymnasium, or a factory of simulators."""


def conf_packages() -> list[str]:
    """Return the packages that hold config groups: those with an entry point in the group `warprun.conf`, then warprun's own."""
    return [*(entry.value for entry in user_code.installed(CONF)), CONF]


def check_working_folder() -> None:
    """Raise UserError if the working folder has been removed or cannot be read."""
    try:
        Path.cwd()
    except OSError as error:
        raise UserError(f"the working folder cannot be used: {error.strerror}; change to another folder") from None


def config_dir() -> str | None:
    """Return the absolute path of the folder of `--config-dir`; None if there is none. Raises UserError if it does not exist."""
    given = os.environ.get(CONFIG_DIR)
    if given and not os.path.isdir(given):
        raise UserError(f"--config-dir or {CONFIG_DIR}: {typed(Path(given))} is not a folder")
    return os.path.abspath(given) if given else None


@contextmanager
def configs_from(folder: str | None) -> Iterator[None]:
    """Let `folder` be the folder of `--config-dir` in this context, also for processes that start in it."""
    before = os.environ.pop(CONFIG_DIR, None)
    try:
        if folder:
            os.environ[CONFIG_DIR] = os.path.abspath(folder)
        yield
    finally:
        os.environ.pop(CONFIG_DIR, None)
        if before is not None:
            os.environ[CONFIG_DIR] = before


def own_folders() -> list[Path]:
    """Return the folders with config groups of the user, as they are looked up: that of `--config-dir`, and `./conf`.

    One that does not exist, or is warprun's own, is left out.
    """
    given = config_dir()
    folders = dict.fromkeys([*([Path(given)] if given else []), Path.cwd() / "conf"])
    return [folder for folder in folders if folder.is_dir() and folder.resolve() not in folders_of(CONF)]


def folders_of(*packages: str) -> list[Path]:
    """Return the folders of packages that hold config groups; of a package that is not installed none."""
    specs = [importlib.util.find_spec(package) for package in packages]
    return [Path(place).resolve() for spec in specs if spec for place in spec.submodule_search_locations or []]


def options(group: str) -> list[str]:
    """Return the names that a config group can be set to."""
    return sorted({path.stem for folder in _folders() for path in (folder / group).glob("*.yaml") if path.is_file()})


def files_of(group: str, name: str) -> list[Path]:
    """Return the files of `group=name` as they are looked up: the first one counts, and warprun's own is the last."""
    return [file for folder in _folders() if (file := folder / group / f"{name}.yaml").is_file()]


def is_shipped(group: str, name: str) -> bool:
    """Return whether the file of `group=name` is warprun's own, and not one in ./conf or of another installed package."""
    return all(file.parents[1] in folders_of(CONF) for file in files_of(group, name))


def replacing(choices: Mapping[str, str]) -> list[Path]:
    """Return the files that stand in the place of warprun's own, of all `group=name` in `choices`."""
    found = [files_of(group, name) for group, name in choices.items()]
    return [first for first, *others in filter(None, found) if others and others[-1].parents[1] in folders_of(CONF)]


def _folders() -> list[Path]:
    """Return all folders with config groups as they are looked up: those of the user, of installed packages, and warprun's own."""
    return [*own_folders(), *folders_of(*conf_packages())]


def is_of_warprun(module: str) -> bool:
    """Return whether a module is one of warprun's own environments; a path that begins like their names is none."""
    return module.startswith("warprun.envs.") and is_dotted(module) and not module.endswith(".py")


def is_dotted(name: str) -> bool:
    """Return whether `name` can be the dotted name of a module."""
    return len(name) <= MAX_NAME and all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))


def cuts_off(environment: Defined) -> bool:
    """Return whether kernels cut off the episodes of an environment at a time limit."""
    return isinstance(environment, Environment) and environment.time_limit is not None


def import_environment(
    module: str, options: Mapping[str, object] | None = None, time_limit: int | None = None, chosen: External = NONE
) -> tuple[Defined, ModuleType]:
    """Import an environment module, by dotted name or from a .py file; return its `environment`, with `options`, and the module.

    A file is read again if it, or a file beside it that it imports, has changed. `time_limit` None: the environment's own.
    """
    with _errors_of(module):
        loaded, found = _load(module)
        name = Path(module).stem if found else module.rpartition(".")[2]
        return define(loaded, options or {}, time_limit, name, module, chosen, found), loaded


def has_functions(module: str) -> bool:
    """Return whether an environment module defines functions for kernels, or a function that may return some. Makes no environment."""
    with _errors_of(module):
        return isinstance(getattr(_load(module)[0], "environment", None), Environment | FunctionType)


def source_of(module: str) -> Path | None:
    """Return the file of an environment module that is imported, None if it has none."""
    file = module if module.endswith(".py") else getattr(sys.modules.get(module), "__file__", None)
    return Path(file) if file else None


def _load(module: str) -> tuple[ModuleType, Sources | None]:
    """Return an environment module, and its files if it is a .py file. Raises what its code raises."""
    if not module.endswith(".py"):
        beside = Path(f"{module}.py")
        if not is_dotted(module) or ("." not in module and beside.is_file() and importlib.util.find_spec(module) is None):
            meant = f"; did you mean ./{beside}?" if beside.is_file() and not beside.is_absolute() else ""
            raise UserError(f"env.module={shown(module)} is neither a module that Python can import nor a .py file{meant}")
        return user_code.import_package(module), None
    file = Path(module)
    if file.is_dir():
        raise UserError(f"environment file {module} is a folder (working folder: {Path.cwd()})")
    if not file.is_file():
        raise UserError(f"environment file {module} does not exist (working folder: {Path.cwd()})")
    found = user_code.read_file(file)
    return found.load(), found


@contextmanager
def _errors_of(module: str) -> Iterator[None]:
    """Convert what the code of an environment raises to a UserError, which names a missing extra of warprun."""
    with errors_of_user(f"environment {module} fails to import"), ExitStack() as hints:
        for library, extra in EXTRAS.items():
            hints.enter_context(needs(library, extra))
        yield


def define(
    loaded: ModuleType,
    options: Mapping[str, object],
    time_limit: int | None,
    name: str,
    module: str,
    chosen: External = NONE,
    found: Sources | None = None,
) -> Defined:
    """Return the environment that an imported module defines, with `options`; `found`: its files. Raises UserError if it defines none."""
    made = getattr(loaded, "environment", None)
    if made is None:
        own = [name for name, each in vars(loaded).items() if steps(each) and each.__module__ == loaded.__name__]
        advice = (
            f"; write environment = {own[0]} at its end" if len(own) == 1 else ", an Environment (see warprun.environment.single_agent)"
        )
        raise UserError(f"environment {module} does not define `environment`{advice}")
    kind = kind_of(made, chosen)
    if kind in ("batch", "gymnasium"):
        _refuse_options(options, name)
        if kind == "batch":
            return batched_environment(made, chosen, time_limit, name, module)
        return external_environment(made, chosen, time_limit, name, module, found)
    if isinstance(made, type):
        raise UserError(f"environment {module}: `environment` is the class {made.__name__}; write environment = {made.__name__}()")
    if kind == "maker":
        return _of_maker(made, options, time_limit, name, module, chosen, found)
    _refuse_settings(chosen, name)
    environment = _with_options(made, options, time_limit, name)
    if environment is None:
        if steps(type(made)):
            raise UserError(
                f"environment {module}: `environment` is an object of the class {type(made).__name__}, and every worker makes its own:"
                " write a function that returns one, def environment(): return ..."
            )
        raise UserError(
            f"environment {module}: `environment` is a {type(made).__name__}; it must be an Environment, or have `spec` and"
            " make_simulator(n_envs, first_env, horizon, seed, device, exploration)"
        )
    return environment


def _refuse_options(options: Mapping[str, object], name: str) -> None:
    for option in options:
        raise UserError(f"env.{option}: {name} has no options; env.kwargs.{option}= gives an argument to the environment")


def _refuse_settings(chosen: External, name: str) -> None:
    for key in chosen.given():
        raise UserError(f"env.{key} is for environments with the interface of Gymnasium, and {name} is none")


def kind_of(made: object, chosen: External = NONE) -> Kind | None:
    """Return which kind of environment the `environment` of a module is, by the first rule that holds; None if it is none.

    batch: its first argument is `n_envs`, or its `reset` takes `mask`; one object steps all environments. gymnasium: a class with `reset`
    and `step`, the environments by id of a library, a function whose first argument is `comm`, and any with `env.vector`. functions: an
    `Environment`. simulators: a `SimulatorFactory`. maker: what else is called, and returns functions, simulators or one of gymnasium.
    """
    if is_batched(made):
        return "batch"
    if is_external(made, chosen):
        return "gymnasium"
    if isinstance(made, Environment):
        return "functions"
    if isinstance(made, type):
        return None
    if isinstance(made, SimulatorFactory):
        return "simulators"
    return "maker" if callable(made) and not steps(type(made)) else None


def _of_maker(
    make: Callable[..., object],
    options: Mapping[str, object],
    time_limit: int | None,
    name: str,
    module: str,
    chosen: External,
    found: Sources | None,
) -> Defined:
    """Return the environment that a function of the options returns; one with the interface of Gymnasium takes `env.kwargs` in their place.

    Raises UserError.
    """
    where = source_line(make) if isinstance(make, FunctionType) else f"environment {module}: `environment`"
    signature = inspect.signature(make).parameters
    known = tuple(signature)
    if not chosen.kwargs:
        _check_options(options, known, name)
    check_arguments(make, chosen.kwargs, where)
    limited = {} if time_limit is None or "time_limit" not in known or chosen.kwargs else {"time_limit": time_limit}
    if _makers.get(id(make)) is not make:
        defaults = {key: parameter.default for key, parameter in signature.items()}
        made = _called(make, where, {**_like(defaults, options), **chosen.kwargs, **limited})
        if not steps(type(made)):
            _refuse_settings(chosen, name)
            environment = None if isinstance(made, type) else _with_options(made, {}, time_limit, name)
            if environment is None:
                wanted = "an Environment, a SimulatorFactory or an environment with the interface of Gymnasium"
                raise UserError(f"{where}: it must return {wanted}; it returns {shown(made)}")
            return environment
        _makers[id(make)] = make
        if isinstance(made, Closes):
            made.close()
    _refuse_options(options, name)
    return external_environment(make, chosen, time_limit, name, module, found)


_makers: dict[int, Callable[..., object]] = {}
"""Functions of which this process knows that they make environments with the interface of Gymnasium: to make one can take seconds."""


def _check_options(options: Mapping[str, object], known: Sequence[str], name: str) -> None:
    """Raise UserError for an option that an environment does not have."""
    for option in options:
        if option not in known or option == "time_limit":
            listed = f"; it has {', '.join(known)}" if known else "; it has no options"
            # env.NAME may be one of these, misspelt. Those of `External` are not for this environment: only if no more than a slip.
            settings = [*known, "time_limit", "solved_at", "on_nan", "name", "module", "params", "randomize", "options"]
            slip = similar(option, vars(NONE), most_edits=1)
            told = nearest(option, settings) or (f"; did you mean {slip!r}?" if slip else listed)
            raise UserError(f"env.options.{option}: {name} has no option {option!r}{told}")


def _with_options(made: object, options: Mapping[str, object], time_limit: int | None, name: str) -> Defined | None:
    """Return the environment `made` with its options; None if it is none."""
    _check_options(options, tuple(made.options) if isinstance(made, Environment) else (), name)
    if isinstance(made, SimulatorFactory) and not isinstance(made, type):
        if not isinstance(made.spec, Spec):
            raise ContractError(f"spec of {type(made).__name__} must be a warprun.spec.Spec, not {shown(made.spec)}")
        if time_limit is not None and made.spec.time_limit != time_limit:
            raise UserError(f"env.time_limit={time_limit}: {name} has a time limit of its own, {made.spec.time_limit}")
        return made
    if not isinstance(made, Environment):
        return None
    return replace(
        made, options={**made.options, **_like(made.options, options)}, time_limit=made.time_limit if time_limit is None else time_limit
    )


def _like(defaults: Mapping[str, object], options: Mapping[str, object]) -> dict[str, object]:
    """Return options in which 1e4 is a whole number if the default is one."""
    return {
        name: int(value) if type(defaults.get(name)) is int and isinstance(value, float) and value.is_integer() else value
        for name, value in options.items()
    }


def _called(make: Callable[..., object], where: str, options: Mapping[str, object]) -> object:
    """Return what a function `environment` makes with these options; `where` it is."""
    for name, parameter in inspect.signature(make).parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if needed and name not in options:
            raise UserError(f"{where}: argument {name!r} needs a default, or a value: env.{name}=, or for Gymnasium env.kwargs.{name}=")
    made = make(**options)
    if inspect.iscoroutine(made):
        made.close()
        raise UserError(f"{where}: an async function cannot make an environment; write def without async")
    return made
