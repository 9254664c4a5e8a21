"""Random actions that reach more than independent draws do, and a short trial run of an environment with them that checks every index.

Compiled kernels check no index: they would access other memory. So the functions of the environment are compiled one by one, with bounds
checks, and plain Python calls them.
"""

from __future__ import annotations

import math
import time
import traceback
import types
import warnings
from collections.abc import Iterable
from typing import Unpack

import numpy as np

from warprun.environment import Environment, KernelFunction
from warprun.errors import UserError, one_line
from warprun.kernels import compile as kernels
from warprun.kernels import integers
from warprun.simulation.plain import OfSeededRun, PlainEnvironment, Seen
from warprun.spec import GroupSpec, Space, Spec
from warprun.user_code import source_line

ENVIRONMENTS = 2
STEPS = 3000
SECONDS = 0.3
"""The trial ends STEPS steps after its start or SECONDS seconds after its first step, whichever is earlier."""

PERSISTENCE = (0.0, 0.5, 0.9, 0.98)
"""Chance that an environment repeats its actions, in turn for every fourth environment."""

Actions = dict[str, np.ndarray]
"""Group -> [N, A, C], int32, or float32 in the units of the policy."""
Masks = dict[str, np.ndarray | None]
"""Group -> [N, A, M], whether an action is allowed; None: all are."""


class Explorer:
    """Draws actions for `n_envs` environments. The draws depend on the seed, the masks and the number of calls only."""

    def __init__(self, spec: Spec, n_envs: int, seed: int = 0) -> None:
        self.spec, self.n_envs = spec, n_envs
        self._random = np.random.default_rng(seed)
        self._scores: dict[str, np.ndarray] = {}

    def choose(self, masks: Masks) -> Actions:
        """Return one action for every actor; forbidden ones are not chosen unless all are forbidden."""
        return {group.name: self._of(group, masks[group.name]) for group in self.spec.groups}

    def _of(self, group: GroupSpec, mask: np.ndarray | None) -> np.ndarray:
        scores = self._fresh(group)
        repeats = self._random.random((self.n_envs, 1, 1)) < np.resize(PERSISTENCE, self.n_envs)[:, None, None]
        if group.name in self._scores:
            scores = np.where(repeats, self._scores[group.name], scores)
        self._scores[group.name] = scores
        return best(group.action, scores, mask)

    def _fresh(self, group: GroupSpec) -> np.ndarray:
        """Return a score for each option of a choice, then real numbers, [N, A, options + reals]."""
        space, actors = group.action, (self.n_envs, group.size)
        drawn = self._random.standard_normal((*actors, space.reals))
        bounded = np.arange(self.n_envs)[:, None, None] // len(PERSISTENCE) % 2 == 1
        finite = np.array([math.isfinite(low) and math.isfinite(high) for low, high in space.bounds()], bool)
        # Where both bounds are finite, -1 and 1 are the bounds.
        reals = np.where(bounded & finite, np.sign(drawn), drawn)
        return np.concatenate([self._random.random((*actors, sum(space.choices))), reals], axis=-1)


def best(space: Space, scores: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return the allowed option with the highest score for every choice, then the real numbers, [..., C] in the dtype of actions."""
    scores = scores if mask is None else np.where(mask, scores, -1.0)
    *options, reals = np.split(scores, np.cumsum(space.choices, dtype=int), axis=-1)
    return np.concatenate([*(part.argmax(-1)[..., None] for part in options), reals], axis=-1).astype(space.dtype)


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
            raise UserError(f"{source_line(function)}: {one_line(error)}") from error

    return call


def try_out(environment: Environment, functions: list[types.FunctionType], **of_run: Unpack[OfSeededRun]) -> int:
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
    frame = raised_in(error, [each for each in kernels.reached(functions) if integers.in_environment(each)])
    return f"{frame.filename}:{frame.lineno} in {frame.name}" if frame else None


def raised_in(error: Exception, functions: Iterable[KernelFunction]) -> traceback.FrameSummary | None:
    """Return the innermost place of an error in the files of functions; None if it is in none of them."""
    files = {function.__code__.co_filename for function in functions}
    return next((each for each in reversed(traceback.extract_tb(error.__traceback__)) if each.filename in files), None)
