"""Environments that Gymnasium knows by an id. No numba, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from warprun.errors import UserError, nearest, printable

if TYPE_CHECKING:
    from gymnasium import Env
    from gymnasium.vector import VectorEnv

INSTALL = 'pip install "warprun[gymnasium]"'


@dataclass(frozen=True)
class Registered:
    """The `environment` of a module that stands for all environments of Gymnasium: `env.id` selects one."""


def import_gymnasium() -> ModuleType:
    """Return the package Gymnasium. Raises UserError if it is not installed."""
    try:
        return import_module("gymnasium")
    except ImportError as error:
        raise UserError(f"this environment needs Gymnasium, which cannot be imported ({printable(error)}): {INSTALL}") from None


def check_id(wanted: str | None, register: Sequence[str]) -> None:
    """Register environments by `register`: MODULE or MODULE:FUNCTION each. Raises UserError unless Gymnasium then knows the id."""
    gymnasium = import_gymnasium()
    if not wanted:
        raise UserError("env.id is missing: write env.id=NAME of an environment of Gymnasium, such as env.id=LunarLander-v3")
    for name in register:
        try:
            _register(name)
        except Exception as error:
            raise UserError(f"env.register={name} cannot be imported: {type(error).__name__}: {printable(error)}") from None
    if wanted not in gymnasium.registry:
        name = wanted.rpartition("-v")[0] or wanted
        same = [known for known in gymnasium.registry if known.rpartition("-v")[0] == name]  # in order of their versions
        hint = nearest(wanted, same[-1:]) or nearest(wanted, gymnasium.registry)
        hint = hint or "; env.register=[MODULE] or [MODULE:FUNCTION] registers those of a package"
        raise UserError(f"env.id={printable(wanted)}: Gymnasium knows no such environment{hint}")


@cache
def _register(name: str) -> None:
    """Import MODULE, which registers environments, or call MODULE:FUNCTION, which does. Once in a process: Gymnasium warns of a second."""
    module, _, function = name.partition(":")
    imported = import_module(module)
    if function:
        getattr(imported, function)()


def time_limit(wanted: str) -> int | None:
    """Return the time limit that an id is registered with."""
    limit: int | None = import_gymnasium().registry[wanted].max_episode_steps
    return limit


@contextmanager
def _making(id: str, register: Sequence[str]) -> Iterator[ModuleType]:
    """Register environments and yield Gymnasium. Raises UserError if a package of the one that is made is missing."""
    gymnasium = import_gymnasium()
    for name in register:
        _register(name)
    try:
        yield gymnasium
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise UserError(f"env.id={id} needs a package that is not installed: {printable(error)}") from None


def make(id: str, register: Sequence[str], kwargs: Mapping[str, object]) -> Env:
    """Return one environment, without time limit: `Slice` counts the steps. Raises UserError if a package is missing."""
    with _making(id, register) as gymnasium:
        return gymnasium.make(id, max_episode_steps=-1, disable_env_checker=True, **kwargs)


def make_vector(id: str, register: Sequence[str], kwargs: Mapping[str, Any], limit: int | None, num_envs: int) -> VectorEnv:
    """Return a `gymnasium.vector.VectorEnv`. Raises UserError if a package is missing."""
    with _making(id, register) as gymnasium:
        given = dict(kwargs)
        if given.get("vectorization_mode", "") in ("sync", "async") or gymnasium.registry[id].vector_entry_point is None:
            given["vector_kwargs"] = {"autoreset_mode": "SameStep"} | dict(given.get("vector_kwargs", {}))
        if limit is not None:
            given["max_episode_steps"] = limit
        return gymnasium.make_vec(id, num_envs=num_envs, **given)
