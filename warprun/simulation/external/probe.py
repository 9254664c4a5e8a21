"""Learn the spaces of an environment from one that is made for this. No numba, no torch."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout, suppress
from dataclasses import asdict
from typing import Any

import numpy as np
from gymnasium import Env

from warprun.errors import ContractError, shown
from warprun.simulation.external import mpi
from warprun.simulation.external.recipe import Closes, ExternalEnvironment, Recipe
from warprun.simulation.external.sources import mask_of, resets_in_step, saver_of
from warprun.simulation.external.spaces import actions, observations
from warprun.spec import Box, GroupSpec, Spec

GROUP = "agent"
"""Name of the only group."""
MEMBERS = ("observation_space", "action_space", "reset", "step")


def examine(title: str, recipe: Recipe, time_limit: int | None, *, timeout_s: float, masks: bool) -> ExternalEnvironment:
    """Make an environment, reset it, and return what a run has to know of it.

    `time_limit` None: that of the environment, if it tells one. `masks`: use `action_mask` in the info of a reset. Raises ContractError,
    UserError, and what the environment raises.
    """
    key = json.dumps([title, asdict(recipe), time_limit, timeout_s, masks])
    if key not in _known:
        look = _examine_vector if recipe.vector else _examine_single
        with redirect_stdout(sys.stderr):  # a print must not stand in the output of a command
            _known[key] = look(title, recipe, time_limit, timeout_s, masks)
    return _known[key]


_known: dict[str, ExternalEnvironment] = {}
"""What was learnt in this process: a run asks several times, and to make an environment can take seconds."""


def _examine_single(title: str, recipe: Recipe, time_limit: int | None, timeout_s: float, masks: bool) -> ExternalEnvironment:
    env = mpi.make(recipe)
    try:
        missing = [name for name in MEMBERS if name not in dir(env)]
        if missing:
            raise ContractError(f"{title} has no {', '.join(missing)}; an environment has {', '.join(MEMBERS)}")
        if time_limit is None and isinstance(env, Env) and env.spec is not None:
            time_limit = env.spec.max_episode_steps
        returned = env.reset(seed=0)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise ContractError(f"reset of {title} must return (observation, info); it returned {shown(returned)}")
        spec = _spec(env.observation_space, env.action_space, returned[1] if masks else {}, time_limit)
        state = None
        saver = saver_of(env)
        if saver is not None:
            saved = np.asarray(saver.get_state())
            if saved.dtype.kind not in "biuf" or not saved.size:
                raise ContractError(f"get_state of {title} must return an array of numbers, not {shown(saved)}")
            state = (saved.dtype.str, saved.shape or (1,))
        return ExternalEnvironment(title, recipe, spec, timeout_s, state)
    finally:
        if isinstance(env, Closes):
            with suppress(Exception):  # it would hide an error before
                env.close()


def _examine_vector(title: str, recipe: Recipe, time_limit: int | None, timeout_s: float, masks: bool) -> ExternalEnvironment:
    env = mpi.make(recipe, num_envs=1)
    try:
        resets_in_step(env)
        _, info = env.reset(seed=0)
        one = {"action_mask": info["action_mask"][0]} if masks and "action_mask" in info else {}
        if time_limit is None and env.spec is not None:
            time_limit = env.spec.max_episode_steps
        spec = _spec(env.single_observation_space, env.single_action_space, one, time_limit)
        return ExternalEnvironment(title, recipe, spec, timeout_s, None)
    finally:
        with suppress(Exception):
            env.close()


def _spec(observation_space: Any, action_space: Any, info: Any, time_limit: int | None) -> Spec:
    action = actions(action_space).space
    masked = isinstance(info, dict) and "action_mask" in info
    if masked:
        if isinstance(action, Box):
            raise ContractError("info['action_mask'] is for choices, and the action space is a Box")
        mask_of(info, action.outputs)
    group = GroupSpec(GROUP, 1, Box(observations(observation_space).size), action, masked)
    return Spec((group,), time_limit, early_truncation=True)
