"""From a config to an engine and an agent."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from warprun.algorithms import agent_class
from warprun.config.schema import Config, load_environment, make_tables, parameters
from warprun.kernels.graph import Captured
from warprun.simulation.device import Device
from warprun.simulation.kernel_engine import Engine


def make_engine(
    config: Config,
    device: Device,
    n_envs: int,
    horizon: int,
    seed: int,
    announce: Callable[[str], None] = lambda line: None,
    auto_reset: bool = True,
    exploration: Mapping[str, torch.Tensor] | None = None,
) -> Engine:
    """Return an engine for the environment of a config; `announce` is told when compiling it will take a while. Raises UserError.

    `exploration` is the agent's.
    """
    environment, _ = load_environment(config.env)
    return Engine(
        environment,
        config.env.name,
        device=device,
        n_envs=n_envs,
        horizon=horizon,
        seed=seed,
        params=parameters(environment, config.env),
        tables=make_tables(environment, config.env),
        vary={name: (float(low), float(high)) for name, (low, high) in config.env.vary.items()},
        threads=threads(config),
        announce=announce,
        auto_reset=auto_reset,
        exploration=exploration,
        replaces=config.env.on_nan == "reset" and auto_reset,
    )


def make_agent(config: Config, device: Device) -> Any:
    """Return an untrained agent for the environment of a config."""
    environment, _ = load_environment(config.env)
    return agent_class(config.agent.name)(config.agent, environment.groups, device.torch, threads(config), config.seed)


def fuse(config: Config, engine: Engine, agent: Any) -> str:
    """Let the agent's networks run inside the engine's kernels if they can and the config allows it; say which path it is and why."""
    if not config.engine.fused:
        return "stepwise (engine.fused=false)"
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        return "stepwise (NUMBA_DISABLE_JIT=1: all is plain Python)"
    networks = agent.fuse()
    if networks is None:
        return "stepwise (fused kernels are for agent.network.name=mlp with tanh or relu)"
    if not engine.fuse(networks):
        return "stepwise (a network has more rows than the shared memory of a GPU's blocks holds)"
    return "fused" if agent.updates_are_fused else "fused rollout, update by torch"


def capture(config: Config, engine: Engine, agent: Any) -> str:
    """Let CUDA graphs repeat what engine and agent do in every iteration, if the config allows it; say so. CPU: nothing is done or said."""
    if engine.device.kind != "cuda":
        return ""
    if not config.engine.cuda_graph:
        return "; not captured (engine.cuda_graph=false)"
    engine.capture()
    if not hasattr(agent, "capture"):
        return "; rollout captured in a CUDA graph (the agent has no method `capture`)"
    agent.capture(Captured)
    return "; captured in CUDA graphs"


def threads(config: Config) -> int:
    """Return how many CPU threads a run uses: what the config says, else the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return config.concurrency.threads or cores
