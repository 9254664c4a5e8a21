"""NaN, infinity, and masks that forbid everything: what kernels note of them, and how the host reads it.

Every step looks at what it has written: actions, rewards, final observations, observations and masks. A look at a row is one comparison a
number, without a branch, so that LLVM vectorises it; only where something is wrong is it looked for, and the first fault of each
environment noted in `fault` [tile, NOTED, lane]: a code (0: none), the step, the place in the environment's part of the row, and the value.
`any_fault` [1] is then 1, so that the host reads a single number as long as all is well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from warprun.environment import Environment

float32 = np.float32

FIELDS = ("action", "reward", "final observation", "observation", "mask")
"""What can be at fault, in the order in which it comes about."""
NOTED = 4
"""Numbers that are noted: code, step, place, value."""


@dataclass(frozen=True)
class Fault:
    """The first number of an environment that is not finite, or the first mask that leaves nothing to do."""

    environment: int
    step: int
    """How many steps the environment had taken, this one included; 0: it had just been reset."""
    group: str
    field: str
    """One of FIELDS."""
    actor: int
    component: int
    """Of the observation, of the action or, in a mask, of the choices."""
    value: float
    """NaN, inf or -inf; of a mask: 0."""

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
        return f"environment {self.environment} {what} at step {self.step:,} ({place})"


def code_of(group: int, field: str) -> int:
    """Return the code of a field of the group with this number."""
    return 1 + len(FIELDS) * group + FIELDS.index(field)


def first_fault(environment: Environment, noted: torch.Tensor, steps: int) -> Fault | None:
    """Return the earliest fault in `noted` [tile, NOTED, lane], of several at one step that of the first environment.

    Kernels count steps modulo 2^32; `steps` is where the engine stands.
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
    """Small tensors of the device on their way to the host, which does not wait for them; one at a time."""

    def __init__(self) -> None:
        self._sent: torch.Tensor | None = None
        self._names: tuple[str, ...] = ()
        self._event: torch.cuda.Event | None = None

    def exchange(self, tensor: torch.Tensor, names: tuple[str, ...] = ()) -> tuple[torch.Tensor, tuple[str, ...]] | None:
        """Send `tensor`, and return the one before, with the names that it had, if it has arrived; on CPU return `tensor` itself."""
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


# What kernels call ------------------------------------------------------------------------------------------------------------


def all_finite(row, first, count):
    """Return whether row[first : first + count] holds neither NaN nor infinity."""
    sound = True
    for n in range(first, first + count):
        sound &= abs(row[n]) < float32(np.inf)
    return sound


def all_can_act(mask, first, rows, width, begin, choices):
    """Return whether each of `rows` actors, `width` entries each from `first` on, may do one of the `choices` from `begin` on."""
    sound = True
    for n in range(rows):
        allowed = False
        for k in range(choices):
            allowed |= mask[first + n * width + begin + k]
        sound &= allowed
    return sound


def note_numbers(fault, any_fault, lane, code, now, row, first, count, width, stride):
    """Note the first number of row[first : first + count] that is not finite, if nothing is noted yet.

    Place n of the row is component n % width of actor n // width, of `stride` components that the field has.
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
    """Note the first of `actors`, whose entries begin at `first`, that may do none of the `choices` of a component."""
    for n in range(actors):
        if fault[0, lane] == 0 and not all_can_act(mask, first + n * width, 1, width, begin, choices):
            fault[0, lane] = code
            fault[1, lane] = np.int32(now)
            fault[2, lane] = n * components + component
            fault[3, lane] = 0
            any_fault[0] = 1
