"""Compares the first steps of a training with plain Python: compiled code has to mean what its source says."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, NamedTuple, Unpack

import numpy as np

from warprun.environment import Environment, KernelFunction
from warprun.errors import UserError, one_line
from warprun.kernels import compile as kernels
from warprun.simulation.plain import OfSeededRun, PlainEnvironment, Rows, Seen, Taken
from warprun.simulation.trajectory import Trajectory
from warprun.simulation.trial import raised_in
from warprun.user_code import source_line

if TYPE_CHECKING:
    import torch

STEPS = 24
SECONDS = 0.2
"""A comparison ends after STEPS steps of each environment, or as soon as plain Python has taken SECONDS."""
TOLERANCE = 1e-3
"""Relative to 1 + |value|. Compiled code fuses multiplications and additions, which plain Python rounds apart."""
NUDGES = 12
"""How often a step that differs is repeated with states that differ in their last digits."""
NUDGE = 4e-7
"""Largest relative change of a number of a state: some units in the last place of a float32."""

Numbers = Rows
"""The results of a step by name: terminated, truncated, GROUP.reward, GROUP.observation, GROUP.mask, GROUP.alive."""


class Difference(NamedTuple):
    """A number of a step in which compiled kernels and plain Python differ."""

    name: str
    at: tuple[int, ...]
    plain: float
    compiled: float


class Comparison:
    """Plays `numbers`, some of the environments of a simulator, in plain Python, with the actions that the simulator took.

    `functions` are those of the environment, `cut_at` has the steps that cut off episodes, by number; `of_run` is as for
    `PlainEnvironment`. A difference raises UserError, unless plain Python differs as much from itself if the numbers of the states change
    in their last digits: then rounding decides.
    """

    def __init__(
        self,
        environment: Environment,
        numbers: Sequence[int],
        first_env: int,
        functions: Sequence[FunctionType],
        cut_at: Mapping[int, int],
        **of_run: Unpack[OfSeededRun],
    ) -> None:
        self.environment, self.first_env, self.functions, self.cut_at, self.of_run = environment, first_env, functions, cut_at, of_run
        self._left_s, self._until = SECONDS, 0.0
        self._played = {number: self._environment(number) for number in numbers}
        self._actions: dict[int, list[Rows]] = {number: [] for number in numbers}

    def look(self, taken: Trajectory) -> bool:
        """Compare the steps of a rollout, each of which follows the last one; return whether to go on with the next one."""
        began = time.perf_counter()
        self._until = began + self._left_s
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # compiled kernels overflow without a warning, too
            try:
                for row in range(taken.horizon):
                    self._played = {number: played for number, played in self._played.items() if self._agrees(number, taken, row)}
            except _TimeIsUpError:
                return False
            except UserError:
                raise
            except Exception as error:  # functions of the user, in which anything can go wrong
                raise self._failure(error) from error
        self._left_s -= time.perf_counter() - began
        return bool(self._played)

    def _agrees(self, number: int, taken: Trajectory, row: int) -> bool:
        """Compare a step of an environment; return whether to go on with it. Raises UserError for a difference."""
        played, actions = self._played[number], self._actions[number]
        if not actions:
            self._refuse(number, _first_difference(_seen(played.reset()), _numbers(taken, -1, number)))
        actions.append({name: group.action[row, number].cpu().numpy().copy() for name, group in taken.groups.items()})
        plain = results(played.step(actions[-1]))
        difference = _first_difference(plain, _numbers(taken, row, number))
        # A number that is not finite ends the run or the episode elsewhere.
        unsound = not all(np.isfinite(values).all() for values in plain.values())
        if unsound or (difference and self._rounding_decides(number, difference)):
            return False
        self._refuse(number, difference)
        return len(actions) < STEPS

    def _rounding_decides(self, number: int, difference: Difference) -> bool:
        """Return whether changes of the states in their last digits change the number that differs, too."""
        random = np.random.default_rng(0)
        for _ in range(NUDGES):
            played = self._environment(number)
            played.reset()
            for actions in self._actions[number]:
                _nudge(played, random)
                taken = results(played.step(actions))
            if abs(taken[difference.name][difference.at] - difference.plain) > 0.1 * abs(difference.compiled - difference.plain):
                return True
        return False

    def _refuse(self, number: int, difference: Difference | None) -> None:
        if difference is None:
            return
        step = len(self._actions[number])
        where = " and ".join(dict.fromkeys(source_line(function) for function in sources(self.environment, difference.name)))
        when = f"in step {step} of" if step else "at the reset of"
        raise UserError(
            f"{where}: {when} environment {self.first_env + number} compiled kernels give {difference.compiled:.6g} as {difference.name}"
            f" and plain Python {difference.plain:.6g}; warprun check looks for the cause, engine.compare=false trains without this check"
        )

    def _environment(self, number: int) -> PlainEnvironment:
        cut_at = self.cut_at.get(number)
        return PlainEnvironment(self.environment, self.first_env + number, call=self._timed, cut_at=cut_at, **self.of_run)

    def _timed(self, function: KernelFunction) -> Callable[..., object]:
        plain = kernels.plain_function(function)

        def call(*given: object) -> object:
            if time.perf_counter() > self._until:
                raise _TimeIsUpError
            return plain(*given)

        return call

    def _failure(self, error: Exception) -> Exception:
        """Return the error for a function that fails as plain Python; an error of warprun's own remains as it is."""
        frame = raised_in(error, self.functions)
        if frame is None:
            return error
        where = f"{frame.filename}:{frame.lineno} in {frame.name}"
        return UserError(f"{where} fails as plain Python, not compiled: {one_line(error)}; warprun check looks for the cause")


