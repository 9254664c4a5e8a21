"""Actions of a caller, checked and flat, as engines take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from warprun.errors import UserError, one_line
from warprun.simulation.memory import Array
from warprun.spec import Box, Discrete, GroupSpec


def flat_actions(group: GroupSpec, actions: Any, rows: int, like: Array) -> Array:
    """Return actions [rows] or [rows, C] flat, in memory of the kind of `like`. Raises UserError for another shape or type of number."""
    given: Array
    try:
        given = np.asarray(actions) if isinstance(like, np.ndarray) else torch.as_tensor(actions, device=like.device)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors on another device or with gradients
        raise UserError(f"actions cannot be read as numbers: {one_line(error)}") from error
    if isinstance(given, np.ndarray):
        kind = given.dtype.kind
    else:
        if given.requires_grad:
            raise UserError("actions have gradients; give actions.detach()")
        kind = "f" if given.dtype.is_floating_point else "b" if given.dtype == torch.bool else "i"
    shapes: list[tuple[int, ...]] = [(rows, group.action.components)]
    if isinstance(group.action, Discrete):
        shapes.insert(0, (rows,))
    if tuple(given.shape) not in shapes:
        raise UserError(f"actions have the shape {list(given.shape)}; {group.action} in {rows:,} rows has {list(shapes[0])}")
    wanted = "iuf" if isinstance(group.action, Box) else "iu"
    if kind not in wanted:
        raise UserError(f"actions have the type {given.dtype}; {group.action} needs {'numbers' if wanted == 'iuf' else 'whole numbers'}")
    flat: Array = _for_kernels(given) if isinstance(given, np.ndarray) else given
    return flat.reshape(-1)


def _for_kernels(given: np.ndarray) -> np.ndarray:
    """Return numbers in one of few types and one layout: Numba compiles kernels anew for each, also for arrays that are read-only."""
    wanted = given.dtype.newbyteorder("=")
    if wanted.kind in "iu" and wanted not in (np.int32, np.int64, np.uint64):
        wanted = np.dtype(np.int64)
    return np.require(given, wanted, ["C", "A", "W"])
