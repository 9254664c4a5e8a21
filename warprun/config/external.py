"""Environments with the interface of Gymnasium: what the config says of them, and how worker processes make those of a module.

No numba, no torch.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from warprun import sources
from warprun.errors import ContractError, UserError
from warprun.simulation.external.recipe import ExternalEnvironment, Recipe, told
from warprun.simulation.external.registered import Registered, check_id, import_gymnasium, time_limit
from warprun.sources import Source, Sources

BY_ID = "warprun.envs.gymnasium"
"""Module that stands for all environments of Gymnasium."""


@dataclass(frozen=True)
class External:
    """The settings `env.NAME` that only such environments have."""

    id: str | None = None
    kwargs: Mapping[str, object] = field(default_factory=dict)
    register: tuple[str, ...] = ()
    vector: bool = False
    timeout_s: float = 60.0
    mask: bool = True

    def given(self) -> list[str]:
        """Return the settings that differ from their defaults."""
        return [name for name, value in vars(self).items() if value != vars(External())[name]]


def steps(made: object) -> bool:
    """Return whether `made` is a class of environments with the interface of Gymnasium."""
    return isinstance(made, type) and {"reset", "step"} <= set(dir(made))


def is_external(made: object, chosen: External) -> bool:
    """Return whether the `environment` of a module, `made`, has the interface of Gymnasium."""
    return steps(made) or isinstance(made, Registered) or (chosen.vector and callable(made))


def external_environment(
    made: object, chosen: External, limit: int | None, name: str, module: str, found: Sources | None
) -> ExternalEnvironment:
    """Return the environment; `found`: the files of its module, None if it is imported by its dotted name. Raises UserError."""
    import_gymnasium()
    if isinstance(made, Registered):
        title, recipe = _by_id(chosen, limit)
        limit = limit if limit is not None or chosen.vector else time_limit(title)
        return _examined(f"env.id={title}", title, recipe, limit, chosen)
    for key in ("id", "register"):
        if key in chosen.given():
            raise UserError(f"env.{key} is for env=gymnasium; {name} is made by {module}")
    if chosen.vector and limit is not None:
        raise UserError(f"env.time_limit={limit}: a vectorized environment has a time limit of its own; {name} may take it in env.kwargs")
    recipe = Recipe(f"{__name__}:make_own", {"module": module, "files": plain(found), "kwargs": dict(chosen.kwargs)}, chosen.vector)
    return _examined(f"environment {module}", name, recipe, limit, chosen)


def _examined(what: str, title: str, recipe: Recipe, limit: int | None, chosen: External) -> ExternalEnvironment:
    from warprun.simulation.external.probe import examine

    try:
        return examine(title, recipe, limit, timeout_s=chosen.timeout_s, masks=chosen.mask)
    except ContractError as error:
        raise UserError(f"{what}: {error}") from error
    except UserError:
        raise
    except Exception as error:  # the code of an environment can raise anything
        raise UserError(f"{what} cannot be made and reset: {told(error)}") from error


def make_own(module: str, files: list[Any] | None, kwargs: Mapping[str, object], **num_envs: int) -> Any:
    """Return a new environment of a module: what its `environment` returns for `kwargs`."""
    loaded = sources.import_package(module) if files is None else from_plain(files).load()
    make = cast(Callable[..., object], vars(loaded)["environment"])
    return make(**num_envs, **kwargs)


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


def plain(found: Sources | None) -> list[Any] | None:
    """Return the files of an environment as JSON: a worker that starts later than the run must not read a file that has changed."""
    if found is None:
        return None
    modules = {
        name: [str(source.path), str(source.place), base64.b64encode(source.content if source.path.suffix == ".py" else b"").decode()]
        for name, source in found.modules.items()
    }
    return [found.entry, modules]


def from_plain(files: list[Any]) -> Sources:
    entry, modules = files
    return Sources(entry, {name: Source(Path(path), Path(place), base64.b64decode(text)) for name, (path, place, text) in modules.items()})
