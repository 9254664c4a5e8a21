"""A short run of an environment in which every index is checked: kernels read and write whatever lies there.

Its kernels are the same statements, interpreted; its functions are compiled one by one, as `check.py` does.
"""

from __future__ import annotations

import math
import time
import traceback
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from warprun.environment import Box, Group, MultiDiscrete
from warprun.errors import UserError
from warprun.kernels import compile as kernels
from warprun.kernels import integers
from warprun.simulation.device import Device

if TYPE_CHECKING:
    from warprun.simulation.kernel_engine import Engine

INTERPRETER = Device("python", "a trial")
ENVIRONMENTS = 2
STEPS = 1000
SECONDS = 2.0
"""The trial ends after so many steps, or with the step in which this time, counted from the first, is over."""


def interpreted(source: str) -> str:
    """Return the source of a kernel module that stays uncompiled."""
    return source.replace("from numba import njit", f"from {__name__} import uncompiled as njit")


def uncompiled(**options: Any) -> Callable[[Any], Any]:
    """Stand for `njit` in an interpreted module."""
    return lambda function: function


def trial_function(function: Any) -> Any:
    """Return what an interpreted module calls for a function of the environment or of the engine."""
    if not isinstance(function, types.FunctionType) or not integers.in_environment(function):
        return kernels.plain_function(function)
    checked, plain = kernels.checked_function(function), kernels.plain_function(function)

    def call(*arguments: Any) -> Any:
        try:
            return integers.widened(checked(*arguments))
        except IndexError:
            # Compiled code does not say where; the same call as plain Python does.
            plain(*arguments)
            raise

    return call


def try_out(engine: Engine) -> None:
    """Step an engine on `INTERPRETER` with random actions; raise UserError for an index out of bounds, with file, line and function."""
    random = np.random.default_rng(0)
    end = math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # kernels overflow without a word, too
        engine.reset()
        while engine.steps < STEPS and time.perf_counter() < end:
            _act(engine, random)
            engine.step(0)
            engine.carry_over()
            end = min(end, time.perf_counter() + SECONDS)  # the first step may have compiled


def out_of_bounds(error: IndexError, functions: list[Any]) -> UserError:
    """Return what to tell a person whose function, run as plain Python, indexed beyond an array."""
    files = {function.__code__.co_filename for function in kernels.reached(functions)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    where = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else "a function of the environment"
    return UserError(f"{where}: {error}; kernels would read or write other memory there")


def _act(engine: Engine, random: np.random.Generator) -> None:
    for group in engine.environment.groups:
        taken = engine.trajectory.groups[group.name]
        allowed = None if taken.mask is None else taken.mask[0].numpy()
        taken.action[0].copy_(torch.from_numpy(_actions(group, tuple(taken.action.shape[1:3]), allowed, random)))


def _actions(group: Group, actors: tuple[int, ...], allowed: np.ndarray | None, random: np.random.Generator) -> np.ndarray:
    """Return one random action, of those allowed, for every actor [N, A, C]."""
    space = group.action
    if isinstance(space, Box):
        return random.standard_normal((*actors, space.size), np.float32)
    sizes = space.nvec if isinstance(space, MultiDiscrete) else (space.n,)
    scores = random.random((*actors, sum(sizes)))
    scores = scores if allowed is None else np.where(allowed, scores, -1.0)
    choices = np.split(scores, np.cumsum(sizes)[:-1], axis=-1)
    return np.stack([choice.argmax(-1) for choice in choices], axis=-1).astype(np.int32)
