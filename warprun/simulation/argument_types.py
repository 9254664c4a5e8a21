"""The types that the kernels of an environment are compiled for on a CPU, known before there are arrays, without torch."""

from __future__ import annotations

import numpy as np

from warprun.kernels.bound import signature
from warprun.kernels.mlp import Inference, Memory, Network
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.kernel_module import KernelModule, draw_scalars

ROLLOUT, SINGLE = (0, False, np.uint32(0)), (np.zeros(2, np.int64),)
"""First arguments of `rollout`, and of kernels of a single step."""


def of_rollout(built: KernelModule, plan: ArrayPlan) -> list[object]:
    """Return the types of the arguments of `rollout`."""
    return list(signature((*ROLLOUT, *_arrays(built, plan), *(_inference() for _ in plan.environment.groups))))


def of_step(built: KernelModule, plan: ArrayPlan) -> list[object]:
    """Return the types of the arguments of `reset`, `sample`, `greedy` and `step`."""
    return list(signature((*SINGLE, *_arrays(built, plan))))


def _arrays(built: KernelModule, plan: ArrayPlan) -> list[object]:
    """Return the NamedTuples that kernels take, with small arrays."""
    scalars = {"n_envs": plan.n_envs, **draw_scalars(0), **built.values}
    groups = plan.environment.groups
    given = {"Common": plan.common(), **{f"{group.name}_Arrays": plan.of_group(group) for group in groups}}
    found = []
    for name, layouts in given.items():
        kind = getattr(built.module, name)
        # Rows are flat in kernels.
        small = {each: np.zeros((1,) * (2 if layout.array.rows else len(layout.shape)), layout.dtype) for each, layout in layouts.items()}
        found.append(kind(**{each: small[each] if each in small else scalars[each] for each in kind._fields}))
    return found


def _inference() -> Inference:
    numbers = np.zeros(1, np.float32)
    network = Network(numbers, np.zeros((1, 7), np.int64), 0, 0, 0, 0, numbers, numbers)
    blocks, logits, kept, first, after = (np.zeros((1,) * axes, np.float32) for axes in (3, 4, 4, 2, 3))
    return Inference(network, blocks, logits, kept, first, after, Memory(*[first] * 4))
