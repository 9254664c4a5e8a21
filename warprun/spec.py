"""What agents and simulators agree on: spaces, groups of actors, masks, the time limit. No functions, no numba, no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Discrete:
    """One of `n` actions, 0 to n - 1."""

    n: int

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

    def group(self, name: str) -> GroupSpec:
        """Return the group called `name`. Raises KeyError."""
        return {group.name: group for group in self.groups}[name]
