"""Agents for tests: built as a run builds them, from settings and an environment."""

from typing import Any

import torch

from warprun.algorithms import agent_class
from warprun.environment import Environment
from warprun.learning.communicator import Communicator, SingleProcess
from warprun.learning.interfaces import Context
from warprun.learning.settings.plan import Choice, Plan
from warprun.spec import Spec

CPU = torch.device("cpu")


def plan_for(config: Any, spec: Spec, device: torch.device = CPU, *, fused: bool = False, captured: bool = False) -> Plan:
    """Return a plan by which kernels compute what they can (`fused`), or torch everything."""
    fusion = config.fusion(spec) if device.type == "cpu" else config.fusion(spec).on_gpu()
    by_kernels = fused and fusion.network_rows is not None
    networks = Choice("kernels" if by_kernels else "torch", "a test")
    gradients = Choice("kernels" if by_kernels and not fusion.why_not else "torch", "a test")
    on_cpu = Choice("kernels" if fused and device.type == "cpu" else "torch")
    return Plan(
        rollout=Choice("fused" if by_kernels else "stepwise", "a test"),
        networks=networks,
        gradients=gradients,
        recurrent=on_cpu if fusion.recurrent_rows else Choice("torch"),
        optimizer=on_cpu,
        repeated=Choice("graphs") if captured else Choice("Python", "a test"),
        keeps=gradients.by == "kernels" and device.type == "cpu",
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
