"""Statistics of rollouts with random actions: ranges of observations and rewards, masks, lengths of episodes."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from warprun.checking.findings import Finding, Problem, doubt, feature, judge, listed, phases_of, place_of, returns
from warprun.checking.rolls import Rolls
from warprun.environment import Environment
from warprun.simulation.faults import Fault
from warprun.simulation.trajectory import GroupTrajectory, Trajectory
from warprun.spec import GroupSpec, Spec


class GroupExperience:
    """The ranges, rewards and masks of one group."""

    def __init__(self, spec: GroupSpec) -> None:
        self.spec = spec
        features = spec.observation.size
        self.low = np.full(features, np.inf)
        self.high = np.full(features, -np.inf)
        """Least and largest value of every feature, among those that are finite."""
        self.reward_low, self.reward_high = np.inf, -np.inf
        self.reward_size = 0.0
        """Sum of the absolute values of the rewards."""
        self.rewards = 0
        self.allowed = np.zeros(spec.masked_actions, np.int64)
        """How often each entry of the mask allowed its action."""
        self.masks = 0
        self.first: np.ndarray | None = None
        """[N, A, F] the first observations."""

    @property
    def mean_reward_size(self) -> float:
        """Mean of the absolute values of the rewards."""
        return self.reward_size / max(1, self.rewards)

    def see(self, observations: np.ndarray) -> None:
        """Add observations [..., F]."""
        rows = observations.reshape(-1, observations.shape[-1])
        low, high = rows.min(0), rows.max(0)
        if not np.isfinite(low).all() or not np.isfinite(high).all():
            finite = np.where(np.isfinite(rows), rows, np.nan)
            low, high = np.fmin.reduce(finite, axis=0), np.fmax.reduce(finite, axis=0)
        self.low, self.high = np.fmin(self.low, low), np.fmax(self.high, high)

    def earn(self, rewards: np.ndarray) -> None:
        """Add rewards."""
        finite = rewards[np.isfinite(rewards)].astype(np.float64)
        if finite.size:
            self.reward_low, self.reward_high = min(self.reward_low, finite.min()), max(self.reward_high, finite.max())
        self.reward_size += float(np.abs(finite).sum())
        self.rewards += finite.size

    def allow(self, masks: np.ndarray) -> None:
        """Add masks [..., M]."""
        rows = masks.reshape(-1, masks.shape[-1])
        self.allowed += rows.sum(0)
        self.masks += len(rows)


@dataclass
class Experience:
    """The statistics of `steps` steps of `n_envs` environments."""

    spec: Spec
    n_envs: int
    groups: dict[str, GroupExperience]
    reached: np.ndarray
    """[L] episodes that took their L-th step; entry 0 is not used."""
    terminated: np.ndarray
    """[L] episodes that terminated in their L-th step."""
    truncated: np.ndarray
    """[L] episodes that the time limit ended in their L-th step."""
    steps: int = 0
    seconds: float = 0.0
    fault: Fault | None = None

    @property
    def ended(self) -> int:
        """Episodes that ended."""
        return int(self.terminated.sum() + self.truncated.sum())

    @property
    def described(self) -> str:
        """The extent of the rollouts in words."""
        return f"{self.n_envs} environments, {self.steps:,} steps, {self.ended:,} episodes"


def gather(rolls: Rolls, spec: Spec, *, steps: int, seconds: float) -> Experience:
    """Return the statistics of at most `steps` steps or `seconds` seconds, at least one rollout; a fault ends them."""
    trajectory = rolls.trajectory
    rows = steps + trajectory.horizon + 1
    reached, terminated, truncated = (np.zeros(rows, np.int64) for _ in range(3))
    groups = {group.name: GroupExperience(group) for group in spec.groups}
    met = Experience(spec, trajectory.n_envs, groups, reached, terminated, truncated)
    ages = np.zeros(trajectory.n_envs, np.int64)
    rolls.begin()
    for name, group in trajectory.groups.items():
        first = group.obs[0].numpy().copy()
        met.groups[name].first = first
        met.groups[name].see(first)
    began = time.perf_counter()
    while met.steps < steps and (met.steps == 0 or time.perf_counter() - began < seconds) and met.fault is None:
        taken = rolls.roll()
        for name, group in taken.groups.items():
            _add(met.groups[name], group, taken)
        _count(met, taken.terminated.numpy(), taken.truncated.numpy(), ages)
        met.steps += taken.horizon
        met.fault = rolls.fault()
    met.seconds = time.perf_counter() - began
    return met


def _add(met: GroupExperience, taken: GroupTrajectory, trajectory: Trajectory) -> None:
    met.see(taken.obs[1:].numpy())
    if trajectory.truncated.any():
        slots = trajectory.final_slot()
        ends, environments = torch.nonzero(trajectory.truncated, as_tuple=True)
        met.see(taken.final_obs[slots[ends, environments], environments].numpy())
    met.earn(taken.reward.numpy())
    if taken.mask is not None:
        met.allow(taken.mask[:-1].numpy())


def _count(met: Experience, terminated: np.ndarray, truncated: np.ndarray, ages: np.ndarray) -> None:
    """Count episodes by their ages; `ages` [N] are the steps of the current episodes and are changed in place."""
    for dead, cut in zip(terminated, truncated, strict=True):
        ages += 1
        np.add.at(met.reached, ages, 1)
        np.add.at(met.terminated, ages[dead], 1)
        np.add.at(met.truncated, ages[cut], 1)
        ages[dead | cut] = 0


ENOUGH = 20
"""Fewest episodes, or steps, that allow a judgement."""
SHORT = 3.0
"""Mean steps of an episode below which there is hardly time to act."""
ROUNDING = 1e-5
"""Share of a bound by which an observation may exceed it, because float32 rounds."""
HUGE_OBSERVATION = 1e4
TINY_OBSERVATION = 1e-5
HUGE_REWARD = 1e3
TINY_REWARD = 1e-4
RATIO = 1e3
"""Largest ratio between the mean sizes of the rewards of two groups."""


def judge_experience(met: Experience, environment: Environment | None) -> Iterator[Finding]:
    """Yield the findings; `environment` is None if it is not made of kernels."""
    yield from judge("finite numbers", finite(met, environment), met.described)
    yield from judge("observations", observations(met, environment), "within their bounds, no constant feature")
    ranges = "; ".join(f"{name}: {group.reward_low:.4g} to {group.reward_high:.4g}" for name, group in met.groups.items())
    yield from judge("rewards", rewards(met, environment), ranges)
    yield from judge("episodes", ends(met, environment), f"{met.terminated.sum():,} terminated, {met.truncated.sum():,} truncated")
    yield from judge("resets", beginnings(met, environment), f"{met.n_envs} environments begin differently")
    if any(group.masks for group in met.groups.values()):
        yield from judge("masks", masks(met, environment), "each action is sometimes allowed and sometimes not, or always allowed")


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
            text = f"{name}: reaches {seen:.6g}, beyond its bounds {low:.6g} to {high:.6g}; widen the Box or correct it{more}"
            # Many environments of libraries have spaces that are too narrow, such as LunarLander, and train all the same.
            yield doubt(text) if environment is None else Problem(text)
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
    same = group.low == group.high
    for field in group.spec.observation.fields:  # cells may be constant where channels are not
        cells = same[field.columns].reshape(field.order)
        same[field.columns] = np.broadcast_to(cells.all(field.cell_axes, keepdims=True), cells.shape).ravel()
    constant = np.flatnonzero(same)
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
            starts = group.spec.action.starts
            first = starts[0] if len(starts) == 1 else 0  # of several choices `k` counts all
            yield doubt(f"{name} never allowed action {listed(never + first)} in {met.steps:,} steps{where}; is a condition wrong?")


def ends(met: Experience, environment: Environment | None) -> Iterator[Problem]:
    """Find episodes that never end, end at once, or end in a step that looks like a time limit."""
    limit = met.spec.time_limit
    died, cut = int(met.terminated.sum()), int(met.truncated.sum())
    where = "" if environment is None else ", " + listed(dict.fromkeys(place_of(phase.function) for phase in environment.phases))
    if limit == 1:
        yield Problem("time_limit=1 ends every episode in its first step; raise time_limit")
    elif died and died == met.terminated[1] and not cut and met.ended >= ENOUGH:
        yield Problem(f"all {died:,} episodes terminated in their first step{where}; is the condition of terminated inverted?")
    elif met.ended >= ENOUGH:
        first = int(met.terminated[1])
        if first > 0.5 * met.ended:
            yield Problem(f"{first:,} of {met.ended:,} episodes terminated in their first step{where}; correct reset or the condition")
        elif _mean_length(met) < SHORT:
            yield doubt(f"episodes have {_mean_length(met):.1f} steps on average{where}; do they end too early?")
        if first <= 0.5 * met.ended:
            yield from _hidden_limit(met, where)
    if not died:
        yield from _never(met, environment, where)


def _never(met: Experience, environment: Environment | None, where: str) -> Iterator[Problem]:
    limit, steps = met.spec.time_limit, f"{met.steps:,} steps of {met.n_envs} environments"
    intended = environment is not None and not can_terminate(environment)
    if limit is None:
        verdict = Problem if intended else doubt
        yield verdict(f"no episode ended in {steps}{where}, and there is no time_limit; set terminated or time_limit")
    elif not met.truncated.any() and met.steps < limit and intended:
        yield doubt(
            f"no episode ended in {steps}: terminated is always False{where} and time_limit={limit:,} is far away; is it too large?"
        )
    elif not intended:
        cut = f", the time limit of {limit:,} steps ended all" if met.truncated.any() else f"; time_limit={limit:,} was not reached"
        text = f"terminated was never set in {steps}{where}{cut}; is the goal only rare for random actions, or the condition wrong?"
        # Whether a class ever sets it cannot be read, and many end by their time limit only.
        yield Problem(text, "note" if environment is None and met.truncated.any() else "warning")


def _hidden_limit(met: Experience, where: str) -> Iterator[Problem]:
    """Find a step in which every episode that reaches it terminates, while few terminate in the step before."""
    reached, terminated = met.reached[: len(met.terminated)], met.terminated
    for age in range(len(terminated) - 1, 4, -1):
        if not reached[age]:
            continue
        # Only the last step that any episode reached can be such a limit.
        before = terminated[age - 1] / max(1, reached[age - 1])
        if reached[age] >= 8 and terminated[age] == reached[age] and before < 0.5:
            yield doubt(
                f"every episode that reached step {age} terminated there ({terminated[age]:,}){where}: if this is a time limit, set"
                f" time_limit={age} instead, so that the value of what would follow counts"
            )
        return


def beginnings(met: Experience, environment: Environment | None) -> Iterator[Problem]:
    """Find environments that all begin alike."""
    if met.n_envs < 2:
        return
    same = []
    for name, group in met.groups.items():
        assert group.first is not None
        if np.all(group.first == group.first[:1]):
            where = f", {place_of(environment.group(name).reset)}" if environment else ""
            same.append(f"{name}{where}")
    if len(same) == len(met.groups):
        yield doubt(f"every episode begins with the same observation: {listed(same)}; draw the start with rng if it should vary")


def can_terminate(environment: Environment) -> bool:
    """Return whether a phase may return anything but False as its third value, as far as its source tells."""
    for phase in environment.phases:
        values = [statement.value for statement in returns(phase.function)]
        thirds = [value.elts[2] if isinstance(value, ast.Tuple) and len(value.elts) == 3 else None for value in values]
        if not thirds or any(not isinstance(third, ast.Constant) or third.value is not False for third in thirds):
            return True
    return False


def _mean_length(met: Experience) -> float:
    ages = np.arange(len(met.terminated))
    return float(((met.terminated + met.truncated) * ages).sum() / met.ended)
