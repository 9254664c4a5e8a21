"""Statistics of what random actions meet: ranges of observations and rewards, masks, lengths of episodes."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from warprun.checking.rolls import Rolls
from warprun.simulation.faults import Fault
from warprun.simulation.trajectory import GroupTrajectory, Trajectory
from warprun.spec import GroupSpec, Spec


class GroupExperience:
    """The numbers of one group."""

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
    """The observations and rewards that `steps` steps of `n_envs` environments met."""

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
        """How much was tried."""
        return f"{self.n_envs} environments, {self.steps:,} steps, {self.ended:,} episodes"


def gather(rolls: Rolls, spec: Spec, *, steps: int, seconds: float) -> Experience:
    """Roll out at most `steps` steps or `seconds` seconds, at least one rollout, and return what was met; a fault ends it."""
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
