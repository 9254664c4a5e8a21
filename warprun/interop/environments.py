"""Engines for environments that a program names, and the arrays of their steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from sys import getrefcount
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch

from warprun.config.checks import check_parameters
from warprun.config.environments import environment_config
from warprun.config.registry import is_dotted
from warprun.config.schema import EnvConfig, load_environment, make_tables, parameters
from warprun.environment import Environment
from warprun.errors import ContractError, UserError, needs, one_line, shown
from warprun.kernels.driver import check_cuda, check_device
from warprun.processes import usable_cores
from warprun.simulation.allocation import Array
from warprun.simulation.device import choose
from warprun.simulation.vector_engine import BoundStep, VectorEngine
from warprun.spec import Box, Discrete, GroupSpec, MultiDiscrete, Space, whole_number

with needs("gymnasium", "gymnasium"):
    from gymnasium import spaces

Info: TypeAlias = dict[str, Any]
"""The info of a reset or a step, as Gymnasium and PettingZoo define it."""
MOST_ENVIRONMENTS = 2**31 - 1


class Wishes(NamedTuple):
    """The settings of an environment that a caller can give, as in the config group `env`."""

    params: Mapping[str, object] | None = None
    """Parameters that differ from the environment's defaults."""
    options: Mapping[str, object] | None = None
    """Options that the environment or its tables are built with."""
    randomize: Mapping[str, tuple[float, float]] | None = None
    """Parameters that each environment draws from (low, high) at the start of every episode."""
    time_limit: int | None = None
    """Steps after which an episode is truncated; None: the environment's own limit."""


def make_engine(config: EnvConfig, environment: Environment, *, num_envs: int, device: str, threads: int | None) -> VectorEngine:
    """Return an engine of an environment and its config (see `load`), with its kernels compiled. Raises UserError."""
    try:
        whole_number("num_envs", num_envs, MOST_ENVIRONMENTS)
        if threads is not None:
            whole_number("threads", threads)
    except ContractError as error:
        raise UserError(str(error)) from error
    check_device(device)
    if device == "cuda":
        check_cuda()
    engine = VectorEngine(
        environment,
        config.name,
        device=choose(device),
        n_envs=num_envs,
        params=parameters(environment, config),
        tables=make_tables(environment, config),
        vary={name: (float(low), float(high)) for name, (low, high) in config.randomize.items()},
        threads=threads or usable_cores(),
        announce=lambda line: print(line, file=sys.stderr),
    )
    engine.prepare()
    return engine


def load(env: str, wishes: Wishes) -> tuple[EnvConfig, Environment]:
    """Return the config and the environment that a caller names.

    `env`: a file of conf/env, a dotted module, or the path of a .py file. Raises UserError.
    """
    config = _config(env)
    for key, given in {"params": wishes.params, "options": wishes.options, "randomize": wishes.randomize}.items():
        if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
            raise UserError(f"{key}={shown(given)} must be a dict with names as its keys")
    if wishes.time_limit is not None:
        try:
            whole_number("time_limit", wishes.time_limit)
        except ContractError as error:
            raise UserError(str(error)) from error
    # A config has lists; `check_parameters` refuses what is no pair.
    randomize: dict[str, object] = {
        name: list(bounds) if isinstance(bounds, tuple | np.ndarray) else bounds for name, bounds in (wishes.randomize or {}).items()
    }
    config = replace(
        config,
        params={**config.params, **(wishes.params or {})},
        options={**config.options, **(wishes.options or {})},
        randomize={**config.randomize, **randomize},
        time_limit=config.time_limit if wishes.time_limit is None else wishes.time_limit,
    )
    environment, _ = load_environment(config)
    if not isinstance(environment, Environment):
        raise UserError(f"environment {config.name} is not made of kernel functions, which this needs")
    check_parameters(config, environment)
    return config, environment


def only_actor(env: str, environment: Environment) -> GroupSpec:
    """Return the group of an environment of one actor. Raises UserError for others."""
    groups = environment.spec.groups
    if len(groups) > 1 or groups[0].size > 1:
        actors = ", ".join(f"{group.size} x {group.name}" for group in groups)
        raise UserError(f"environment {env} has several actors ({actors}); use warprun.make_parallel({env!r})")
    return groups[0]


def _config(env: str) -> EnvConfig:
    if not isinstance(env, str) or not env:
        raise UserError(f"an environment is a name such as 'cartpole', a module or a .py file, not {shown(env)}")
    if env.endswith(".py"):
        return EnvConfig(name=env.rpartition("/")[2].removesuffix(".py"), module=env)
    if "." in env and is_dotted(env):
        return EnvConfig(name=env.rpartition(".")[2], module=env)
    return environment_config(env)


def space_of(space: Space) -> spaces.Space:
    """Return the space of Gymnasium: Discrete of int64, MultiDiscrete of int64, or Box of float32 in the environment's units."""
    return OF_GYMNASIUM[type(space)](space)


def _box(space: Space) -> spaces.Space:
    low, high = (np.array(bounds, np.float32) for bounds in zip(*space.bounds(), strict=True))
    return spaces.Box(low, high, dtype=np.float32)


