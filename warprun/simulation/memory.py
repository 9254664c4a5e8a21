"""The memory of the engine: every array that kernels touch, by name, allocated once."""

from __future__ import annotations

from math import prod

import torch

from warprun.environment import Box, Environment, arguments
from warprun.simulation import trajectory
from warprun.simulation.codegen.statements import Target, lanes
from warprun.simulation.faults import NOTED

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]


def layout(environment: Environment, target: Target, n_envs: int, n_varied: int, explores: bool = False, replaces: bool = False) -> Layout:
    """Return shape and dtype of the arrays that only the engine sees; environments lie in tiles [tile, slot, actor, lane]."""
    width = lanes(target, environment)
    tiles = -(-n_envs // width)
    arrays: Layout = dict.fromkeys(("clock", "cuts", "ended", "ended_steps"), ((tiles, width), torch.int32))
    arrays |= {"fault": ((tiles, NOTED, width), torch.int32), "any_fault": ((1,), torch.int32)}
    if replaces:  # how often, and whether in this step
        arrays["replaced"] = ((tiles, 2, width), torch.int32)
    if n_varied:
        arrays["varied"] = ((tiles, n_varied, width), torch.float32)
    for group in environment.groups:
        slots = {False: 0, True: 0}
        for field in group.fields:
            slots[field.integer] += field.slots
        # An array without slots would have no address to hand to a kernel.
        arrays[f"{group.name}_f"] = ((tiles, max(1, slots[False]), group.size, width), torch.float32)
        arrays[f"{group.name}_i"] = ((tiles, max(1, slots[True]), group.size, width), torch.int32)
        for kind in ("return", "return_ended"):
            arrays[f"{group.name}_{kind}"] = ((tiles, group.size, width), torch.float32)
        for kind, fields in (("sum", group.sums), ("max", group.maxima)):
            if fields:
                arrays[f"{group.name}_{kind}"] = ((tiles, len(fields), width), torch.float32)
        if explores and isinstance(group.action, Box):
            arrays[f"{group.name}_noise"] = ((tiles, group.action.components, group.size, width), torch.float32)
        if group.size > 1 and any(p.group == group.name and group.name in arguments(p.function) for p in environment.phases):
            for kind in ("f", "i"):
                arrays[f"{group.name}_{kind}_before"] = arrays[f"{group.name}_{kind}"]
    return arrays


def bytes_needed(environment: Environment, target: Target, n_envs: int, horizon: int, n_varied: int, explores: bool = False) -> int:
    """Return the bytes that `layout` and the trajectory will take, before any are taken."""
    own = sum(prod(shape) * dtype.itemsize for shape, dtype in layout(environment, target, n_envs, n_varied, explores).values())
    return own + trajectory.bytes_needed(environment, horizon, n_envs)


def allocate(arrays: Layout, device: torch.device) -> dict[str, torch.Tensor]:
    """Allocate the arrays, zeroed."""
    return {name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in arrays.items()}


def shared_names(taken: trajectory.Trajectory) -> dict[str, torch.Tensor]:
    """Return the tensors of a trajectory by the names that kernels use, rows flat: [T], then all of a step side by side."""
    named = {"terminated": taken.terminated, "truncated": taken.truncated}
    for group_name, group in taken.groups.items():
        arrays = {name: getattr(group, name) for name in ("obs", "mask", "policy_output", "action", "log_prob", "reward")}
        for name, tensor in (arrays | {"obs_final": group.final_obs}).items():
            if tensor is not None:
                # The network's outputs are written by torch and read column by column: kernels take them as they are.
                named[f"{group_name}_{name}"] = tensor if name == "policy_output" else tensor.view(len(tensor), -1)
    return named
