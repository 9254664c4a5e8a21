"""Check that compiled kernels, plain Python and the CUDA simulator take the same steps, and watch plain Python for
mistakes.
"""

from __future__ import annotations

import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch

from warprun import random
from warprun.checking.findings import Problem, doubt, place_of, short
from warprun.checking.rolls import masks_of, put
from warprun.environment import Environment, Group, KernelFunction, arguments
from warprun.errors import UserError, one_line
from warprun.kernels import compile as kernels
from warprun.kernels import integers
from warprun.simulation.comparison import sources
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.plain import PlainEnvironment
from warprun.simulation.trial import Explorer

Place = tuple[str, int, str]
"""File, line and function."""
FLOAT_ERRORS = {
    "divide by zero": "divides by zero",
    "invalid value": "computes a number that is not defined (NaN)",
    "overflow": "exceeds the range of numbers",
}


class Watch:
    """Functions of an environment for plain Python, and the mistakes that their calls make."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.problems: dict[object, Problem] = {}
        """Kind and place -> problem, so that each is told once."""
        self._groups = {group.name: group for group in environment.groups}
        self._files: set[str] = set()

    def build(self, function: KernelFunction) -> Callable[..., object]:
        """Return the function that a `PlainEnvironment` calls in place of `function`."""
        self._files |= {f.__code__.co_filename for f in kernels.reached([function]) if integers.in_environment(f)}
        return self._watched(function, kernels.plain_function(function))

    def note(self, key: object, problem: Problem) -> None:
        """Keep a problem unless there is one with this key."""
        self.problems.setdefault(key, problem)

    def here(self) -> Place:
        """Return where the code of the environment is running."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename not in self._files:
            frame = frame.f_back
        return (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame else ("?", 0, "?")

    @contextmanager
    def float_errors(self) -> Iterator[None]:
        """Note divisions by zero, overflows and NaN in the code of the environment."""

        def note(kind: str, flag: int) -> None:
            file, line, name = self.here()
            if file in self._files:
                text = FLOAT_ERRORS.get(kind, kind)
                self.note((kind, file, line), doubt(f"{short(file)}:{line} in {name} {text}; guard against it if it can reach the result"))

        before = np.seterrcall(note)
        try:
            with np.errstate(divide="call", invalid="call", over="call"):
                yield
        finally:
            np.seterrcall(before)

    @contextmanager
    def draws(self) -> Iterator[None]:
        """Note random draws that one call makes twice. Slow: Python reports every call."""
        seen: dict[tuple[object, ...], Place] = {}

        def profile(frame: types.FrameType, event: str, argument: object) -> None:
            if event != "call" or frame.f_code.co_name != "bits" or frame.f_code.co_filename != random.__file__:
                return
            rng, index = frame.f_locals["rng"], int(frame.f_locals["index"])
            place = self.here()
            purpose = int(rng.source) >> 24
            if place[0] not in self._files or purpose in (random.ACTION, random.VARIATION, random.EXPLORATION):
                return
            key = (*map(int, rng), index)
            if key in seen:
                file, line, name = place
                other = "again" if seen[key][1] == line else f"as line {seen[key][1]} does"
                self.note(
                    ("draw", file, line), doubt(f"{short(file)}:{line} in {name} uses draw {index} {other}: the same number; count on")
                )
            seen[key] = place

        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _watched(self, function: KernelFunction, plain: KernelFunction) -> Callable[..., object]:
        names = arguments(function)

        def call(*given: object) -> object:
            returned = plain(*(self._guarded(name, value) for name, value in zip(names, given, strict=True)))
            for value in returned if isinstance(returned, tuple) and not hasattr(returned, "_fields") else (returned,):
                for group in self.environment.groups:
                    if isinstance(value, group.state):
                        self._check_state(function, group, value)
            return returned

        return call

    def _guarded(self, name: str, value: object) -> object:
        """Return an argument with its arrays in guards."""
        what = name if name in self._groups else ""
        if isinstance(value, np.ndarray):
            return Guard(value, name, self, what)
        if isinstance(value, tuple) and hasattr(value, "_make") and not isinstance(value, random.Rng):
            parts = zip(value._fields, value, strict=True)  # type: ignore[attr-defined]
            return value._make(Guard(v, f"{name}.{n}", self, what) if isinstance(v, np.ndarray) else v for n, v in parts)
        return value

    def _check_state(self, function: KernelFunction, group: Group, state: Sequence[object]) -> None:
        for one, value in zip(group.fields, state, strict=True):
            if not one.integer or one.length or isinstance(value, bool | np.bool_):
                continue
            number = float(value)  # type: ignore[arg-type]
            where = f"{place_of(function)} gives {group.state.__name__}.{one.name}, an int32,"
            if np.isfinite(number) and number != int(number):
                cut = f"{where} {number:.6g}, which is cut to {int(number)}; are fields swapped?"
                self.note((function, one.name, "cut"), Problem(cut))
            elif not -(2**31) <= number < 2**31:
                self.note((function, one.name, "wraps"), doubt(f"{where} {number:.6g}, beyond its range: it wraps around"))


class Guard:
    """A view of an array that notes negative indices, and writes to the state of another group."""

    def __init__(self, array: np.ndarray, name: str, watch: Watch, others: str = "") -> None:
        self.array, self.name, self.watch, self.others = array, name, watch, others
        self.dtype, self.shape, self.ndim, self.size = array.dtype, array.shape, array.ndim, array.size

    def __len__(self) -> int:
        return len(self.array)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.array, dtype)

    def __getitem__(self, at: object) -> object:
        self._look(at)
        found = self.array[at]  # type: ignore[call-overload]
        return Guard(found, self.name, self.watch, self.others) if isinstance(found, np.ndarray) else found

    def __setitem__(self, at: object, value: object) -> None:
        self._look(at)
        if self.others:
            file, line, name = self.watch.here()
            text = f"{short(file)}:{line} in {name} writes to {self.name}, the state of group {self.others}: actors run at the same time"
            self.watch.note(("write", file, line), Problem(f"{text}; change only s, in a phase of that group"))
        self.array[at] = value  # type: ignore[call-overload]

    def _look(self, at: object) -> None:
        for axis, index in enumerate(at if isinstance(at, tuple) else (at,)):
            if isinstance(index, int | np.integer) and index < 0:
                file, line, name = self.watch.here()
                text = f"{short(file)}:{line} in {name} reads {self.name} at index {int(index)} of axis {axis}"
                self.watch.note(("index", file, line), doubt(f"{text}, which counts from the end; is that meant?"))


