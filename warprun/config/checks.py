"""The checks of the settings of a run, before anything is built."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from warprun.algorithms import agent_names, config_class
from warprun.config.cadence import AUTO, parse
from warprun.config.concurrency import CONCURRENCY
from warprun.config.memory_estimate import check_memory
from warprun.config.registry import Defined
from warprun.config.schema import MAX_DEPTH, Config, EnvConfig, OriginConfig, is_open, load_environment
from warprun.environment import Environment
from warprun.errors import UserError, check_one_of, check_range, nearest, program, require, shown, typed
from warprun.kernels.driver import SIMULATOR_LIMIT, check_cuda, check_device
from warprun.learning.settings import agent as agent_settings
from warprun.learning.settings.agent import Requirements
from warprun.run_folder import CONFIG, is_free
from warprun.simulation.batch import BatchClass
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.spec import GroupSpec, Spec

MAX_NAME = 100
"""Bytes of a name. A folder name has at most 255, and that of a run also has the time."""
ON_NAN = ("stop", "reset")
CHANNELS = ("first", "last")
NAME = re.compile(r"\w[\w .,=+-]{0,99}")
"""Names become parts of the names of folders."""
NAME_RULE = "first a letter or digit, then at most 99 letters, digits, spaces and characters of .,=+-_"
SERVICES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}
"""Names in `log.services`, which are those of the modules -> the packages to install."""
MOST = {"total_steps": 2**63 - 1, "until_steps": 2**63 - 1, "concurrency.threads": 4096}
"""Largest values of counts; of others 2^31 - 1, because kernels count with 32 bits."""
MOST_WORKERS = 1024
MOST_DRAWN = 2**24
"""Largest whole number that is drawn: up to it float32 has all."""
GRADIENTS = ("auto", "kernels", "torch")
"""Values of engine.gradients."""
_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a finite number below 3.4e38"}


def check(config: Config) -> None:
    """Raise UserError, in one line, for the first thing in `config` that cannot work, but for the place of its folder."""
    if config.concurrency.parallel.ranks_per_env > 1 and config.concurrency.starts():
        return  # the processes check it: this one has no communicator
    environment = check_settings(config)
    for name in config.log.services:
        require(find_spec(name) is not None, f"log.services=[{name}] needs a library that is not installed: pip install {SERVICES[name]}")
    if config.device == "cuda":
        check_cuda()
    check_memory(config, environment)


def check_settings(config: Config) -> Defined:
    """Check all that depends neither on this machine nor on the folder of the run; return the environment. Raises UserError."""
    check_values(config)
    agent, mode = config.agent, config.concurrency.name
    known = CONCURRENCY.get(mode) is type(config.concurrency)
    require(known, f"concurrency.name={mode} does not match the chosen mode; write concurrency={mode}")
    require(type(agent) is config_class(agent.name), f"agent.name={agent.name} does not match the chosen agent; write agent={agent.name}")
    require(
        mode == "single" or not is_open(config), f"n_envs=auto measures one process, and concurrency={mode} has several; write a number"
    )
    environment, _ = load_environment(config.env, config.concurrency.parallel)
    if isinstance(environment, Environment):
        check_parameters(config.env, environment)
    else:
        _check_no_kernels(config, environment)
    ranks, lost = config.concurrency.parallel.ranks_per_env, config.concurrency.tolerated
    require(
        not lost or isinstance(environment, ExternalEnvironment),
        f"concurrency.tolerate_actors={lost}: only actors of an environment with the interface of Gymnasium are left out",
    )
    require(
        ranks == 1 or isinstance(environment, ExternalEnvironment),
        f"concurrency.ranks_per_env={ranks}: {config.env.name} is no parallel program; the first argument of one is `comm`",
    )
    workers = config.concurrency.workers
    require(
        not workers or isinstance(environment, ExternalEnvironment),
        f"concurrency.workers={workers}: workers step environments with the interface of Gymnasium, and {config.env.name} is none",
    )
    spec = environment.spec
    names = [group.name for group in spec.groups]
    agent_settings.check_groups(agent, names)
    agent_settings.check_networks(agent, spec)
    agent.check_run(spec, config.n_envs, config.total_steps)
    require(
        config.until_steps is None or not config.concurrency.has_actors,
        f"until_steps={config.until_steps}: actors count to total_steps; write concurrency=single or concurrency=ddp",
    )
    remembers = agent_settings.with_memory(agent, spec)
    without = f", or tuned=none if tuned/{config.origin.tuned} chose the network" if config.origin.tuned else ""
    require(
        not remembers or not config.concurrency.has_actors,
        f"{remembers}: rollouts of actors do not carry what a policy remembers; write concurrency=single or concurrency=ddp{without}",
    )
    check_requirements(agent.name, spec, "; env.mask=false ignores it" if isinstance(environment, ExternalEnvironment | BatchClass) else "")
    decides = config.eval.group
    require(decides is None or decides in names, f"eval.group={decides} is not a group of {config.env.name}; groups: {', '.join(names)}")
    require(
        config.device != "cudasim" or config.n_envs <= SIMULATOR_LIMIT,
        f"n_envs={config.n_envs}: the CUDA simulator is slow and takes at most {SIMULATOR_LIMIT} environments",
    )
    return environment


def _check_leaf(key: str, value: object, depth: int = 0) -> None:
    """Check what holds for every value: whole numbers of 64 bits, text that can be printed and stored, no deep nesting."""
    require(depth <= MAX_DEPTH, f"{key} is nested too deeply (at most {MAX_DEPTH} levels)")
    if isinstance(value, str):
        require(value.isprintable(), f"{key}={shown(value)} has a control character or one that is no text")
        require("${" not in value, f"{key}={shown(value)}: a value cannot contain ${{")
    elif isinstance(value, int):
        require(abs(value) < 2**64, f"{key}={value:.4g} is too large (at most 2^64 - 1)")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _check_leaf(key, name, depth)
            _check_leaf(f"{key}.{name}", item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_leaf(key, item, depth + 1)
    elif is_dataclass(value):
        for setting in fields(value):
            name, item = f"{key}.{setting.name}" if key else setting.name, getattr(value, setting.name)
            _check_leaf(name, item, depth + 1)


def check_values(config: Config) -> None:
    """Raise UserError for a value that cannot work, whatever the environment is."""
    _check_leaf("", replace(config, origin=OriginConfig()))
    check_device(config.device)
    check_one_of("engine.gradients", config.engine.gradients, GRADIENTS)
    check_one_of("env.on_nan", config.env.on_nan, ON_NAN)
    require(config.env.channels in (None, *CHANNELS), f"env.channels={config.env.channels} must be first or last")
    check_range("seed", config.seed, 0, 2**64 - 1, "2^64 - 1")
    counts = {
        "n_envs": config.n_envs,
        "total_steps": config.total_steps,
        "until_steps": config.until_steps,
        "concurrency.threads": config.concurrency.threads,
        "env.time_limit": config.env.time_limit,
        "eval.episodes": config.eval.episodes,
        "eval.final_episodes": config.eval.final_episodes,
        "eval.max_steps": config.eval.max_steps,
        "checkpoint.keep": config.checkpoint.keep,
    }
    for key, count in counts.items():
        most = MOST.get(key, 2**31 - 1)
        require(count is None or count >= 1, f"{key}={count} must be at least 1")
        require(count is None or count <= most, f"{key}={count} must be at most {most:,}")
    for key, text in {"eval": config.eval.every, "checkpoint": config.checkpoint.every, "log": config.log.every}.items():
        if (key, text) != ("eval", AUTO):
            parse(f"{key}.every", text)
    for service in config.log.services:
        check_one_of("log.services", service, SERVICES)
    require(bool(config.log.project.strip()), "log.project: write a name")
    check_range("concurrency.workers", config.concurrency.workers, 0, MOST_WORKERS, f"{MOST_WORKERS:,}")
    _check_above_0("env.timeout_s", config.env.timeout_s)
    config.concurrency.check(config.n_envs)
    _check_above_0("max_minutes", config.max_minutes)
    solved_at = config.env.solved_at
    require(solved_at is None or math.isfinite(solved_at), f"env.solved_at={solved_at} must be a finite number")
    for key, name in {"name": config.name, "env.name": config.env.name}.items():
        usable = name is None or (NAME.fullmatch(name) is not None and len(os.fsencode(name)) <= MAX_NAME)
        require(usable, f"{key}={shown(name or '')} must be usable as a folder name: {NAME_RULE}")
    agent_settings.check_settings(config.agent)


def _check_above_0(key: str, value: float | None) -> None:
    require(value is None or (math.isfinite(value) and value > 0), f"{key}={value} must be a number above 0")


def _check_no_kernels(config: Config, environment: object) -> None:
    """Raise UserError for settings that only an environment made of kernel functions has."""
    env, external = config.env, isinstance(environment, ExternalEnvironment)
    for key, given in {"env.params": env.params, "env.randomize": env.randomize}.items():
        name = min(given, default="")
        takes = external or isinstance(environment, BatchClass)
        instead = f"env.kwargs.{name}= gives an argument to the environment" if takes else "it is not made of kernel functions"
        require(not given, f"{key}.{name}: {env.name} has no parameters; {instead}")
    why_not = "" if external and not env.vector else "is not made of kernel functions" if not external else "resets no single environments"
    require(env.on_nan == "stop" or not why_not, f"env.on_nan={env.on_nan}: {env.name} {why_not}; write env.on_nan=stop")
    require(config.device != "cudasim", f"device=cudasim: {env.name} is not made of kernel functions")


def check_parameters(env: EnvConfig, environment: Environment) -> None:
    """Raise UserError for parameters of the config that the environment does not have, or values that do not fit them."""
    defaults: dict[str, object] = environment.params._field_defaults
    listed = f"; it has {', '.join(defaults)}" if defaults else "; it has no parameters"
    for key, given in {"params": env.params, "randomize": env.randomize}.items():
        for name in given:
            require(name in defaults, f"env.{key}.{name}: {env.name} has no parameter {name!r}{nearest(name, defaults) or listed}")
    for name, value in env.params.items():
        require(
            _fits(value, defaults[name]),
            f"env.params.{name}={value} must be {_KINDS[type(defaults[name])]}, as its default {defaults[name]}",
        )
    for name, bounds in env.randomize.items():
        pair = isinstance(bounds, list) and len(bounds) == 2 and all(_fits(bound, 0.0) for bound in bounds)
        require(pair and bounds[0] <= bounds[1], f"env.randomize.{name}={bounds} must be two numbers, [low,high], the lower first")
        require(not isinstance(defaults[name], bool), f"env.randomize.{name}: only numbers are drawn, and it is true or false")
        within = not isinstance(defaults[name], int) or all(bound == int(bound) and abs(bound) <= MOST_DRAWN for bound in bounds)
        require(
            within, f"env.randomize.{name}={bounds} must be two whole numbers from -{MOST_DRAWN:,} to {MOST_DRAWN:,}, as its default is one"
        )
        require(name not in env.params, f"env.randomize.{name} and env.params.{name} exclude each other")


def _fits(value: object, default: object) -> bool:
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, int):
        return isinstance(value, int | float) and -(2**31) <= value < 2**31 and value == int(value)
    return isinstance(value, int | float) and abs(value) < 3.4e38  # the range of float32; excludes NaN


def check_requirements(agent: str, spec: Spec, without_mask: str = "") -> None:
    """Raise UserError if the agent called `agent` cannot act for a group of an environment; the message names the agents that can for all.

    `without_mask` ends the message about a mask.
    """
    for group in spec.groups:
        why_not = _why_not(config_class(agent).requirements, group)
        if why_not:
            able = [name for name in agent_names() if not any(_why_not(config_class(name).requirements, each) for each in spec.groups)]
            ending = without_mask if group.masked and not config_class(agent).requirements.masks else ""
            raise UserError(f"agent={agent} {why_not}; agents that can: {', '.join(able)}{ending}")


def _why_not(needs: Requirements, group: GroupSpec) -> str:
    """Return why an agent cannot act for a group; empty if it can."""
    if not isinstance(group.action, needs.spaces):
        return f"cannot choose the {type(group.action).__name__} actions of group {group.name!r}"
    if needs.bounded:
        for n, (low, high) in enumerate(group.action.bounds()):
            if not (math.isfinite(low) and math.isfinite(high)):
                return f"needs a Box with a finite low and high, and action {n} of group {group.name!r} goes from {low:g} to {high:g}"
    if group.masked and not needs.masks:
        return f"does not support action masks, which group {group.name!r} has"
    if group.leaves and not needs.leaving:
        return f"does not support actors that leave an episode before it ends, as those of group {group.name!r} do"
    return ""


def check_place(config: Config) -> None:
    """Raise UserError if the folder of a new run cannot be made."""
    if config.run_dir is None:
        check_folder("output_root", config.output_root)
    else:
        check_folder("run_dir", config.run_dir)


def check_folder(key: str, folder: str) -> None:
    """Raise UserError if a folder that the user names with `key` cannot be made or written to."""
    what = f"{key}={shown(folder)}"
    require(folder.strip() != "", f"{what} must be the path of a folder; . is the working folder")
    require(not folder.startswith("~") and "$" not in folder, f"{what}: the shell has not replaced ~ or $; write the whole path")
    path = Path(folder)
    try:
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        require(there.is_dir(), f"{what}: {there} is not a folder")
        require(os.access(there, os.W_OK | os.X_OK), f"{what}: no permission to write into {there}")
        begun = f"; `{program()} resume={typed(path)}` continues its run" if (path / CONFIG).is_file() else ""
        require(key != "run_dir" or is_free(path), f"{what} exists and is not empty{begun}")
    except OSError as error:
        raise UserError(f"{what}: {error.strerror}") from None
