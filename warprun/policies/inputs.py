"""Checks what a program passes to a policy: each mistake is one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from warprun.errors import UserError, shown
from warprun.policies.group_policy import choices
from warprun.spec import GroupSpec


class Rows(NamedTuple):
    """The observations and masks of a call as rows."""

    obs: torch.Tensor
    """[B, F] float32."""
    mask: torch.Tensor | None
    """[B, M] bool."""
    leading: tuple[int, ...]
    """Dimensions that B stands for."""


def read(group: GroupSpec, obs: object, mask: object | None, device: torch.device) -> Rows:
    """Return observations [..., F] and a mask [..., M], or None, of a group as rows on a device. Raises UserError."""
    features, name = group.observation.size, f"obs of group {group.name!r}"
    given = _tensor(name, obs)
    if given.is_complex():
        raise UserError(f"{name} must hold real numbers, not {given.dtype}")
    if given.ndim == 0 or given.shape[-1] != features:
        one_hot = given.ndim == 0 and not given.is_floating_point()
        hint = "; a Discrete observation is given one-hot, as gymnasium.spaces.flatten does" if one_hot else ""
        raise UserError(f"{name} must have the shape [..., {features}], not {_shape(given)}{hint}")
    rows = given.to(device, torch.float32).reshape(-1, features)
    if not bool(rows.isfinite().all()):
        raise UserError(f"{name} has NaN or infinity")
    leading = tuple(given.shape[:-1])
    return Rows(rows, _mask(group, mask, leading, device), leading)


def read_carry(group: GroupSpec, numbers: int, carry: object | None, rows: Rows) -> torch.Tensor:
    """Return a carry [..., H] that a program gave for observations, as rows [B, H]; zeros for None. Raises UserError."""
    if carry is None:
        return rows.obs.new_zeros((len(rows.obs), numbers))
    name = f"carry of group {group.name!r}"
    given = _tensor(name, carry)
    if tuple(given.shape) != (*rows.leading, numbers):
        raise UserError(f"{name} must have the shape {[*rows.leading, numbers]}, not {_shape(given)}")
    found = given.to(rows.obs.device, torch.float32).reshape(-1, numbers)
    if not bool(found.isfinite().all()):
        raise UserError(f"{name} has NaN or infinity")
    return found.view(len(rows.obs), numbers)


def _mask(group: GroupSpec, mask: object | None, leading: Sequence[int], device: torch.device) -> torch.Tensor | None:
    name, entries = f"mask of group {group.name!r}", sum(choices(group))
    if mask is None:
        if group.masked:
            raise UserError(f"group {group.name!r} has action masks: give mask, of the shape [..., {entries}]")
        return None
    if not entries:
        raise UserError(f"{name}: the actions of a Box have no mask")
    given = _tensor(name, mask)
    if given.is_floating_point() or given.is_complex():
        raise UserError(f"{name} must be bool, True for an allowed action, not {given.dtype}")
    if tuple(given.shape) != (*leading, entries):
        raise UserError(f"{name} must have the shape {[*leading, entries]}, not {_shape(given)}")
    rows = (given != 0).to(device).reshape(-1, entries)
    for number, choice in enumerate(rows.split(list(choices(group)), -1)):
        forbidden = ~choice.any(-1)
        if bool(forbidden.any()):
            where = f" in choice {number}" if len(choices(group)) > 1 else ""
            raise UserError(f"{name} allows no action{where}, in row {int(forbidden.nonzero()[0])}")
    return rows


def _tensor(name: str, value: object) -> torch.Tensor:
    try:
        return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{name} must be an array or a tensor of numbers, not {shown(value)}") from None


def _shape(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))
