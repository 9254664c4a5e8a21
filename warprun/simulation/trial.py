"""A short trial run of an environment that checks every index. Compiled kernels do not: they would access other memory.

The functions of the environment are compiled one by one, with bounds checks, and plain Python calls them.
"""

from __future__ import annotations

import math
import time
import traceback
import types
import warnings
from typing import Any

import numpy as np

from warprun.environment import Environment, KernelFunction
from warprun.errors import UserError, one_line
from warprun.kernels import compile as kernels
from warprun.kernels import integers
from warprun.kernels.check import place
from warprun.simulation.explorer import Explorer
from warprun.simulation.plain import PlainEnvironment, Seen

ENVIRONMENTS = 2
STEPS = 3000
SECONDS = 1.0
"""The trial ends STEPS steps after its start or SECONDS seconds after its first step, whichever is earlier."""


def trial_function(function: KernelFunction) -> KernelFunction:
    """Return what a trial calls in place of a function of the environment."""
    checked = kernels.checked_function(function)
    plain = kernels.plain_function(function)

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


def try_out(environment: Environment, functions: list[types.FunctionType], **of_run: Any) -> int:
    """Play some environments with random actions and return the number of steps.

    `functions` are those of the environment, `of_run` as for `PlainEnvironment`. Raises UserError for an index
    out of bounds, with file, line and function.
    """
    played = [PlainEnvironment(environment, number, call=trial_function, **of_run) for number in range(ENVIRONMENTS)]
    explorer, end, steps = Explorer(environment.spec, ENVIRONMENTS), math.inf, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # compiled kernels overflow without a warning, too
        try:
            seen = [each.reset() for each in played]
            while steps < STEPS and time.perf_counter() < end:
                actions = explorer.choose(_masks(environment, seen))
                seen = [each.step({name: rows[n] for name, rows in actions.items()}).seen for n, each in enumerate(played)]
                steps += 1
                end = min(end, time.perf_counter() + SECONDS)  # the first step may include compilation
        except UserError:
            raise
        except IndexError as error:
            raise out_of_bounds(error, functions) from error
        except Exception as error:  # functions of the user run as plain Python here, to find the line
            where = _place(error, functions)
            if where is None:
                raise
            raise UserError(f"{where}: {one_line(error)}") from error
    return steps


def _masks(environment: Environment, seen: list[Seen]) -> dict[str, np.ndarray | None]:
    return {g.name: np.stack([each.mask[g.name] for each in seen]) if g.mask else None for g in environment.groups}


def out_of_bounds(error: IndexError, functions: list[types.FunctionType]) -> UserError:
    """Return the error for a function of an environment that indexed beyond an array in plain Python."""
    where = _place(error, functions) or "a function of the environment"
    return UserError(f"{where}: {error}; kernels would read or write other memory there")


def _place(error: Exception, functions: list[types.FunctionType]) -> str | None:
    """Return the file, the line and the function of the environment in which an error was raised; None if in none."""
    files = {function.__code__.co_filename for function in kernels.reached(functions) if integers.in_environment(function)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else None
