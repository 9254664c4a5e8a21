"""The plan of a run, from its config and its environment, before anything is built. Imports torch only where there is a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from warprun.config.registry import Defined, cuts_off
from warprun.config.schema import Config
from warprun.environment import Environment
from warprun.errors import UserError
from warprun.learning.plan import Plan, no_kernel_networks
from warprun.spec import Spec

DeviceKind = Literal["cpu", "cuda", "cudasim"]


def make_plan(config: Config, environment: Defined, device: DeviceKind) -> Plan:
    """Return how a run executes; nothing is built or changed.

    Raises UserError for `engine.gradients=kernels` and `agent.staggered` where they cannot be.
    """
    of_kernels = isinstance(environment, Environment)
    if config.staggered and not cuts_off(environment):
        why = "it has no time limit" if of_kernels else "it is not made of kernel functions"
        raise UserError(f"agent.staggered=true: warprun does not cut off episodes of env={config.env.name}: {why}; leave it out")
    captured: Literal["graphs", "calls"] | None = None
    why_not = ""
    if device == "cuda":
        why_not = "" if config.engine.capture else "engine.capture=false"
        why_not = why_not if of_kernels else "the environment is not made of kernels"
        if any(group.leaves for group in environment.spec.groups):
            why_not = why_not or "actors leave episodes, so the number of rows to learn from changes"
        if config.concurrency.parallel.learners > 1:
            why_not = why_not or "learners that get no rollout take no part in an update"
        captured = None if why_not else "graphs"

    fusion = config.agent.fusion(environment.spec)
    why_stepwise = why_torch = no_kernel_networks(config.engine.fused, fusion)
    if not of_kernels:
        why_stepwise = "the environment is not made of kernels"
    elif config.concurrency.learners_act:
        why_stepwise = why_stepwise or "concurrency=seed: the learner acts"
    elif device in ("cuda", "cudasim") and fusion.network_rows and not rollouts_fit(fusion.network_rows):
        why_stepwise = why_stepwise or "a network has more rows than the shared memory of a GPU's blocks holds"
    if why_stepwise and device == "cuda":
        why_torch = why_torch or why_stepwise  # on a GPU kernels compute networks within fused rollouts only
    why_torch_gradients = why_torch or fusion.reason
    if device == "cuda":
        why_torch_gradients = why_torch_gradients or fusion.reason_on_gpu
        if fusion.network_rows and not gradients_fit(environment.spec, fusion.network_rows):
            why_torch_gradients = why_torch_gradients or "a network has more rows than the shared memory of a GPU's blocks holds"
    if config.engine.gradients == "kernels" and why_torch_gradients:
        raise UserError(f"engine.gradients=kernels: kernels cannot ({why_torch_gradients}); with engine.gradients=auto torch does it")
    if config.engine.gradients == "torch":
        why_torch_gradients = why_torch_gradients or "engine.gradients=torch"
    if config.engine.capture and device != "cuda" and not why_torch_gradients:
        captured = "calls"
    # Kernels may compute parts of what torch computes.
    parts = config.engine.gradients != "torch" and not no_kernel_networks(config.engine.fused, replace(fusion, network_rows={}))
    too_wide = parts and device == "cuda" and fusion.recurrent > 0 and not rows_fit(fusion.recurrent)
    return Plan(
        "stepwise" if why_stepwise else "fused",
        why_stepwise,
        "torch" if why_torch else "kernels",
        why_torch,
        "torch" if why_torch_gradients else "kernels",
        why_torch_gradients,
        config.engine.keep_activations and not why_stepwise and not why_torch_gradients and device != "cuda",
        captured,
        why_not,
        "kernels" if parts and fusion.recurrent and not too_wide else "torch",
        "kernels" if parts and device != "cuda" else "torch",
        "a layer has more units than the shared memory of a GPU's blocks holds" if too_wide else "",
    )


def rows_fit(rows: int) -> bool:
    """Return whether a block of shared memory on CUDA holds so many rows of activations."""
    from warprun.kernels.mlp_cuda import columns_for

    return columns_for(rows, 1) > 0


def rollouts_fit(network_rows: Mapping[str, int]) -> bool:
    """Return whether the networks of a fused rollout fit into shared memory on CUDA; `network_rows` per group: see `plan.Fusion`."""
    return all(map(rows_fit, network_rows.values()))


def gradients_fit(spec: Spec, network_rows: Mapping[str, int]) -> bool:
    """Return whether gradients can be computed in the shared memory of a GPU; `network_rows` per group: see `plan.Fusion`."""
    from warprun.learning.kernels.rows import gradient_rows

    return all(rows_fit(gradient_rows(rows, spec.group(name).action.components)) for name, rows in network_rows.items())
