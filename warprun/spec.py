"""What agents and simulators agree on: spaces, groups of actors, masks, the time limit. No functions, no numba, no torch.

All classes check their values and raise ContractError.
"""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from typing import Literal

import numpy as np

from warprun.errors import ContractError, shown

MAX_SIZE = 2**24
"""Largest size of a space and of an array field, and largest number of actors: random streams number the actors in 24 bits."""
MAX_STEPS = 2**31 - 1
"""Largest time limit: kernels count steps in 32 bits."""


def whole_number(what: str, value: object, largest: int = MAX_SIZE) -> int:
    """Return `value`, a Python or NumPy integer from 1 to `largest`, as an int. Raises ContractError, which begins with `what`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= largest:
        raise ContractError(f"{what} must be a whole number from 1 to {largest:,}, not {shown(value)}")
    return int(value)


@dataclass(frozen=True)
class Discrete:
    """One of `n` actions, 0 to n - 1."""

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole_number("n of Discrete(n)", self.n))

    @property
    def outputs(self) -> int:
        """Numbers that a policy gives for one actor: the logits."""
        return self.n

    @property
    def components(self) -> int:
        """Numbers that make one action."""
        return 1


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, choice j one of `nvec[j]`."""

    nvec: tuple[int, ...]

    def __post_init__(self) -> None:
        what = "nvec of MultiDiscrete(nvec)"
        if not isinstance(self.nvec, tuple) or not self.nvec:
            raise ContractError(f"{what} must be a tuple of at least one whole number, such as (3, 2), not {shown(self.nvec)}")
        object.__setattr__(self, "nvec", tuple(whole_number(f"each number in {what}", n) for n in self.nvec))
        whole_number(f"the sum of {what}", sum(self.nvec))

    @property
    def outputs(self) -> int:
        """Numbers that a policy gives for one actor: the logits of all choices, one after the other."""
        return sum(self.nvec)

    @property
    def components(self) -> int:
        """Numbers that make one action."""
        return len(self.nvec)


@dataclass(frozen=True)
class Box:
    """`size` real numbers between `low` and `high` (numbers for all components, or a tuple with one each).

    A policy acts in its own units. Of a component whose two bounds are finite, -1..1 maps linearly to low..high; what lies outside is
    clipped. Where a bound is infinite the units are those of the environment: the action is passed through, and clipped at the
    other bound if that is finite.
    """

    size: int
    low: float | tuple[float, ...] = -np.inf
    high: float | tuple[float, ...] = np.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole_number("size of Box(size, low, high)", self.size))
        for name, bound in (("low", self.low), ("high", self.high)):
            for number in bound if isinstance(bound, tuple) else (bound,):
                if isinstance(number, bool) or not isinstance(number, int | float | np.integer | np.floating):
                    raise ContractError(f"{name} of Box(size, low, high) must be a number or a tuple of numbers, not {shown(bound)}")
            if isinstance(bound, tuple) and len(bound) != self.size:
                raise ContractError(f"a Box has {_count(self.size, 'component')} and {_count(len(bound), 'bound')} in {name}")
        largest = float(np.finfo(np.float32).max)
        for low, high in dict.fromkeys(self.bounds()):
            if not low <= high or low == np.inf or high == -np.inf or any(largest < abs(b) < np.inf for b in (low, high)):
                raise ContractError(f"a Box has bounds {low:g} to {high:g}; float32 has no numbers between them")

    @property
    def outputs(self) -> int:
        """Numbers that a policy gives for one actor: the means, then the logarithms of the standard deviations."""
        return 2 * self.size

    @property
    def components(self) -> int:
        """Numbers that make one action."""
        return self.size

    def bounds(self) -> tuple[tuple[float, float], ...]:
        """Return (low, high) of every component."""
        low = self.low if isinstance(self.low, tuple) else (self.low,) * self.size
        high = self.high if isinstance(self.high, tuple) else (self.high,) * self.size
        return tuple((float(a), float(b)) for a, b in zip(low, high, strict=True))


Space = Discrete | MultiDiscrete | Box

PolicyKind = Literal["sampled", "explored", "squashed"]
"""How actions come from what the policies of an agent give. sampled: from a distribution. explored: around the values of actions, or around
actions within -1..1. squashed: from a normal distribution, means and then log standard deviations, whose draws tanh takes to -1..1."""
SQUASHED_LOG_STD = (-20.0, 2.0)
"""Limits of the log standard deviations of squashed policies, those of the authors of SAC (github.com/rail-berkeley/softlearning)."""


@dataclass(frozen=True)
class GroupSpec:
    """Actors that share their spaces and one policy."""

    name: str
    size: int
    """Number of actors."""
    observation: Box
    action: Space
    masked: bool = False
    """Whether the simulator gives an action mask with every observation."""
    leaves: bool = False
    """Whether an actor can leave an episode before it ends; the simulator then says who is in it (`GroupTrajectory.alive`)."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier() or keyword.iskeyword(self.name):
            raise ContractError(f"group name {shown(self.name)} is not a Python identifier; use letters, digits and underscores")
        object.__setattr__(self, "size", whole_number(f"size of group {self.name!r}", self.size))
        if not isinstance(self.observation, Box):
            raise ContractError(f"observation of group {self.name!r} must be a Box, such as Box(2), not {shown(self.observation)}")
        if not isinstance(self.action, Space):
            given = shown(self.action)
            raise ContractError(
                f"action of group {self.name!r} must be a Discrete, a MultiDiscrete or a Box, such as Discrete(2), not {given}"
            )

    @property
    def masked_actions(self) -> int:
        """Entries of the action mask of one actor; 0 without a mask."""
        return self.action.outputs if self.masked else 0


@dataclass(frozen=True)
class Spec:
    """What an agent has to know of an environment."""

    groups: tuple[GroupSpec, ...]
    time_limit: int | None = None
    """Steps after which an episode is truncated; None: never."""
    early_truncation: bool = False
    """Whether the simulator can truncate an episode at any step, also before the time limit."""

    def __post_init__(self) -> None:
        if not isinstance(self.groups, tuple) or not all(isinstance(group, GroupSpec) for group in self.groups):
            raise ContractError(f"groups of a Spec must be a tuple of GroupSpec, such as (GroupSpec(...),), not {shown(self.groups)}")
        if not self.groups:
            raise ContractError("an environment needs at least one group")
        names = [group.name for group in self.groups]
        for name in names:
            if names.count(name) > 1:
                raise ContractError(f"group name {name!r} is taken by another group")
        whole_number("the number of actors of all groups", sum(group.size for group in self.groups))
        if self.time_limit is not None:
            object.__setattr__(self, "time_limit", whole_number("time_limit", self.time_limit, MAX_STEPS))

    def group(self, name: str) -> GroupSpec:
        """Return the group called `name`. Raises KeyError."""
        return {group.name: group for group in self.groups}[name]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
