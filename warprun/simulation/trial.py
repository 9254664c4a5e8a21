"""A short trial run of an environment that checks every index. Compiled kernels do not: they would access other memory.

The statements of the kernels are interpreted. The functions of the environment are compiled one by one, with bounds checks.
"""

from __future__ import annotations

import math
import time
import traceback
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import torch

from warprun.environment import Box, Group, MultiDiscrete
from warprun.errors import UserError, one_line
from warprun.kernels import compile as kernels
from warprun.kernels import integers
from warprun.kernels.check import place
from warprun.simulation.device import Device

if TYPE_CHECKING:
    from warprun.simulation.kernel_engine import KernelEngine

T = TypeVar("T")

INTERPRETER = Device("python", "a trial")
ENVIRONMENTS = 2
STEPS = 1000
SECONDS = 2.0
"""The trial ends STEPS steps after its start or SECONDS seconds after its first step, whichever is earlier."""
PLAIN = {
    "numba import njit": f"{__name__} import uncompiled as njit",
    "lanes import lane_loop": "lanes import unmarked as lane_loop",
    "views import of_tile": "views import part_of_tile as of_tile",
}
"""Imports of a compiled kernel module -> those of an interpreted one."""


def interpreted(source: str) -> str:
    """Return the source of a kernel module with plain Python in place of `njit` and of what only compiled code can call."""
    for compiled, plain in PLAIN.items():
        source = source.replace(compiled, plain)
    return source


def uncompiled(**options: object) -> Callable[[T], T]:
    """Replace `njit` in an interpreted module: leave the function as it is."""
    return lambda function: function


def trial_function(function: object) -> object:
    """Return what an interpreted module calls in place of a function of the environment or of the engine."""
    if not isinstance(function, types.FunctionType) or not integers.in_environment(function):
        return kernels.plain_function(function)
    checked = kernels.checked_function(function)
    plain = cast(Callable[..., object], kernels.plain_function(function))

    def call(*arguments: object) -> object:
        try:
            return integers.widened(checked(*arguments))
        except IndexError:
            # Compiled code does not report the line; the same call in plain Python does.
            plain(*arguments)
            raise
        except Exception as error:  # from Numba, such as None in place of a number
            plain(*arguments)
            raise UserError(f"{place(function)}: {one_line(error)}") from error

    return call


def try_out(engine: KernelEngine) -> None:
    """Step an engine on `INTERPRETER` with random actions; raise UserError for an index out of bounds, with file, line and function."""
    random = np.random.default_rng(0)
    end = math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # compiled kernels overflow without a warning, too
        try:
            engine.reset()
            while engine.steps < STEPS and time.perf_counter() < end:
                _act(engine, random)
                engine.step(0)
                engine.carry_over()
                end = min(end, time.perf_counter() + SECONDS)  # the first step may include compilation
        except UserError:
            raise
        except Exception as error:  # functions of the user run as plain Python here, to find the line
            where = _place(error, engine.functions)
            if where is None:
                raise
            raise UserError(f"{where}: {one_line(error)}") from error


def out_of_bounds(error: IndexError, functions: list[types.FunctionType]) -> UserError:
    """Return the error for a function of an environment that indexed beyond an array in plain Python."""
    where = _place(error, functions) or "a function of the environment"
    return UserError(f"{where}: {error}; kernels would read or write other memory there")


def _place(error: Exception, functions: list[types.FunctionType]) -> str | None:
    """Return the file, the line and the function of the environment in which an error was raised; None if in none."""
    files = {function.__code__.co_filename for function in kernels.reached(functions) if integers.in_environment(function)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else None


def _act(engine: KernelEngine, random: np.random.Generator) -> None:
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