Arrays = dict[str, np.ndarray]
ENVIRONMENTS = 4
MOST_STEPS = 400
SECONDS = 4.0
STEPS_WITH_DRAWS = 12
"""Steps in which every draw is looked at, which is slow."""
TOLERANCE = 1e-3
"""Largest difference, relative to 1 + |value|: compiled code fuses multiplications and additions, plain Python rounds
each."""


@dataclass
class Steps:
    """Steps that compiled kernels took: the state before each step and its results."""

    begun: list[Arrays] = field(default_factory=list)
    given: list[Arrays] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write the steps to a .npz file."""
        named = {f"{n}/begun/{k}": v for n, step in enumerate(self.begun) for k, v in step.items()}
        named |= {f"{n}/given/{k}": v for n, step in enumerate(self.given) for k, v in step.items()}
        np.savez(path, **named)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Steps:
        """Read what `save` wrote."""
        made = cls()
        with np.load(path) as file:
            for key in file.files:
                number, kind, name = key.split("/", 2)
                steps = made.begun if kind == "begun" else made.given
                while len(steps) <= int(number):
                    steps.append({})
                steps[int(number)][name] = file[key]
        return made


def take_steps(engine: KernelEngine, count: int) -> Steps:
    """Take `count` steps with random actions on an engine with horizon 1."""
    explorer, steps = Explorer(engine.spec, engine.n_envs, seed=1), Steps()
    engine.reset()
    for _ in range(count):
        put(engine.trajectory, 0, explorer.choose(masks_of(engine.trajectory, 0)))
        steps.begun.append(beginning(engine))
        engine.step(0)
        steps.given.append(outcome(engine))
        engine.carry_over()
    return steps


def repeat(take: Callable[[Arrays], Arrays], steps: Steps, seconds: float) -> Differences:
    """Repeat steps with another executor, each from the recorded beginning; `seconds` end it early, after at least one step."""
    found, end = Differences(), time.perf_counter() + seconds
    for begun, given in zip(steps.begun, steps.given, strict=True):
        found.compare(given, take(begun))
        if time.perf_counter() > end:
            break
    return found


def disagreements(found: Differences, who: str, environment: Environment) -> Iterator[Problem]:
    """Yield the differences between compiled kernels and `who`."""
    for name, count, example in found.described():
        where = ", ".join(dict.fromkeys(place_of(function) for function in sources(environment, name)))
        text = f"compiled kernels and {who} differ in {name}, {where}, in {count} of {found.steps} steps ({example})"
        advice = "look for variables set in one branch only, int64 overflow, constants that change from import to import"
        if count == 1:
            yield doubt(f"{text}; a comparison at its threshold, which depends on rounding, or {advice}")
        else:
            yield Problem(f"{text}; {advice}")
        return  # the rest follows from the first


def agreed(compared: int, recorded: int) -> str:
    """Return the message of steps that agree: `compared` of the `recorded` ones, fewer if time was up."""
    rest = f"; time was up for {recorded - compared} more" if compared < recorded else ""
    return f"{compared} steps agree with compiled kernels{rest}"


def watched_run(
    environment: Environment, steps: Steps, functions: Sequence[FunctionType], **of_run: Any
) -> tuple[Differences, list[Problem]]:
    """Repeat steps in plain Python; return the differences, and the problems that `Watch` noted.

    `functions` are those of the environment, `of_run` as for `PlainEnvironment`.
    """
    watch, found = Watch(environment), Differences()
    played = [PlainEnvironment(environment, number, call=watch.build, **of_run) for number in range(ENVIRONMENTS)]
    take = partial(stepped_plainly, played)
    with warnings.catch_warnings(), watch.float_errors():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            with watch.draws():
                for each in played:
                    each.reset()
                repeat(take, Steps(steps.begun[:STEPS_WITH_DRAWS], steps.given[:STEPS_WITH_DRAWS]), SECONDS / 4)
            found = repeat(take, steps, SECONDS)
        except UserError as error:
            return found, [Problem(str(error)), *watch.problems.values()]
        except Exception as error:  # functions of the user, in which anything can go wrong
            files = {code.co_filename for code in (function.__code__ for function in functions)}
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
            if not frames:
                raise
            where = f"{short(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}"
            return found, [Problem(f"{where} fails as plain Python but not compiled: {one_line(error)}"), *watch.problems.values()]
    return found, list(watch.problems.values())


def beginning(engine: KernelEngine) -> Arrays:
    """Return all that the next step depends on, apart from the seed, in shapes that every target shares: [N, ...]."""
    found = {"clock": engine.arrays.common["clock"].flatten()[: engine.n_envs].numpy().copy(), "steps": np.array(engine.steps)}
    if "varied" in engine.arrays.common:
        found["varied"] = engine.arrays.common["varied"].permute(0, 2, 1).flatten(0, 1)[: engine.n_envs].numpy().copy()
    for group in engine.spec.groups:
        found |= {f"{group.name}.state.{name}": value.numpy().copy() for name, value in engine.state_of(group.name).items()}
        found[f"{group.name}.action"] = engine.trajectory.groups[group.name].action[0].numpy().copy()
    return found


def stepped(engine: KernelEngine, at: Arrays) -> Arrays:
    """Take a step of an engine from the state of `beginning`; return the `outcome`."""
    _place(engine, at)
    engine.step(0)
    return outcome(engine)


def stepped_plainly(played: Sequence[PlainEnvironment], at: Arrays) -> Arrays:
    """Take the same step in plain Python, one object for each environment, and return the same arrays."""
    taken = []
    for n, each in enumerate(played):
        each.steps, each.clock = int(at["steps"]), int(at["clock"][n])
        if "varied" in at:
            each.params = each.params._replace(**dict(zip(each.vary, at["varied"][n], strict=True)))
        for group in each.environment.groups:
            for f in group.fields:
                each.put(group, f, at[f"{group.name}.state.{f.name}"][n])
        taken.append(each.step({group.name: at[f"{group.name}.action"][n] for group in each.environment.groups}))
    found = {"terminated": np.array([one.terminated for one in taken]), "truncated": np.array([one.truncated for one in taken])}
    for group in played[0].environment.groups:
        found |= {f"{group.name}.state.{f.name}": np.stack([each.field(group, f) for each in played]) for f in group.fields}
        found[f"{group.name}.reward"] = np.stack([one.reward[group.name] for one in taken])
        found[f"{group.name}.observation"] = np.stack([one.seen.observation[group.name] for one in taken])
        if group.mask:
            found[f"{group.name}.mask"] = np.stack([one.seen.mask[group.name] for one in taken])
    return found


def _place(engine: KernelEngine, at: Arrays) -> None:
    """Put an engine into the state of `beginning`, with its actions in row 0."""
    engine.steps = int(at["steps"])
    _fill(engine, "clock", at["clock"][:, None])
    if "varied" in at:
        _fill(engine, "varied", at["varied"])
    for group in engine.spec.groups:
        first = f"{group.name}.state."
        values = {name.removeprefix(first): torch.from_numpy(value.copy()) for name, value in at.items() if name.startswith(first)}
        engine.set_state(group.name, **values)
        engine.trajectory.groups[group.name].action[0].copy_(torch.from_numpy(at[f"{group.name}.action"]))


def outcome(engine: KernelEngine) -> Arrays:
    """Return the results of the last step, which are in row 0, by name."""
    taken = engine.trajectory
    found = {"terminated": taken.terminated[0], "truncated": taken.truncated[0]}
    for name, group in taken.groups.items():
        found |= {f"{name}.state.{field}": value for field, value in engine.state_of(name).items()}
        found |= {f"{name}.reward": group.reward[0], f"{name}.observation": group.obs[1]}
        if group.mask is not None:
            found[f"{name}.mask"] = group.mask[1]
    return {name: value.numpy().copy() for name, value in found.items()}


class Differences:
    """The number of steps in which two engines differ, for every array."""

    def __init__(self) -> None:
        self.steps = 0
        self.counts: dict[str, int] = {}
        self.examples: dict[str, str] = {}

    def compare(self, expected: Arrays, found: Arrays) -> None:
        """Compare the outcomes of one step. After an end that differs, the rest differs, too."""
        self.steps += 1
        for name, one in expected.items():
            at = _first_difference(one, found[name])
            if at is not None:
                self.counts[name] = self.counts.get(name, 0) + 1
                self.examples.setdefault(name, f"{_shown(one[at])} and {_shown(found[name][at])}")
                if name in ("terminated", "truncated"):
                    return

    def described(self) -> Iterator[tuple[str, int, str]]:
        """Yield name of an array, number of steps in which it differs, and the first two values."""
        for name, count in self.counts.items():
            yield name, count, self.examples[name]


def _first_difference(one: np.ndarray, other: np.ndarray) -> tuple[int, ...] | None:
    if one.dtype.kind == "f":
        with np.errstate(all="ignore"):
            same = np.isclose(other, one, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    else:
        same = one == other
    wrong = np.argwhere(~same)
    return tuple(int(n) for n in wrong[0]) if len(wrong) else None


def _shown(value: np.generic) -> str:
    return f"{float(value):.6g}" if value.dtype.kind == "f" else str(value.item())


def _fill(engine: KernelEngine, name: str, values: np.ndarray) -> None:
    """Write values [N, V] into an array of tiles [tile, V, lane] or [tile, lane]."""
    array = engine.arrays.common[name]
    tiles, lanes = array.shape[0], array.shape[-1]
    padded = torch.zeros((tiles * lanes, values.shape[1]), dtype=array.dtype)
    padded[: engine.n_envs] = torch.from_numpy(values)
    array.copy_(padded.reshape(tiles, lanes, -1).permute(0, 2, 1).reshape(array.shape))
