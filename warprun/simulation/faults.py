"""Faults: NaN, infinity, and masks that forbid every action. Kernels record them, and the host reads the records.

Every step checks what it has written: actions, rewards, final observations, observations and masks. The check of a row is one comparison
per number, without a branch, so that LLVM vectorises it. Only if a check fails does the kernel search for the faults. It records the first
fault of each environment in `fault` [tile, 4, lane]: a code (0: none), the step, the place in the environment's part of the row, and the
value. It also sets `any_fault` [1] to 1, so the host reads a single number if there is no fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from warprun.environment import Environment

float32 = np.float32
uint64 = np.uint64

FIELDS = ("action", "reward", "final observation", "observation", "mask")
"""What can have a fault, in the order in which a step writes it."""


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
        return f"environment {self.environment}{title} {what} at step {self.step:,} ({place})"


def code_of(group: int, field: str) -> int:
    """Return the code of a field of the group with this number."""
    return 1 + len(FIELDS) * group + FIELDS.index(field)


def first_fault(environment: Environment, noted: torch.Tensor, steps: int) -> Fault | None:
    """Return the earliest fault in `noted` [tile, 4, lane]; of several at one step, that of the first environment.

    Kernels count steps modulo 2^32; `steps` is the number of steps that the engine has taken.
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
    return Fault(n, steps - int(ago[n]), group.name, field, actor, component, found)


class Arriving:
    """Copies small tensors from the device to the host, one at a time, without waiting for the device."""

    def __init__(self) -> None:
        self._sent: torch.Tensor | None = None
        self._names: tuple[str, ...] = ()
        self._event: torch.cuda.Event | None = None

    def exchange(self, tensor: torch.Tensor, names: tuple[str, ...] = ()) -> tuple[torch.Tensor, tuple[str, ...]] | None:
        """Start to copy `tensor` and return the tensor of the copy before, with its names; on CPU return `tensor` itself.

        If the copy before has not arrived, return None and copy nothing.
        """
        if tensor.device.type != "cuda":
            return tensor, names
        if self._event is not None and not self._event.query():
            return None
        arrived = None if self._sent is None else (self._sent, self._names)
        self._sent = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._sent.copy_(tensor, non_blocking=True)
        self._names = names
        self._event = torch.cuda.Event()
        self._event.record()
        return arrived


# Functions for kernels --------------------------------------------------------------------------------------------------------


def all_finite(row, first, count):
    """Return whether row[first : first + count] holds neither NaN nor infinity."""
    sound = True
    # For a signed index Numba adds the wrap-around of negative ones, and LLVM then gathers neighbours one by one.
    for n in range(uint64(first), uint64(first + count)):
        sound &= abs(row[n]) < float32(np.inf)
    return sound


def all_can_act(mask, first, rows, width, begin, choices):
    """Return whether the mask allows each of `rows` actors at least one of the `choices` from entry `begin` on.

    The entries of the first actor begin at `first`; each actor has `width` entries.
    """
    sound = True
    for n in range(rows):
        allowed = False
        for k in range(choices):
            allowed |= mask[uint64(first + n * width + begin + k)]
        sound &= allowed
    return sound


def note_numbers(fault, any_fault, lane, code, now, row, first, count, width, stride):
    """Record the first number of row[first : first + count] that is not finite, unless the environment already has a fault.

    Number n is component n % width of actor n // width; the field has `stride` components.
    """
    for n in range(count):
        x = row[first + n]
        if fault[0, lane] == 0 and not abs(x) < float32(np.inf):
            fault[0, lane] = code
            fault[1, lane] = np.int32(now)
            fault[2, lane] = n // width * stride + n % width
            fault[3, lane] = 0 if x != x else 1 if x > float32(0.0) else 2
            any_fault[0] = 1


def note_mask(fault, any_fault, lane, code, now, mask, first, actors, width, begin, choices, component, components):
    """Record the first of `actors`, whose entries begin at `first`, that is allowed none of the `choices` of a component."""
    for n in range(actors):
        if fault[0, lane] == 0 and not all_can_act(mask, first + n * width, 1, width, begin, choices):
            fault[0, lane] = code
            fault[1, lane] = np.int32(now)
            fault[2, lane] = n * components + component
            fault[3, lane] = 0
            any_fault[0] = 1
