"""Agents for tests: built as a run builds them, from settings and an environment."""

from typing import Any

import torch

from warprun.algorithms import agent_class
from warprun.environment import Environment
from warprun.learning.communicator import Communicator, SingleProcess
from warprun.learning.interfaces import Context
from warprun.learning.plan import Plan
from warprun.spec import Spec

CPU = torch.device("cpu")


def plan_for(config: Any, spec: Spec, device: torch.device = CPU, *, fused: bool = False, captured: bool = False) -> Plan:
    """Return a plan by which kernels compute what they can (`fused`), or torch everything."""
    fusion = config.fusion(spec)
    by_kernels = fused and fusion.network_rows is not None
    rollout = "fused" if by_kernels else "stepwise"
    networks = "kernels" if by_kernels else "torch"
    gradients = "kernels" if by_kernels and fusion.kernel_gradients and (device.type == "cpu" or not fusion.reason_on_gpu) else "torch"
    keeps = gradients == "kernels" and device.type == "cpu"
    return Plan(
        rollout,
        "a test",
        networks,
        "a test",
        gradients,
        "a test",
        keeps,
        "graphs" if captured else None,
        "" if captured else "a test",
        "kernels" if fused and fusion.recurrent else "torch",
        "kernels" if fused and device.type == "cpu" else "torch",
    )


def build(
    name: str,
    environment: Environment | Spec,
    *,
    device: torch.device = CPU,
    n_envs: int = 5,
    threads: int = 1,
    seed: int = 3,
    fused: bool = False,
    captured: bool = False,
    communicator: Communicator | None = None,
    **settings: Any,
) -> Any:
    """Return an untrained agent called `name` with `settings`; `fused`: kernels compute what they can."""
    spec = environment if isinstance(environment, Spec) else environment.spec
    cls = agent_class(name)
    config = cls.Config(**settings)
    plan = plan_for(config, spec, device, fused=fused, captured=captured)
    return cls(config, spec, Context(device, n_envs, threads, seed, plan, communicator or SingleProcess()))
