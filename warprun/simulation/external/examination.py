"""The examination of an environment with the interface of Gymnasium, which is made and reset once before a run. No torch."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout, suppress
from dataclasses import asdict

import numpy as np
from gymnasium import Env, Wrapper, spaces
from gymnasium.wrappers import TimeLimit

from warprun.errors import ContractError, shown
from warprun.simulation.external import mpi
from warprun.simulation.external.recipe import Closes, ExternalEnvironment, Recipe, is_silent, method_place, told, unpaired
from warprun.simulation.external.spaces import actions, bounds_of, mask_of, observations, resets_in_step, saver_of
from warprun.spec import Box, GroupSpec, Spec

GROUP = "agent"
"""Name of the only group."""
MEMBERS = ("observation_space", "action_space", "reset", "step")


def _limit_of(env: object) -> int | None:
    """Return the time limit that an environment is registered with, or that one of its wrappers sets; None if there is none."""
    if isinstance(env, Env) and env.spec is not None and env.spec.max_episode_steps is not None:
        return env.spec.max_episode_steps
    if isinstance(env, TimeLimit):
        return env._max_episode_steps
    return _limit_of(env.env) if isinstance(env, Wrapper) else None


def _unpaired(env: object) -> str:
    """Return what `unpaired` says of an environment, or of those that it wraps."""
    return unpaired(type(env)) or (_unpaired(env.env) if isinstance(env, Wrapper) else "")


def place_within(env: object, name: str) -> str:
    """Return `method_place` of a method of an environment, or of those that it wraps: without the wrappers of libraries."""
    return method_place(type(env), name) or (place_within(env.env, name) if isinstance(env, Wrapper) else "")


def examine(
    title: str, recipe: Recipe, time_limit: int | None, *, timeout_s: float, masks: bool, channels: str | None = None
) -> ExternalEnvironment:
    """Make an environment, reset it, and return what a run has to know of it.

    `time_limit` None: that of the environment, if it tells one. `masks`: use `action_mask` in the info of a reset. `channels`: see
    `field_of`. Raises ContractError, UserError, and what the environment raises.
    """
    key = json.dumps([title, asdict(recipe), time_limit, timeout_s, masks, channels])
    if key not in _known:
        look = _examine_vector if recipe.vector else _examine_single
        with redirect_stdout(sys.stderr):  # a print must not stand in the output of a command
            _known[key] = look(title, recipe, time_limit, timeout_s, masks, channels)
    return _known[key]


_known: dict[str, ExternalEnvironment] = {}
"""Environments that this process knows: a run asks several times, and to make an environment can take seconds."""


def _examine_single(
    title: str, recipe: Recipe, time_limit: int | None, timeout_s: float, masks: bool, channels: str | None
) -> ExternalEnvironment:
    env = mpi.make(recipe)
    try:
        missing = [name for name in MEMBERS if name not in dir(env)]
        if missing:
            raise ContractError(f"{title} has no {', '.join(missing)}; an environment has {', '.join(MEMBERS)}")
        time_limit = _limit_of(env) if time_limit is None else time_limit
        places = (place_within(env, "reset"), place_within(env, "step"))
        try:
            returned = env.reset(seed=0)
        except TypeError as error:
            if not is_silent(error):
                raise
            raise ContractError(f"{places[0]}{told(error)}; write reset(self, seed=None)") from error
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise ContractError(f"{places[0]}reset of {title} must return (observation, info); it returned {shown(returned)}")
        try:
            spec = _spec(env.observation_space, env.action_space, returned[1] if masks else {}, time_limit, channels)
        except ContractError:
            raise
        except ValueError as error:  # of the mask
            raise ContractError(f"{places[0]}{error}") from error
        state = None
        saver = saver_of(env)
        if saver is not None:
            saved = np.asarray(saver.get_state())
            if saved.dtype.kind not in "biuf" or not saved.size:
                raise ContractError(f"get_state of {title} must return an array of numbers, not {shown(saved)}")
            state = (saved.dtype.str, saved.shape or (1,))
        return ExternalEnvironment(title, recipe, spec, timeout_s, state, "" if saver else _unpaired(env), places)
    finally:
        if isinstance(env, Closes):
            with suppress(Exception):  # it would hide an error before
                env.close()


def _examine_vector(
    title: str, recipe: Recipe, time_limit: int | None, timeout_s: float, masks: bool, channels: str | None
) -> ExternalEnvironment:
    env = mpi.make(recipe, num_envs=1)
    try:
        resets_in_step(env)
        _, info = env.reset(seed=0)
        one = {"action_mask": info["action_mask"][0]} if masks and "action_mask" in info else {}
        if time_limit is None and env.spec is not None:
            time_limit = env.spec.max_episode_steps
        spec = _spec(env.single_observation_space, env.single_action_space, one, time_limit, channels)
        return ExternalEnvironment(title, recipe, spec, timeout_s, None)
    finally:
        with suppress(Exception):
            env.close()


def _spec(observation_space: spaces.Space, action_space: spaces.Space, info: object, time_limit: int | None, channels: str | None) -> Spec:
    action = actions(action_space).space
    masked = isinstance(info, dict) and "action_mask" in info
    if masked:
        if not action.mask_entries:
            raise ContractError(f"info['action_mask'] is for choices, and the action space is {shown(action_space)}")
        mask_of(info, action.mask_entries)
    seen = observations(observation_space, channels)
    group = GroupSpec(GROUP, 1, Box(seen.size, *bounds_of(observation_space), seen.fields), action, masked, given=seen.given)
    return Spec((group,), time_limit, early_truncation=True)