OF_GYMNASIUM: dict[type[Space], Callable[[Space], spaces.Space]] = {
    Discrete: lambda space: spaces.Discrete(space.choices[0]),
    MultiDiscrete: lambda space: spaces.MultiDiscrete(np.array(space.choices)),
    Box: _box,
}
NUMBERS = {"int32": ("iu", "whole numbers"), "float32": ("iuf", "numbers")}
"""Dtype of actions -> the kinds of dtypes that a caller may give for it, and their name."""


def flat_actions(group: GroupSpec, actions: object, rows: int, like: Array) -> Array:
    """Return actions [rows] or [rows, C] flat, in memory of the kind of `like`. Raises UserError for another shape or type of number."""
    given: Array
    try:
        given = np.asarray(actions) if isinstance(like, np.ndarray) else torch.as_tensor(actions, device=like.device)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors on another device or with gradients
        raise UserError(f"actions cannot be read as numbers: {one_line(error)}") from error
    if isinstance(given, np.ndarray):
        kind = given.dtype.kind
    else:
        if given.requires_grad:
            raise UserError("actions have gradients; give actions.detach()")
        kind = "f" if given.dtype.is_floating_point else "b" if given.dtype == torch.bool else "i"
    wanted = [rows, *group.action.shape]
    if list(given.shape) not in (wanted, [rows, group.action.components]):
        raise UserError(f"actions have the shape {list(given.shape)}; {group.action} in {rows:,} rows has {wanted}")
    kinds, numbers = NUMBERS[group.action.dtype]
    if kind not in kinds:
        raise UserError(f"actions have the type {given.dtype}; {group.action} needs {numbers}")
    flat: Array = _for_kernels(given) if isinstance(given, np.ndarray) else given
    return flat.reshape(-1)


def _for_kernels(given: np.ndarray) -> np.ndarray:
    """Return numbers in one of few types, writable and contiguous: Numba compiles a kernel for each type and layout."""
    wanted = given.dtype.newbyteorder("=")
    if wanted.kind in "iu" and wanted not in (np.int32, np.int64, np.uint64):
        wanted = np.dtype(np.int64)
    return np.require(given, wanted, ["C", "A", "W"])


MOST_KEPT = 8
"""Most sets of arrays that are kept for later steps."""


class Results(NamedTuple):
    """The results of a step of N environments of one actor."""

    bound: BoundStep
    obs: Array
    """[N, F]."""
    reward: Array
    """[N]."""
    terminated: Array
    """[N]."""
    truncated: Array
    """[N]."""
    final_obs: Array
    """[N, F]."""
    mask: Array | None
    """[N, M]."""
    final_mask: Array | None
    """[N, M]."""


class ResultSource(Protocol):
    """Gives the arrays for the next step."""

    def next(self) -> Results:
        """Return arrays that a step may write."""

    def clear(self) -> None:
        """Forget all arrays: their engine has a new seed."""


def make_results(engine: VectorEngine, actions: tuple[Array, ...]) -> Results:
    """Return new arrays for a step of an environment of one actor."""
    bound = engine.new_step(actions)
    group, n = bound.step.groups[0], engine.n_envs
    mask, final_mask = (None if given is None else given.reshape(n, -1) for given in (group.mask, group.final_mask))
    seen = (group.obs.reshape(n, -1), group.reward, bound.step.terminated, bound.step.truncated, group.final_obs.reshape(n, -1))
    return Results(bound, *seen, mask, final_mask)


class Overwritten:
    """The same arrays for every step."""

    def __init__(self, engine: VectorEngine, actions: tuple[Array, ...]) -> None:
        self._engine, self._actions = engine, actions
        self.clear()

    def clear(self) -> None:
        self._results = make_results(self._engine, self._actions)

    def next(self) -> Results:
        return self._results


class Kept:
    """Arrays of their own for every step; their memory is used again when nothing refers to it any more.

    The kernels write where the caller reads, so nothing is copied. New memory for every step would take longer than a
    small step, because the system clears its pages. The reference counts of Python tell whether an array is in use; a
    view of it counts as one reference.
    """

    def __init__(self, engine: VectorEngine, actions: tuple[Array, ...]) -> None:
        self._engine, self._actions = engine, actions
        self.clear()

    def clear(self) -> None:
        self._free: list[tuple[Results, tuple[np.ndarray, ...], list[int]]] = []

    def next(self) -> Results:
        for results, watched, unused in self._free:
            if [getrefcount(array) for array in watched] == unused:
                return results
        results = make_results(self._engine, self._actions)
        if len(self._free) < MOST_KEPT:
            group = results.bound.step.groups[0]
            flat = (group.obs, group.final_obs, group.mask, group.final_mask)
            watched = tuple(a for a in (*results[1:], *flat) if isinstance(a, np.ndarray))
            self._free.append((results, watched, []))
            entry = self._free[-1]
            del group, flat, watched
            entry[2].extend(getrefcount(array) for array in entry[1])
        return results
