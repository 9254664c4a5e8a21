"""The schema: what can be configured, what is allowed, and what a run would need. No numba, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.algorithms import CONFIGS, config_class
from warprun.config import kept
from warprun.config.registry import import_environment, nearest
from warprun.environment import Box, Discrete, Environment, MultiDiscrete
from warprun.errors import UserError
from warprun.kernels.driver import DEVICES, available_memory, check_cuda, cuda_memory, why_no_cuda
from warprun.learning import setting_checks as agent_checks
from warprun.learning.settings import replay_bytes
from warprun.runtime.cadence import parse

ON_NAN = ("stop", "reset")


@dataclass
class EnvConfig:
    name: str = MISSING
    """What the run and its folder are called after."""
    module: str = MISSING
    """Where the environment is: "warprun.envs.cartpole", or a path, "./myenv.py"."""
    time_limit: int | None = None
    """Steps after which an episode is truncated, instead of the environment's own limit."""
    solved_at: float | None = None
    """Mean return of fresh episodes from which the environment counts as solved; null: never."""
    on_nan: str = "stop"
    """Where an environment gives NaN, infinity or a mask that allows nothing: stop (the run fails), or reset it, and count it."""
    params: dict[str, Any] = field(default_factory=dict)
    """Parameters that differ from the environment's defaults: env.params.NAME=value."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the environment itself, or its tables, are made from: env.NAME=value, short for env.options.NAME=value."""
    vary: dict[str, Any] = field(default_factory=dict)
    """Parameters that each environment draws anew, uniformly, for each episode: env.vary.NAME=[low,high]."""


@dataclass
class SingleConfig:
    name: str = "single"
    """One process, one device."""
    threads: int | None = None
    """CPU threads; null: all cores this process may use."""


@dataclass
class EngineConfig:
    fused: bool = True
    """Run inference, sampling, steps and gradients of mlp networks in kernels of warprun's own where they can; false: all by torch."""
    cuda_graph: bool = True
    """CUDA: after a few iterations repeat rollouts and updates as CUDA graphs; false: launch each of their kernels. No effect on CPU."""


@dataclass
class EvalConfig:
    every: str = "5%"
    """How often the policy is evaluated while training: 10s, 5min, '1e6 steps', '20 iterations', 5% (of the run) or never."""
    episodes: int = 100
    """Episodes of an evaluation while training."""
    final_episodes: int | None = None
    """Fresh episodes of the evaluation at the end of a run, which also confirms that env.solved_at is reached; null: 10 x eval.episodes."""
    greedy: bool = True
    """Take the most likely action instead of sampling."""
    max_steps: int = 10_000
    """Steps after which an episode is cut that has no time limit; the number of such episodes is told."""
    group: str | None = None
    """Of several groups, the one whose return decides what is best and what is solved; null: the first of the environment."""

    @property
    def episodes_at_end(self) -> int:
        """Episodes of the evaluation that is reported."""
        return self.final_episodes or 10 * self.episodes


@dataclass
class CheckpointConfig:
    every: str = "5min"
    """How often a checkpoint is saved, written like eval.every; there is always one at the end."""
    keep: int = 2
    """Checkpoints to keep."""
    best: bool = True
    """Keep the checkpoint with the best evaluation, too, in the folder `best`."""


@dataclass
class LogConfig:
    every: str = "0.5%"
    """How often metrics are recorded, written like eval.every; besides at every evaluation, and after 10 s without a record."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""
    live: bool | None = None
    """Show the live view; null: where the output is a terminal."""


@dataclass
class OriginConfig:
    """What the settings of a run were composed from: no settings, but written by `compose.build`."""

    tuned: str | None = None
    """The file of conf/tuned that applies."""
    overrides: list[str] = field(default_factory=list)
    """What was typed."""


@dataclass
class Config:
    env: EnvConfig = field(default_factory=EnvConfig)
    """What is learned: a file of conf/env."""
    agent: Any = MISSING
    """Who learns: a file of conf/agent (see warprun/learning/settings.py)."""
    concurrency: SingleConfig = field(default_factory=SingleConfig)
    """How many processes and devices work together: a file of conf/concurrency."""
    n_envs: int = 1024
    """Environments that run at the same time."""
    seed: int = 0
    """Same seed, same result."""
    device: str = "auto"
    """auto (CUDA where it works), cpu, cuda or cudasim (the CUDA kernels, simulated, for tests)."""
    total_steps: int = 10_000_000
    """Environment steps, summed over the environments, after which training ends."""
    max_minutes: float | None = None
    """Wall-clock minutes of the run, compilation included, after which training ends; null: no limit."""
    stop_when_solved: bool = True
    """End training once the environment is solved: an evaluation reaches env.solved_at, and fresh episodes confirm it beyond doubt."""
    name: str | None = None
    """Name of the run, part of its folder's name; null: environment and agent."""
    run_dir: str | None = None
    """Folder of the run, new or empty; null: a new one under output_root."""
    output_root: str = "outputs"
    """Where run folders are made."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """How rollouts and updates are computed."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Evaluations while training and at its end."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """What is saved, and when."""
    log: LogConfig = field(default_factory=LogConfig)
    """What is shown and written about the run."""
    origin: OriginConfig = field(default_factory=OriginConfig)
    """What these settings were composed from."""


