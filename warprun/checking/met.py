"""All checks of what random actions met."""

from __future__ import annotations

from collections.abc import Iterator

from warprun.checking.episodes import beginnings, ends
from warprun.checking.experience import Experience
from warprun.checking.findings import Finding, judge
from warprun.checking.ranges import finite, masks, observations, rewards
from warprun.environment import Environment


def judge_experience(met: Experience, environment: Environment | None) -> Iterator[Finding]:
    """Return the findings; `environment` is None if it is not made of kernels."""
    yield from judge("finite numbers", finite(met, environment), met.described)
    yield from judge("observations", observations(met, environment), "within their bounds, no constant feature")
    yield from judge("rewards", rewards(met, environment), _ranges(met))
    yield from judge("episodes", ends(met, environment), _lengths(met))
    yield from judge("resets", beginnings(met, environment), f"{met.n_envs} environments begin differently")
    if any(group.masks for group in met.groups.values()):
        yield from judge("masks", masks(met, environment), "each action is sometimes allowed and sometimes not, or always allowed")


def _ranges(met: Experience) -> str:
    return "; ".join(f"{name}: {group.reward_low:.4g} to {group.reward_high:.4g}" for name, group in met.groups.items())


def _lengths(met: Experience) -> str:
    return f"{met.terminated.sum():,} terminated, {met.truncated.sum():,} truncated"
