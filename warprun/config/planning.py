"""The plan of a run, from its config and its environment, before anything is built. Imports torch only where there is a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from warprun.config.registry import Defined, cuts_off
from warprun.config.schema import Config
from warprun.environment import Environment
from warprun.errors import UserError
from warprun.learning.settings.plan import Choice, Plan, no_kernel_networks

DeviceKind = Literal["cpu", "cuda", "cudasim"]


def make_plan(config: Config, environment: Defined, device: DeviceKind) -> Plan:
    """Return how a run executes; nothing is built or changed.

    Raises UserError for `engine.gradients=kernels` and `agent.staggered` where they cannot be.
    """
    of_kernels = isinstance(environment, Environment)
    if config.staggered and not cuts_off(environment):
        why = "it has no time limit" if of_kernels else "it is not made of kernel functions"
        raise UserError(f"agent.staggered=true: warprun does not cut off episodes of env={config.env.name}: {why}; leave it out")
    on_gpu, fusion = device == "cuda", config.agent.fusion(environment.spec)
    fusion = fusion if device == "cpu" else fusion.on_gpu()
    too_wide = "has more rows than the shared memory of a GPU's blocks holds"
    if device != "cpu":
        from warprun.simulation import cuda_layers  # imports torch
    why_stepwise = why_torch = no_kernel_networks(config.engine.fused, fusion)
    if not of_kernels:
        why_stepwise = "the environment is not made of kernels"
    elif config.concurrency.learners_act:
        why_stepwise = why_stepwise or "concurrency=seed: the learner acts"
    elif device != "cpu" and not all(map(cuda_layers.rows_fit, (fusion.network_rows or {}).values())):
        why_stepwise = why_stepwise or f"a network {too_wide}"
    if on_gpu:
        why_torch = why_torch or why_stepwise  # on a GPU kernels compute networks within fused rollouts only

    why_torch_gradients = why_torch or fusion.why_not
    if on_gpu and not all(map(cuda_layers.rows_fit, fusion.gradient_rows.values())):
        why_torch_gradients = why_torch_gradients or f"a network {too_wide}"
    if config.engine.gradients == "kernels" and why_torch_gradients:
        raise UserError(f"engine.gradients=kernels: kernels cannot ({why_torch_gradients}); with engine.gradients=auto torch does it")
    if config.engine.gradients == "torch":
        why_torch_gradients = why_torch_gradients or "engine.gradients=torch"

    # Kernels may compute parts of what torch computes.
    parts = config.engine.gradients != "torch" and not no_kernel_networks(config.engine.fused, replace(fusion, network_rows={}))
    recurrent = Choice("kernels" if parts and fusion.recurrent_rows else "torch")
    if on_gpu and recurrent.by == "kernels" and not cuda_layers.FLOATS.columns_for(fusion.recurrent_rows, 1):
        recurrent = Choice("torch", f"a layer {too_wide}".replace("rows", "units"))
    elif on_gpu and recurrent.by == "kernels":
        recurrent = Choice("kernels", cuda_layers.recurrent_why_not(fusion.recurrent_units))

    repeated = Choice("Python", _not_captured(config, environment)) if on_gpu else Choice("Python")
    if on_gpu and not repeated.why:
        repeated = Choice("graphs")
    elif not on_gpu and config.engine.capture and not why_torch_gradients:
        repeated = Choice("calls")
    return Plan(
        rollout=Choice("stepwise" if why_stepwise else "fused", why_stepwise),
        networks=Choice("torch" if why_torch else "kernels", why_torch),
        gradients=Choice("torch" if why_torch_gradients else "kernels", why_torch_gradients),
        recurrent=recurrent,
        optimizer=Choice("kernels" if parts else "torch"),
        repeated=repeated,
        keeps=config.engine.keep_activations and not (why_torch or why_torch_gradients or on_gpu or config.concurrency.learners_act),
        no_tensor_cores=cuda_layers.why_not() if on_gpu and not why_torch else "",
    )


def _not_captured(config: Config, environment: Defined) -> str:
    """Return why a GPU does not repeat CUDA graphs; empty if it does."""
    if not config.engine.capture:
        return "engine.capture=false"
    if not isinstance(environment, Environment):
        return "the environment is not made of kernels"
    if any(group.leaves for group in environment.spec.groups):
        return "actors leave episodes, so the number of rows to learn from changes"
    return "learners that get no rollout take no part in an update" if config.concurrency.parallel.learners > 1 else ""
