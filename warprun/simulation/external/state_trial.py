"""A trial of `get_state` and `set_state`: another environment that gets the state must go on as the one that gave it. No torch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from warprun.errors import UserError, counted
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.external.slice import LOAD, RESET, SAVE, STEP, SharedArrays, Slice, layout
from warprun.simulation.external.sources import EnvironmentFailed
from warprun.simulation.external.workers import Workers, begin
from warprun.simulation.trial import Explorer

BEFORE = 7
"""Most steps before the state is taken: in the middle of an episode."""
STEPS, SECONDS = 64, 1.0
"""Most steps after it, and the time after which no more are taken, before it nor after it."""
CLOSE = 1e-4
"""Relative difference that counts as none: a state may be rounded."""
RESULTS = ("reward", "terminated", "truncated")
"""Results of a step in row 0; observations and masks are in row 1."""
NAMES = {"obs": "observation", "mask": "action_mask", "reward": "reward", "terminated": "terminated", "truncated": "truncated"}
OF_EPISODE = ("state", "clock", "episode_return")
"""Arrays of an episode that goes on."""


@dataclass(frozen=True)
class Trial:
    """The result of a trial of one class."""

    steps: int
    """Steps that both environments took after the state was taken."""
    difference: str = ""
    """One line about the first result that differed; empty if none did."""


_known: dict[str, Trial] = {}
"""The trials of this process: the runs of a sweep need the same one."""


def known_trial(environment: ExternalEnvironment, workers: int) -> Trial:
    """Return the result of `try_state`, which is called once in a process for the same environment."""
    key = json.dumps([asdict(environment.recipe), min(workers, 2)])
    if key not in _known:
        _known[key] = try_state(environment, workers)
    return _known[key]


def try_state(environment: ExternalEnvironment, workers: int, steps: int = STEPS, seconds: float = SECONDS) -> Trial:
    """Let two environments, with different seeds, go on from the state of the first with the same actions, until their results differ.

    They are in the processes that a run with so many `workers` has for two. Raises UserError for what the methods raise.
    """
    workers = min(workers, 2)
    shared = SharedArrays(layout(environment, 2, 1, max(1, workers)))
    try:
        steppers = begin(environment, shared, workers, replaces=True)
        try:
            return _tried(environment, steppers, shared.arrays, steps, seconds)
        finally:
            steppers.close()
    except EnvironmentFailed as error:
        raise UserError(f"{environment.title} failed in {error.action}, in a trial of get_state and set_state: {error.reason}") from None
    finally:
        shared.close()


def _tried(
    environment: ExternalEnvironment, steppers: Workers | Slice, arrays: Mapping[str, np.ndarray], steps: int, seconds: float
) -> Trial:
    explorer = Explorer(environment.spec, 2)

    def act(row: int) -> np.ndarray:
        mask = arrays["mask"][row] if "mask" in arrays else None
        arrays["action"][0] = explorer.choose({environment.group: mask})[environment.group]
        return arrays["action"][0]

    arrays["seed"][:] = 1, 2
    steppers.run(RESET)
    end = time.perf_counter() + seconds
    for step in range(BEFORE):
        act(min(step, 1))
        steppers.run(STEP)
        if time.perf_counter() > end:
            break
    steppers.run(SAVE)
    for name in OF_EPISODE:
        arrays[name][1] = arrays[name][0]
    for name in ("obs", "mask"):
        if name in arrays:
            arrays[name][1, 1] = arrays[name][1, 0]
    steppers.run(LOAD)
    end = time.perf_counter() + seconds
    for taken in range(steps):
        actions = act(1)
        actions[1] = actions[0]
        steppers.run(STEP)
        given = {name: arrays[name][0] for name in RESULTS} | {name: arrays[name][1] for name in ("obs", "mask") if name in arrays}
        for name, (one, other) in given.items():
            if not np.allclose(one, other, CLOSE, CLOSE, equal_nan=True):
                return Trial(
                    taken + 1,
                    f"{environment.title}: with the state that get_state returned, another environment gave another {NAMES[name]}"
                    f" {counted(taken + 1, 'step')} later: get_state returns not all that it depends on, or set_state sets not all of it;"
                    " random generators are part of it",
                )
        if time.perf_counter() > end:
            break
    return Trial(taken + 1)
