"""From a config to an engine and an agent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from warprun.agents import agent_class
from warprun.config import Config, load_environment, parameters
from warprun.engine.device import Device
from warprun.engine.engine import Engine


def make_engine(
    config: Config, device: Device, n_envs: int, horizon: int, seed: int, announce: Callable[[str], None] = lambda line: None
) -> Engine:
    """Return an engine for the environment of a config, compiled; `announce` is told when that takes a while. Raises UserError."""
    environment, _ = load_environment(config.env)
    engine = Engine(
        environment,
        config.env.name,
        device=device,
        n_envs=n_envs,
        horizon=horizon,
        seed=seed,
        params=parameters(environment, config.env),
        tables=environment.tables(**(environment.options | config.env.options)) if environment.tables else None,
        vary={name: (float(low), float(high)) for name, (low, high) in config.env.vary.items()},
        threads=threads(config),
        announce=announce,
    )
    engine.compile()
    return engine


def make_agent(config: Config, engine: Engine) -> Any:
    """Return an untrained agent for the environment of an engine."""
    return agent_class(config.agent.name)(config.agent, engine.environment.groups, engine.device.torch, threads(config), config.seed)


def threads(config: Config) -> int:
    """Return how many CPU threads a run uses: what the config says, else the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return config.concurrency.threads or cores
