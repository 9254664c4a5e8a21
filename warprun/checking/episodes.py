"""Checks of the beginnings and the ends of episodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from warprun.checking.experience import Experience
from warprun.checking.findings import Problem, doubt
from warprun.checking.names import listed, place_of, returns
from warprun.environment import Environment

ENOUGH = 20
"""Episodes from which on their ends say something."""
SHORT = 3.0
"""Mean steps of an episode that hardly leave time to act."""


def ends(met: Experience, environment: Environment | None) -> Iterator[Problem]:
    """Find episodes that never end, end at once, or end in a step that looks like a time limit."""
    limit = met.spec.time_limit
    died, cut = int(met.terminated.sum()), int(met.truncated.sum())
    where = _where(environment)
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
        yield doubt(f"terminated was never set in {steps}{where}{cut}; is the goal only rare for random actions, or the condition wrong?")


def _hidden_limit(met: Experience, where: str) -> Iterator[Problem]:
    """Find a step in which all episodes terminate that reach it, while few do in the step before."""
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
        statements = returns(phase.function)
        if not statements or any(not _returns_false(statement) for statement in statements):
            return True
    return False


def _returns_false(statement: ast.Return) -> bool:
    value = statement.value
    if not isinstance(value, ast.Tuple) or len(value.elts) != 3:
        return False
    last = value.elts[2]
    return isinstance(last, ast.Constant) and last.value is False


def _mean_length(met: Experience) -> float:
    ages = np.arange(len(met.terminated))
    return float(((met.terminated + met.truncated) * ages).sum() / met.ended)


def _where(environment: Environment | None) -> str:
    if environment is None:
        return ""
    return ", " + listed(dict.fromkeys(place_of(phase.function) for phase in environment.phases))
