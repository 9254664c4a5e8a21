"""Environments with the interface of Gymnasium: what the config says of them, and how worker processes make those of a module."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, cast

from warprun.errors import ContractError, OtherRankError, UserError, nearest
from warprun.kernels import waiting
from warprun.processes import started
from warprun.simulation.external.recipe import ExternalEnvironment, Recipe, told
from warprun.simulation.external.registered import Registered, check_id, import_gymnasium, time_limit
from warprun.user_code import Source, Sources, import_package, staying

BY_ID = {
    "warprun.envs.gymnasium": "Gymnasium",
    "warprun.envs.gymnax": "gymnax",
    "warprun.envs.brax": "Brax",
    "warprun.envs.jumanji": "Jumanji",
}
"""Modules that stand for all environments of a library -> its name."""
COMM = "comm"
"""First argument of an environment that is a parallel program."""


class Parallel(NamedTuple):
    """The processes of a run, as far as environments that are parallel programs depend on them."""

    learners: int
    ranks_per_env: int


ALONE = Parallel(1, 1)
"""One process steps an environment."""


@dataclass(frozen=True)
class External:
    """The settings `env.NAME` that only such environments have."""

    id: str | None = None
    kwargs: Mapping[str, object] = field(default_factory=dict)
    register: tuple[str, ...] = ()
    vector: bool = False
    timeout_s: float = 60.0
    mask: bool = True
    channels: str | None = None
    parallel: Parallel = ALONE
    """Not a setting of `env`: who steps environments that are parallel programs."""

    def given(self) -> list[str]:
        """Return the settings `env.NAME` that differ from their defaults."""
        return [name for name, value in vars(self).items() if name != "parallel" and value != vars(External())[name]]


def steps(made: object) -> bool:
    """Return whether `made` is a class of environments with the interface of Gymnasium."""
    return isinstance(made, type) and {"reset", "step"} <= set(dir(made))


def is_external(made: object, chosen: External) -> bool:
    """Return whether the `environment` of a module, `made`, has the interface of Gymnasium."""
    return steps(made) or isinstance(made, Registered) or (chosen.vector and callable(made)) or communicator(made) is not None


def first_argument(made: object) -> inspect.Parameter | None:
    """Return the first argument of a class or function; None if it has none, or no signature."""
    if not isinstance(made, type | FunctionType):
        return None
    try:
        return next(iter(inspect.signature(made).parameters.values()), None)
    except (TypeError, ValueError):  # a class in C without a signature
        return None


def communicator(made: object) -> inspect.Parameter | None:
    """Return the argument of a class or function for the communicator of a parallel program: the first, if it is called `comm`."""
    first = first_argument(made)
    return first if first is not None and first.name == COMM else None


def known_arguments(made: object) -> tuple[str, ...] | None:
    """Return the names of the arguments of a class or function of the user; None if it takes any, or has no signature."""
    try:
        known = inspect.signature(cast(Any, made)).parameters
    except (TypeError, ValueError):  # no signature
        return None
    return None if any(each.kind is each.VAR_KEYWORD for each in known.values()) else tuple(known)


def check_arguments(made: object, given: Mapping[str, object], where: str) -> None:
    """Raise UserError for an argument of `env.kwargs` that a class or function of the user does not have; `where` it is."""
    known = known_arguments(made)
    for key in given:
        if known is not None and key not in known:
            raise UserError(f"env.kwargs.{key}: {where} has no argument {key!r}{nearest(key, known)}")


def external_environment(
    made: object, chosen: External, limit: int | None, name: str, module: str, found: Sources | None
) -> ExternalEnvironment:
    """Return the environment; `found`: the files of its module, None if it is imported by its dotted name. Raises UserError."""
    import_gymnasium()
    if isinstance(made, Registered):
        if chosen.parallel.ranks_per_env > 1:
            ranks = chosen.parallel.ranks_per_env
            raise UserError(f"concurrency.ranks_per_env={ranks}: environments of Gymnasium are no parallel programs")
        title, recipe = _by_id(chosen, limit)
        limit = limit if limit is not None or chosen.vector else time_limit(title)
        return _examined(f"env.id={title}", title, recipe, limit, chosen)
    for key in ("id", "register"):
        if key in chosen.given():
            raise UserError(f"env.{key} is for env=gymnasium; {name} is made by {module}")
    if chosen.vector and limit is not None:
        raise UserError(f"env.time_limit={limit}: a vectorized environment has a time limit of its own; {name} may take it in env.kwargs")
    _check_parallel(made, chosen, name)
    check_arguments(made, chosen.kwargs, f"{getattr(made, '__name__', name)} of {module}")
    arguments: dict[str, object] = {"module": module, "files": plain(found), "kwargs": dict(chosen.kwargs)}
    takes = communicator(made)
    alone = takes is not None and takes.default is not takes.empty and started() == 1
    recipe = Recipe(f"{__name__}:make_own", arguments, chosen.vector, 1 if alone else chosen.parallel.ranks_per_env)
    return _examined(f"environment {module}", name, recipe, limit, chosen)


def _check_parallel(made: object, chosen: External, name: str) -> None:
    """Raise UserError if an environment needs a communicator and gets none, or gets one and does not take it."""
    takes, ranks = communicator(made), chosen.parallel.ranks_per_env
    if COMM in chosen.kwargs:
        raise UserError(f"env.kwargs.{COMM}: {name} gets a communicator with concurrency.ranks_per_env=2 or more")
    if takes and takes.default is takes.empty and ranks == 1:
        raise UserError(
            f"{name} is a parallel program (its first argument is `{COMM}`): it needs concurrency=sync, async, rma or seed, and"
            " concurrency.ranks_per_env=2 or more"
        )
    if ranks > 1 and not takes:
        raise UserError(f"concurrency.ranks_per_env={ranks}: {name} is no parallel program; the first argument of one is `{COMM}`")
    if ranks > 1 and chosen.vector:
        raise UserError(f"env.vector=true: {name} is a parallel program, which steps one environment")


def _examined(what: str, title: str, recipe: Recipe, limit: int | None, chosen: External) -> ExternalEnvironment:
    from warprun.simulation.external.examination import examine
    from warprun.simulation.external.mpi import examine_together

    look = partial(examine, title, recipe, limit, timeout_s=chosen.timeout_s, masks=chosen.mask, channels=chosen.channels)
    try:
        with waiting.on("making and first reset", title), staying():  # its code may go elsewhere
            return examine_together(title, recipe, chosen.parallel.learners, look) if recipe.ranks > 1 else look()
    except ContractError as error:
        raise UserError(f"{what}: {error}") from error
    except (UserError, OtherRankError):
        raise
    except Exception as error:  # the code of an environment can raise anything
        raise UserError(f"{what} cannot be made and reset: {told(error)}") from error


def make_own(module: str, files: list[Any] | None, kwargs: Mapping[str, object], **more: object) -> object:
    """Return a new environment of a module: what its `environment` returns for `kwargs`, and for `num_envs` or `comm`."""
    if files is None:
        loaded = import_package(module)
    else:
        entry, modules = files
        sources = {name: Source(Path(path), Path(place), base64.b64decode(text)) for name, (path, place, text) in modules.items()}
        loaded = Sources(entry, sources).load()
    make = cast(Callable[..., object], vars(loaded)["environment"])
    return make(**more, **kwargs)


def _by_id(chosen: External, limit: int | None) -> tuple[str, Recipe]:
    check_id(chosen.id, chosen.register)
    name = str(chosen.id)
    if "max_episode_steps" in chosen.kwargs:
        raise UserError("env.kwargs.max_episode_steps: write env.time_limit=STEPS")
    arguments: dict[str, object] = {"id": name, "register": list(chosen.register), "kwargs": dict(chosen.kwargs)}
    package = "warprun.simulation.external.registered"
    if chosen.vector:
        return name, Recipe(f"{package}:make_vector", {**arguments, "limit": limit}, True)
    return name, Recipe(f"{package}:make", arguments, False)


def plain(found: Sources | None) -> list[object] | None:
    """Return the files of an environment as JSON: a worker that starts later than the run must not read a file that has changed."""
    if found is None:
        return None
    modules = {
        name: [str(source.path), str(source.place), base64.b64encode(source.content if source.path.suffix == ".py" else b"").decode()]
        for name, source in found.modules.items()
    }
    return [found.entry, modules]
