"""Checks of what random actions met: bounds, scales, constant numbers, masks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warprun.checking.experience import Experience, GroupExperience
from warprun.checking.findings import Problem, doubt
from warprun.checking.names import feature, listed, phases_of, place_of
from warprun.environment import Environment

ROUNDING = 1e-5
"""Part of a bound by which an observation may be beyond it: float32 rounds."""
HUGE_OBSERVATION = 1e4
TINY_OBSERVATION = 1e-5
HUGE_REWARD = 1e3
TINY_REWARD = 1e-4
RATIO = 1e3
"""Of the mean sizes of two groups' rewards."""
ENOUGH = 20
"""Samples from which on a number that never changes is suspicious."""


def finite(met: Experience, environment: Environment | None) -> Iterator[Problem]:
    """Find numbers that are not finite, and masks that forbid everything."""
    if met.fault is None:
        return
    fault, where = met.fault, ""
    if environment is not None:
        group = environment.group(fault.group)
        functions = {"reward": phases_of(environment, group), "mask": place_of(group.mask) if group.mask else ""}
        where = functions.get(fault.field, place_of(group.observe))
    what = "allow at least one action in every state" if fault.field == "mask" else "look for divisions by zero, log, sqrt and overflows"
    yield Problem(f"{fault}; {where}: {what}" if where else f"{fault}; {what}")


def observations(met: Experience, environment: Environment | None) -> Iterator[Problem]:
    """Find observations beyond their bounds, of an unfit scale, or constant."""
    for group in met.groups.values():
        outside: list[int] = []
        for n, (low, high) in enumerate(group.spec.observation.bounds()):
            slack = ROUNDING * max(1.0, *(abs(bound) for bound in (low, high) if np.isfinite(bound)), 0.0)
            if group.low[n] < low - slack or group.high[n] > high + slack:
                outside.append(n)
        for n in outside[:3]:
            low, high = group.spec.observation.bounds()[n]
            seen = group.low[n] if group.low[n] < low else group.high[n]
            more = f" (and {len(outside) - 3} more features)" if len(outside) > 3 and n == outside[2] else ""
            name = feature(group.spec, n, environment)
            yield Problem(f"{name}: reaches {seen:.6g}, beyond its bounds {low:.6g} to {high:.6g}; widen the Box or correct it{more}")
        yield from _scale(group, environment)
        yield from _constant(met, group, environment)


def _scale(group: GroupExperience, environment: Environment | None) -> Iterator[Problem]:
    largest = np.maximum(np.abs(group.low), np.abs(group.high))
    for text, found in (
        ("so large that networks learn badly; divide it by its scale", np.flatnonzero(largest > HUGE_OBSERVATION)),
        ("so small that it hardly counts; multiply it", np.flatnonzero((largest < TINY_OBSERVATION) & (largest > 0.0))),
    ):
        if found.size:
            n = int(found[0])
            more = f" (and {found.size - 1} more features)" if found.size > 1 else ""
            yield doubt(f"{feature(group.spec, n, environment)}: its absolute value is at most {largest[n]:.3g}, {text}{more}")


def _constant(met: Experience, group: GroupExperience, environment: Environment | None) -> Iterator[Problem]:
    constant = np.flatnonzero(group.low == group.high)
    if constant.size and met.steps >= ENOUGH:
        if constant.size == group.spec.observation.size:
            yield Problem(f"observations of {group.spec.name} never change in {met.steps:,} steps: {feature(group.spec, 0, environment)}")
            return
        n = int(constant[0])
        others = f"; so are {listed(map(str, constant[1:]))}" if constant.size > 1 else ""
        was = f"was always {group.low[n]:.6g} in {met.steps:,} steps"
        yield doubt(f"{feature(group.spec, n, environment)}: it {was}; compute it or leave it out{others}")


def rewards(met: Experience, environment: Environment | None) -> Iterator[Problem]:
    """Find rewards that never change or have an unfit scale."""
    sizes = {}
    for group in met.groups.values():
        name = group.spec.name
        where = f", {phases_of(environment, environment.group(name))}" if environment else ""
        low, high, size = group.reward_low, group.reward_high, group.mean_reward_size
        if size:
            sizes[name] = size
        if low == high and met.steps >= ENOUGH:
            if low == 0.0:
                yield doubt(f"the reward of {name} was always 0 in {met.steps:,} steps{where}: nothing to learn from unless it is rare")
            elif not met.terminated.any():
                was = f"the reward of {name} was always {low:.6g}{where}, and no episode terminated"
                yield doubt(f"{was}: there is nothing to learn from; is the goal only rare for random actions?")
        largest = max(abs(low), abs(high))
        if size > HUGE_REWARD or largest > HUGE_REWARD**2:
            yield doubt(f"the reward of {name} is large: mean size {size:.3g}, from {low:.3g} to {high:.3g}{where}; divide it by its scale")
        elif 0.0 < largest < TINY_REWARD:
            yield doubt(f"the reward of {name} is small: from {low:.3g} to {high:.3g}{where}; multiply it")
    if len(sizes) > 1:
        least, most = min(sizes, key=lambda g: sizes[g]), max(sizes, key=lambda g: sizes[g])
        if sizes[most] > RATIO * sizes[least]:
            sizes_told = f"mean size {sizes[most]:.3g} of {most}, {sizes[least]:.3g} of {least}"
            yield doubt(f"rewards differ in scale: {sizes_told}; scale them alike if the groups share settings")


def masks(met: Experience, environment: Environment | None) -> Iterator[Problem]:
    """Find masks that never forbid, and actions that are never allowed."""
    for group in met.groups.values():
        if not group.masks:
            continue
        name = f"the mask of {group.spec.name}"
        mask = environment.group(group.spec.name).mask if environment else None
        where = f", {place_of(mask)}" if mask else ""
        if (group.allowed == group.masks).all():
            yield doubt(f"{name} allowed every action in {met.steps:,} steps{where}; leave it out, or correct its condition")
        never = np.flatnonzero(group.allowed == 0)
        if never.size:
            yield doubt(f"{name} never allowed action {listed(never)} in {met.steps:,} steps{where}; is a condition wrong?")