class _TimeIsUpError(Exception):
    """Plain Python has taken long enough."""


def sources(environment: Environment, name: str) -> list[KernelFunction]:
    """Return the functions that a number of a step follows from, by its name in `Numbers`."""
    group_name, _, kind = name.partition(".")
    if not kind:
        return [phase.function for phase in environment.phases]
    group = environment.group(group_name)
    if kind == "observation":
        return [group.observe]
    if kind == "mask" and group.mask:
        return [group.mask]
    return [phase.function for phase in environment.phases if phase.group == group_name]


def _numbers(taken: Trajectory, row: int, env: int) -> Numbers:
    """Return what a row of a trajectory gave to an environment; row -1: what it began with."""
    found: dict[str, torch.Tensor] = {}
    if row >= 0:
        found = {"terminated": taken.terminated[row, env], "truncated": taken.truncated[row, env]}
    for name, group in taken.groups.items():
        seen = {"observation": group.obs, "mask": group.mask, "alive": group.alive}
        found |= {} if row < 0 else {f"{name}.reward": group.reward[row, env]}
        found |= {f"{name}.{kind}": values[row + 1, env] for kind, values in seen.items() if values is not None}
    return {name: value.cpu().numpy().astype(np.float64) for name, value in found.items()}


def results(taken: Taken) -> Numbers:
    """Return what a step of plain Python gave, in float64."""
    found: Numbers = {"terminated": np.array(taken.terminated, float), "truncated": np.array(taken.truncated, float)}
    return found | {f"{name}.reward": gains.astype(np.float64) for name, gains in taken.reward.items()} | _seen(taken.seen)


def _seen(seen: Seen) -> Numbers:
    return {f"{name}.{kind}": rows.astype(np.float64) for kind, groups in seen._asdict().items() for name, rows in groups.items()}


def _first_difference(plain: Numbers, compiled: Numbers) -> Difference | None:
    for name, expected in plain.items():
        found = compiled[name].reshape(expected.shape)
        at = first_unlike(expected, found)
        if at is not None:
            return Difference(name, at, float(expected[at]), float(found[at]))
    return None


def first_unlike(one: np.ndarray, other: np.ndarray) -> tuple[int, ...] | None:
    """Return the first place where two arrays differ, real numbers by more than TOLERANCE; None if there is none."""
    same = one == other
    if one.dtype.kind == "f":
        with np.errstate(all="ignore"):
            same = np.isclose(other, one, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    wrong = np.argwhere(~same)
    return tuple(map(int, wrong[0])) if len(wrong) else None


def _nudge(played: PlainEnvironment, random: np.random.Generator) -> None:
    """Change the real numbers of all states in their last digits."""
    for group in played.environment.groups:
        for field in group.fields:
            if not field.integer:
                values = played.field(group, field)
                played.put(group, field, values * (1.0 + NUDGE * random.uniform(-1.0, 1.0, values.shape)))