def check(config: Config) -> None:
    """Raise UserError, in one line, for the first thing in `config` that cannot work."""
    _check_values(config)
    agent = config.agent
    _require(type(agent) is config_class(agent.name), f"agent.name={agent.name} is not this agent's; write agent={agent.name}")
    agent_checks.check(agent)
    environment, _ = load_environment(config.env)
    _check_environment(config.env, environment)
    agent_checks.check_groups(agent, [group.name for group in environment.groups])
    agent_checks.check_run(agent, environment, config.n_envs, config.total_steps)
    _check_spaces(agent, environment)
    decides, names = config.eval.group, [group.name for group in environment.groups]
    _require(decides is None or decides in names, f"eval.group={decides} is no group of {config.env.name}; groups: {', '.join(names)}")
    _check_run_dir(config.run_dir)
    if config.device == "cuda":
        check_cuda()
    _check_memory(config, environment)


def to_dict(config: Config) -> dict[str, Any]:
    """Return `config` as plain dicts and lists, as a run folder keeps it."""
    container = OmegaConf.to_container(OmegaConf.structured(config))
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def from_dict(saved: dict[str, Any]) -> Config:
    """Make a config from what `to_dict` gave; settings that are newer than it take their defaults."""
    try:
        schema = OmegaConf.structured(Config(agent=config_class(saved["agent"]["name"])()))
        config = OmegaConf.to_object(OmegaConf.merge(schema, saved))
    except (OmegaConfBaseException, KeyError) as error:
        raise UserError(f"the saved config does not fit this version of warprun: {str(error).splitlines()[0]}") from error
    assert isinstance(config, Config)
    return config


def load_environment(env: EnvConfig) -> tuple[Environment, ModuleType]:
    """Return the environment, with the options and the time limit of the config, and the module that defines it."""
    own = kept.find(env.module)
    return own.environment(env.options, env.time_limit) if own else import_environment(env.module, env.options, env.time_limit)


def make_tables(environment: Environment, env: EnvConfig) -> Any:
    """Return the environment's tables, or None; where the config names what a run keeps, that run's."""
    own = kept.find(env.module)
    if not environment.tables:
        return None
    return own.make_tables(environment, env.options, env.time_limit) if own else environment.tables(**environment.options)


def parameters(environment: Environment, env: EnvConfig) -> Any:
    """Return the environment's parameters with those of the config put in, each of the type of its default."""
    defaults = environment.params._field_defaults  # type: ignore[attr-defined]
    return environment.params(**{name: type(defaults[name])(value) for name, value in env.params.items()})


def bytes_per_env(environment: Environment, horizon: int) -> int:
    """Return the bytes that one environment takes in the store: its state and `horizon` steps of its trajectory."""
    total = 2 * horizon  # terminated, truncated
    slots = 1 + (horizon - 1) // environment.time_limit if environment.time_limit else 1
    for group in environment.groups:
        features, masked = group.observation.size, group.masked_actions
        numbers = sum(f.slots for f in group.fields) + group.action.outputs  # state, policy_output
        numbers += (horizon + 1 + slots) * features  # obs, final_obs
        numbers += horizon * (group.action.components + 3)  # action, log_prob, value, reward
        total += group.size * (4 * numbers + (horizon + 1) * masked)
    return total


