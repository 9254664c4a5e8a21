"""From the name of an environment and the wishes of a caller to an engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from warprun.config.checks import check_parameters
from warprun.config.compose import environment_config
from warprun.config.memory import usable_cores
from warprun.config.registry import is_dotted
from warprun.config.schema import EnvConfig, load_environment, make_tables, parameters
from warprun.environment import Environment
from warprun.errors import ContractError, UserError, nearest, shown
from warprun.kernels.driver import DEVICES, check_cuda, prepare
from warprun.spec import GroupSpec, whole_number

if TYPE_CHECKING:
    from warprun.simulation.vector_engine import VectorEngine

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
    """Return an engine for what `load` has returned, its kernels compiled or loaded from the cache. Raises UserError."""
    try:
        whole_number("num_envs", num_envs, MOST_ENVIRONMENTS)
        if threads is not None:
            whole_number("threads", threads)
    except ContractError as error:
        raise UserError(str(error)) from error
    if device not in DEVICES:
        raise UserError(f"device={shown(device)} is not one of {', '.join(DEVICES)}{nearest(str(device), DEVICES)}")
    if device == "cuda":
        check_cuda()
    prepare(device)
    from warprun.simulation.device import choose  # loads torch and numba, which take seconds
    from warprun.simulation.vector_engine import VectorEngine

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
    randomize: dict[str, Any] = {
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
