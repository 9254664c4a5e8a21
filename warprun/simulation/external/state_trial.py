"""A trial of `get_state` and `set_state`: another environment that gets the state must go on as the one that gave it. No torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from warprun.errors import UserError, counted
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.external.slice import SharedArrays, Slice, layout
from warprun.simulation.external.sources import EnvironmentFailed
from warprun.simulation.external.workers import Job, make_slice
from warprun.simulation.trial import Explorer
from warprun.spec import choices

BEFORE = 7
"""Steps before the state is taken: in the middle of an episode."""
STEPS, SECONDS = 64, 1.0
"""Most steps after it, and their longest time."""
CLOSE = 1e-4
"""Relative difference that counts as none: a state may be rounded."""
RESULTS = ("reward", "terminated", "truncated")
"""Results of a step in row 0; observations and masks are in row 1."""
NAMES = {"obs": "observation", "mask": "action_mask", "reward": "reward", "terminated": "terminated", "truncated": "truncated"}
OF_EPISODE = ("state", "clock", "episode_return")
"""Arrays of an episode that goes on."""


def try_state(environment: ExternalEnvironment, steps: int = STEPS, seconds: float = SECONDS) -> int:
    """Let two environments, with different seeds, go on from the state of the first with the same actions; return the number of steps.

    Raises UserError if they give other results, and for what the methods raise.
    """
    arrays = SharedArrays(layout(environment, 2, 1, 1))
    job = Job(
        recipe=asdict(environment.recipe),
        worker=0,
        begin=0,
        end=2,
        time_limit=environment.spec.time_limit,
        choices=list(choices(environment.spec.groups[0].action)),
        replaces=True,
    )
    try:
        part = make_slice(arrays.arrays, job)
        try:
            return _tried(environment, part, arrays.arrays, steps, seconds)
        finally:
            part.source.close()
    except EnvironmentFailed as error:
        raise UserError(f"{environment.title} failed in {error.action}, in a trial of get_state and set_state: {error.reason}") from None
    finally:
        arrays.close()


def _tried(environment: ExternalEnvironment, part: Slice, arrays: Mapping[str, np.ndarray], steps: int, seconds: float) -> int:
    explorer = Explorer(environment.spec, 2)

    def act(row: int) -> np.ndarray:
        mask = arrays["mask"][row] if "mask" in arrays else None
        arrays["action"][0] = explorer.choose({environment.group: mask})[environment.group]
        return arrays["action"][0]

    arrays["seed"][:] = 1, 2
    part.reset()
    for step in range(BEFORE):
        act(min(step, 1))
        part.step(0, step)
    part.save()
    for name in OF_EPISODE:
        arrays[name][1] = arrays[name][0]
    for name in ("obs", "mask"):
        if name in arrays:
            arrays[name][1, 1] = arrays[name][1, 0]
    part.load()
    end = time.perf_counter() + seconds
    for taken in range(steps):
        actions = act(1)
        actions[1] = actions[0]
        part.step(0, BEFORE + taken)
        given = {name: arrays[name][0] for name in RESULTS} | {name: arrays[name][1] for name in ("obs", "mask") if name in arrays}
        for name, (one, other) in given.items():
            if not np.allclose(one, other, CLOSE, CLOSE, equal_nan=True):
                raise UserError(
                    f"{environment.title}: with the state that get_state returned, another environment gave another {NAMES[name]}"
                    f" {counted(taken + 1, 'step')} later: get_state returns not all that it depends on, or set_state sets not all of it;"
                    " random generators are part of it"
                )
        if time.perf_counter() > end:
            break
    return taken + 1
