"""The best checkpoint of a run beside its last policy, both over the final episodes of the run. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DOUBT = 2.0
"""Standard errors that a difference must exceed: at most 2.5 % of the differences of equal policies are as far above 0."""
LEAST_EPISODES = 8
"""Fewer episodes show nothing: a standard error of so few numbers is too often small by chance."""


class Sample(NamedTuple):
    """A mean and its standard error, which is NaN for one number."""

    mean: float
    stderr: float

    @classmethod
    def of(cls, numbers: NDArray[np.float64]) -> Sample:
        """Return that of one number or more, [N]."""
        spread = float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
        return cls(float(numbers.mean()), spread / math.sqrt(len(numbers)))

    @property
    def negative(self) -> Sample:
        """The mean with the other sign."""
        return Sample(-self.mean, self.stderr)

    @property
    def is_above_zero(self) -> bool:
        """Whether the mean is above 0 beyond doubt."""
        return self.mean > 0.0 and self.mean > DOUBT * self.stderr


class Gain(NamedTuple):
    """The returns of a group over the same episodes."""

    best: Sample
    last: Sample
    more: Sample
    """How much more the best checkpoint returns in an episode."""


@dataclass(frozen=True)
class Paired:
    """The best checkpoint and the last policy in the same episodes, which neither was chosen by."""

    env_steps: int
    """Those of the best checkpoint."""
    episodes: int
    gains: Mapping[str, Gain]
    """Group -> its returns."""

    @classmethod
    def of(cls, env_steps: int, best: Mapping[str, NDArray[np.float64]], last: Mapping[str, NDArray[np.float64]]) -> Paired:
        """Return the comparison of the returns of both in each episode, by group, [episodes]."""
        gains = {name: Gain(Sample.of(best[name]), Sample.of(last[name]), Sample.of(best[name] - last[name])) for name in last}
        return cls(env_steps, len(next(iter(last.values()))), gains)

    def gain(self, group: str | None) -> Gain:
        """Return the returns of a group; None: of the only one."""
        return self.gains[group] if group else next(iter(self.gains.values()))

    def more(self, group: str | None) -> Sample | None:
        """Return how much more the best checkpoint returns to a group, None: to the only one; None if that may be chance."""
        found = self.gain(group).more
        is_sure = self.episodes >= LEAST_EPISODES and (found.is_above_zero or found.negative.is_above_zero)
        return found if is_sure else None


def seems_better(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Return whether an evaluation, `mean` and `stderr`, is clearly above another, which shows little if it was chosen for that."""
    error = math.hypot(one.get("stderr", 0.0), other.get("stderr", 0.0))
    return one.get("mean", math.nan) - other.get("mean", math.nan) > DOUBT * error
