"""Faults: NaN, infinity, and masks that forbid every action. Kernels record them (`codegen/called.py`), the host reads the records."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from warprun.environment import Environment
from warprun.simulation.codegen.fault_checks import FIELDS
from warprun.simulation.trajectory import Trajectory
from warprun.spec import GroupSpec


@dataclass(frozen=True)
class Fault:
    """The first number of an environment that is not finite, or its first mask that forbids every action."""

    environment: int
    step: int
    """Steps that the environment had taken, including this one; 0: it had just been reset."""
    group: str
    field: str
    """One of FIELDS."""
    actor: int
    component: int
    """Component of the observation or of the action; for a mask, of the action that it restricts."""
    value: float
    """NaN, inf or -inf; 0 for a mask."""
    of: str = ""
    """Id or class of an environment that has one."""
    replaceable: bool = True
    """Whether `env.on_nan=reset` would reset such an environment."""
    place: str = ""
    """"FILE:LINE in step: " of the code of the user that gave it; empty if that is not known."""

    def __str__(self) -> str:
        said = {
            "action": f"was given an action of {self.value} by the policy",
            "mask": "forbade every action",
            "reward": f"gave a reward of {self.value}",
        }
        what = said.get(self.field, f"gave {'an' if self.field == 'observation' else 'a'} {self.field} of {self.value}")
        place = f"group {self.group}, actor {self.actor}"
        if self.field != "reward":
            place += f", component {self.component}"
        title = f" of {self.of}" if self.of else ""
        code = "" if self.field == "action" else self.place
        return f"{code}environment {self.environment}{title} {what} at step {self.step:,} ({place})"


def first_fault(environment: Environment, noted: torch.Tensor, steps: int, replaceable: bool) -> Fault | None:
    """Return the earliest fault in `noted` [tile, 4, lane]; of several at one step, that of the first environment.

    `replaceable`: see `Fault`. Kernels count steps modulo 2^32; `steps` is the number of steps that the engine has taken.
    """
    code, step, place, value = noted.permute(1, 0, 2).flatten(1).cpu().long()
    ago = torch.where(code > 0, (steps - 1 - step) % 2**32, -1)
    n = int(ago.argmax())
    if not code[n]:
        return None
    group_number, field_number = divmod(int(code[n]) - 1, len(FIELDS))
    group, field = environment.groups[group_number], FIELDS[field_number]
    width = {"action": group.action.components, "reward": 1, "mask": group.action.components}.get(field, group.observation.size)
    actor, component = divmod(int(place[n]), width)
    found = 0.0 if field == "mask" else (math.nan, math.inf, -math.inf)[int(value[n])]
    return Fault(n, steps - int(ago[n]), group.name, field, actor, component, found, replaceable=replaceable)


def first_in_rollout(group: GroupSpec, taken: Trajectory, rows: int) -> Fault | None:
    """Return the first fault of a group of one actor in the first `rows` steps of a rollout, whose steps it counts (waits for the device).

    Of several at one step it is that of the field that is written first.
    """
    own = taken.groups[group.name]
    forbids = own.obs.new_zeros((rows + 1, taken.n_envs, 0), dtype=torch.bool)
    if own.mask is not None:
        forbids = torch.stack([~part.any(-1) for part in own.mask[: rows + 1, :, 0].split(group.action.choices, -1)], -1)
    # A sum is finite if all numbers are, unless it overflows: much faster than `isfinite`.
    sums = own.obs[: rows + 1].sum() + own.reward[:rows].sum() + own.action[:rows].sum() + (own.final_obs.sum() if rows else 0.0)
    if bool(sums.isfinite() & ~forbids.any()):
        return None
    final = own.final_obs[:, :, 0].gather(0, taken.final_slot()[..., None].expand(-1, -1, own.obs.shape[-1]))
    last = torch.where(taken.truncated[..., None], final, 0.0)
    numbers = {
        "action": own.action[:rows],
        "reward": own.reward[:rows],
        "final observation": last[:rows],
        "observation": own.obs[: rows + 1],
    }
    wrong = {field: ~each.float().flatten(2).isfinite() for field, each in numbers.items()} | {"mask": forbids}
    found = []
    for order, field in enumerate(FIELDS):
        places = wrong[field].nonzero()
        if len(places):
            row, env, component = places[0].tolist()
            step = row + (field in FIELDS[:3])  # observations and masks of row 0 are those before the rollout
            value = float(numbers[field].flatten(2)[row, env, component]) if field in numbers else 0.0
            found.append((step, order, Fault(env, step, group.name, field, 0, component, value)))
    return min(found, key=lambda each: each[:2])[2] if found else None


class Arriving:
    """Copies small tensors from the device to the host, one at a time, without waiting for the device."""

    def __init__(self) -> None:
        self._sent: torch.Tensor | None = None
        self._names: tuple[str, ...] = ()
        self._event: torch.cuda.Event | None = None

    def exchange(self, tensor: torch.Tensor, names: tuple[str, ...] = ()) -> tuple[torch.Tensor, tuple[str, ...]] | None:
        """Start to copy `tensor`, which is on CUDA, and return the tensor of the copy before, with its names.

        If the copy before has not arrived, return None and copy nothing.
        """
        if self._event is not None and not self._event.query():
            return None
        arrived = None if self._sent is None else (self._sent, self._names)
        self._sent = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._sent.copy_(tensor, non_blocking=True)
        self._names = names
        self._event = torch.cuda.Event()
        self._event.record()
        return arrived
