"""Watch the functions of an environment while they run as plain Python: indices, writes to other actors, integers that are cut, draws."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from warprun import random
from warprun.checking.findings import Problem, doubt, place_of, short
from warprun.environment import Environment, Group, KernelFunction, arguments
from warprun.kernels import compile as kernels
from warprun.kernels import integers

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

    def __init__(self, array: np.ndarray, name: str, watch: Watch, others: str) -> None:
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
