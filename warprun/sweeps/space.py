"""What `warprun tune` searches: Hydra's sweeps as distributions of Optuna, and the best settings as a config file. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, RangeSweep, Sweep
from omegaconf import OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from warprun.config.overrides import GROUPS, rewrite, searched
from warprun.errors import UserError, shown

LOG = "log"
"""The tag of an interval that is searched on a logarithmic scale: tag(log,interval(1e-5,1e-2))."""
OWN = ("seed", "name", "output_root", "run_dir")
"""Settings of single runs, which are not part of the best settings."""
GROUPS_OF_FILE = ("env", "agent", "concurrency", "tuned")
"""Groups that an experiment can choose."""


class Space(NamedTuple):
    """A search space."""

    fixed: list[str]
    """Overrides that all trials have."""
    distributions: dict[str, BaseDistribution]
    """Key -> what its values are drawn from."""
    text: dict[str, str]
    """Key -> its value or range as the user wrote it."""

    def overrides(self, values: Mapping[str, object]) -> list[str]:
        """Return the overrides of a trial with these values."""
        return [*self.fixed, *(f"{key}={values[key]}" for key in self.distributions)]

    def corners(self) -> list[list[str]]:
        """Return overrides in which every key has each of its extreme values, or choices, once."""
        ends = {key: _ends(distribution) for key, distribution in self.distributions.items()}
        first = {key: values[0] for key, values in ends.items()}
        return [self.overrides(first | {key: value}) for key, values in ends.items() for value in values]


def read_space(overrides: Sequence[str]) -> Space:
    """Return the search space that overrides describe. Raises UserError."""
    fixed, space = searched(overrides)
    if not space:
        raise UserError("tune needs something to search, such as 'agent.learning_rate=tag(log,interval(1e-5,1e-2))'")
    text = dict(override.partition("=")[::2] for override in fixed)
    distributions = {}
    for key, (given, values) in space.items():
        distributions[key] = _distribution(given, values)
        text[key] = given.partition("=")[2]
    return Space(fixed, distributions, text)


def _distribution(given: str, values: Sweep | list[str]) -> BaseDistribution:
    if isinstance(values, IntervalSweep):
        return _of_interval(given, values)
    if isinstance(values, RangeSweep):
        return _of_range(values)
    assert isinstance(values, list)
    return CategoricalDistribution([value.partition("=")[2] for value in values])


def _of_interval(given: str, interval: IntervalSweep) -> BaseDistribution:
    low, high = interval.start, interval.end
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"{shown(given)}: write interval(low,high) with finite numbers, the lower first")
    unknown = set(interval.tags) - {LOG}
    if unknown:
        raise UserError(f"{shown(given)}: unknown tag {min(unknown)!r} (there is: {LOG})")
    log = LOG in interval.tags
    if log and low <= 0:
        raise UserError(f"{shown(given)}: an interval with the tag log begins above 0")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _of_range(values: RangeSweep) -> BaseDistribution:
    start, stop, step = values.start, values.stop, values.step
    assert start is not None and stop is not None
    count = math.ceil((stop - start) / step)
    low, high = sorted((start, start + (count - 1) * step))
    if isinstance(low, int) and isinstance(high, int) and isinstance(step, int):
        return IntDistribution(low, high, step=abs(step))
    return FloatDistribution(float(low), float(high), step=abs(float(step)))


def _ends(distribution: BaseDistribution) -> list[object]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return [distribution.low, distribution.high]


def as_file(overrides: Sequence[str], comment: str) -> str:
    """Return settings as a file for conf/experiment, with a comment of one line."""
    groups, keys = [], OmegaConf.create({})
    parser = OverridesParser.create()
    for parsed in parser.parse_overrides([rewrite(override) for override in overrides]):
        key = parsed.key_or_group
        if key in GROUPS_OF_FILE:
            groups.append(f"  - override /{key}: {parsed.value()}")
        elif key not in (*OWN, *GROUPS):
            OmegaConf.update(keys, key, parsed.value(), force_add=True)
    lines = ["# @package _global_", f"# {comment}", *(["defaults:", *groups, ""] if groups else [])]
    return "\n".join([*lines, OmegaConf.to_yaml(keys)])