def _check_values(config: Config) -> None:
    _require(config.device in DEVICES, f"device={config.device} is not one of {', '.join(DEVICES)}{nearest(config.device, DEVICES)}")
    on_nan = config.env.on_nan
    _require(on_nan in ON_NAN, f"env.on_nan={on_nan} is not one of {', '.join(ON_NAN)}{nearest(on_nan, ON_NAN)}")
    _require(0 <= config.seed < 2**64, f"seed={config.seed} must be from 0 to 2^64 - 1")
    at_least_one = {
        "n_envs": config.n_envs,
        "total_steps": config.total_steps,
        "concurrency.threads": config.concurrency.threads,
        "env.time_limit": config.env.time_limit,
        "eval.episodes": config.eval.episodes,
        "eval.final_episodes": config.eval.final_episodes,
        "eval.max_steps": config.eval.max_steps,
        "checkpoint.keep": config.checkpoint.keep,
    }
    for key, count in at_least_one.items():
        _require(count is None or count >= 1, f"{key}={count} must be at least 1")
    for key, text in {"eval": config.eval.every, "checkpoint": config.checkpoint.every, "log": config.log.every}.items():
        parse(f"{key}.every", text)
    minutes = config.max_minutes
    _require(minutes is None or (math.isfinite(minutes) and minutes > 0), f"max_minutes={minutes} must be a number above 0")
    solved_at = config.env.solved_at
    _require(solved_at is None or math.isfinite(solved_at), f"env.solved_at={solved_at} must be a finite number")
    for key, name in {"name": config.name, "env.name": config.env.name}.items():
        _require(name is None or (name == Path(name).name and name not in ("", "..")), f"{key}={name} must do as the name of a folder")


def _check_environment(env: EnvConfig, environment: Environment) -> None:
    defaults: dict[str, Any] = environment.params._field_defaults  # type: ignore[attr-defined]
    for key, given, known in (
        ("params", env.params, defaults),
        ("vary", env.vary, defaults),
    ):
        for name in given:
            listed = f"; it has {', '.join(known)}" if known else "; it has no parameters"
            _require(name in known, f"env.{key}.{name}: {env.name} has no parameter {name!r}{nearest(name, known) or listed}")
    for name, value in env.params.items():
        _require(
            _fits(value, defaults[name]),
            f"env.params.{name}={value} must be {_KINDS[type(defaults[name])]}, as its default {defaults[name]}",
        )
    for name, bounds in env.vary.items():
        pair = isinstance(bounds, list) and len(bounds) == 2 and all(_fits(bound, 0.0) for bound in bounds)
        _require(pair and bounds[0] <= bounds[1], f"env.vary.{name}={bounds} must be two numbers, [low,high], the lower first")
        _require(name not in env.params, f"env.vary.{name} and env.params.{name} exclude each other")


def _fits(value: Any, default: Any) -> bool:
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, int):
        return isinstance(value, int) and -(2**31) <= value < 2**31
    return isinstance(value, int | float) and abs(value) < 3.4e38  # what float32 holds, and so no NaN


def _check_spaces(agent: Any, environment: Environment) -> None:
    spaces = getattr(agent, "SPACES", (Discrete, MultiDiscrete, Box))
    for group in environment.groups:
        kind = type(group.action).__name__
        able = [
            name for name, other in CONFIGS.items() if isinstance(group.action, getattr(other, "SPACES", (Discrete, MultiDiscrete, Box)))
        ]
        _require(
            isinstance(group.action, spaces),
            f"agent={agent.name} cannot choose the {kind} actions of group {group.name!r}; agents that can: {', '.join(able)}",
        )
        for n, (low, high) in enumerate(group.action.bounds() if isinstance(group.action, Box) else ()):
            _require(
                (math.isfinite(low) and math.isfinite(high)) or not getattr(agent, "NEEDS_BOUNDS", False),
                f"agent={agent.name} acts within bounds, and action {n} of group {group.name!r} goes from {low:g} to {high:g}; "
                "give its Box a finite low and high, or take agent=a2c or agent=ppo",
            )
        _require(
            not group.mask or getattr(agent, "MASKS", True),
            f"agent={agent.name} knows no action masks, which group {group.name!r} has; agents that do: a2c, ppo",
        )


def _check_run_dir(run_dir: str | None) -> None:
    if run_dir is not None:
        path = Path(run_dir)
        _require(not path.exists() or path.is_dir(), f"run_dir={run_dir} is not a folder")
        _require(not path.exists() or not any(path.iterdir()), f"run_dir={run_dir} exists and is not empty")


def _check_memory(config: Config, environment: Environment) -> None:
    _require(
        config.device != "cudasim" or config.n_envs <= 64,
        f"n_envs={config.n_envs}: the CUDA simulator is slow and takes at most 64 environments",
    )
    on_gpu = config.device == "cuda" or (config.device == "auto" and why_no_cuda() is None)
    there = cuda_memory() if on_gpu else available_memory()
    replay = replay_bytes(config.agent, environment)
    needed = config.n_envs * bytes_per_env(environment, config.agent.horizon)
    where = "the GPU has" if on_gpu else "this machine has free"
    _require(
        there is None or needed <= there,
        f"n_envs={config.n_envs} would take {_size(needed)} of memory or more; {where} {_size(there or 0)}",
    )
    _require(
        there is None or needed + replay <= there,
        f"agent.replay.capacity would take {_size(replay)} of memory or more; {where} {_size((there or 0) - needed)} for it",
    )


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a finite number"}


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)
