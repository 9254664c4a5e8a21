"""Checks of one environment with the interface of Gymnasium, by itself: what its methods return, against its spaces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import Any

import numpy as np
from gymnasium import spaces

from warprun.checking.findings import Problem, doubt
from warprun.errors import shown
from warprun.simulation.external import mpi
from warprun.simulation.external.recipe import Closes, ExternalEnvironment

STEPS = 300
ROUNDING = 1e-5


def single(environment: ExternalEnvironment) -> Iterator[Problem]:
    """Find observations outside their space, and rewards that are no numbers; each kind is told once. What the methods raise, passes."""
    env = mpi.make(environment.recipe)
    with closing(env) if isinstance(env, Closes) else nullcontext():
        yield from _tried(environment.title, env)


def _tried(title: str, env: Any) -> Iterator[Problem]:
    space = env.observation_space
    told: set[str] = set()

    def new(problems: Iterator[tuple[str, Problem]]) -> Iterator[Problem]:
        for kind, problem in problems:
            if kind not in told:
                told.add(kind)
                yield problem

    env.action_space.seed(0)
    observation = _observation(env.reset(seed=0))
    yield from new(_seen(title, "reset", space, observation))
    again = _observation(env.reset(seed=0))
    if not _same(observation, again):
        yield Problem(f"{title}: reset(seed=0) gives another observation the second time; make the generator from the seed in reset")
    for _ in range(STEPS):
        returned = env.step(env.action_space.sample())
        if not isinstance(returned, tuple) or len(returned) != 5:
            yield Problem(f"{title}: step must return (observation, reward, terminated, truncated, info), not {shown(returned)}")
            return
        observation, reward, terminated, truncated, _ = returned
        yield from new(_seen(title, "step", space, observation))
        yield from new(_returned(title, reward, terminated, truncated))
        if terminated or truncated:
            env.reset()


def _observation(returned: object) -> Any:
    return returned[0] if isinstance(returned, tuple) and len(returned) == 2 else returned


def _returned(title: str, reward: Any, terminated: object, truncated: object) -> Iterator[tuple[str, Problem]]:
    if isinstance(reward, bool) or not isinstance(reward, int | float | np.integer | np.floating):
        kind = shown(reward) if np.ndim(reward) == 0 else f"an array of the shape {np.shape(reward)}"
        yield "reward", Problem(f"{title}: the reward must be a number; step returns {kind}")
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, bool | np.bool_):
            yield name, Problem(f"{title}: {name} must be True or False; step returns {shown(value)}")


def _seen(title: str, method: str, space: Any, observation: Any) -> Iterator[tuple[str, Problem]]:
    """Find what is wrong with an observation; parts of a `Dict` or `Tuple` are not told apart."""
    if not isinstance(space, spaces.Box):
        if not space.contains(observation):
            yield "space", Problem(f"{title}: the observation of {method} is not in {space}: {shown(observation)}")
        return
    given = np.asarray(observation)
    if given.shape != space.shape:
        yield "shape", Problem(f"{title}: the observation of {method} has the shape {given.shape}, and the observation space {space.shape}")
        return
    if given.dtype.kind not in "fiub":
        yield "dtype", Problem(f"{title}: the observation of {method} has no numbers: {shown(observation)}")
        return
    if given.dtype != space.dtype:
        yield (
            "dtype",
            doubt(f"{title}: the observation of {method} has dtype {given.dtype}, and the observation space {space.dtype}; convert it"),
        )
    if not np.isfinite(given).all():
        n = int(np.flatnonzero(~np.isfinite(given))[0])
        yield "finite", Problem(f"{title}: number {n} of the observation of {method} is {given.flat[n]}; look for divisions, log and sqrt")
        return
    slack = ROUNDING * np.maximum(1.0, np.abs(given))
    outside = np.flatnonzero((given < space.low - slack) | (given > space.high + slack))
    if outside.size:
        n = int(outside[0])
        bounds = f"{space.low.flat[n]:.6g} to {space.high.flat[n]:.6g}"
        yield "bounds", Problem(f"{title}: number {n} of the observation of {method} is {given.flat[n]:.6g}, beyond its bounds {bounds}")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and all(_same(one[key], other.get(key)) for key in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and all(_same(a, b) for a, b in zip(one, other, strict=False))
    return bool(np.array_equal(np.asarray(one), np.asarray(other), equal_nan=np.asarray(one).dtype.kind == "f"))
