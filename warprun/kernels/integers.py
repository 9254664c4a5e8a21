"""The integers of environments: computed in 64 bits and stored in 32, on every target.

In Numba every integer operation gives an int64, whatever the widths of the operands; NumPy keeps the width of its
operands. So all integers that reach an uncompiled function of an environment become int64 (`widening`): arguments,
array elements, results of calls, of `int32(x)`. Python integers stay as they are: with an int64 operand they act as
int64, with a float operand they take its width.

A compiled function makes a state by its `constructor`, which gives every number the type that is declared for it.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from functools import cache, wraps
from typing import Protocol

import numpy as np

from warprun.environment import STATES, KernelFunction, float32, int32
from warprun.random import Rng


class Array(Protocol):
    """A NumPy array, or an array of the CUDA simulator."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def __getitem__(self, at: object) -> object: ...

    def __setitem__(self, at: object, value: object) -> None: ...


class Integers:
    """A view of an integer array: elements are read as int64, and written values wrap to the array's dtype."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.dtype = array.dtype
        self.shape = array.shape

    def __getitem__(self, at: object) -> object:
        return widened(self.array[at])

    def __setitem__(self, at: object, value: object) -> None:
        number = isinstance(value, int | np.generic)
        self.array[at] = _truncated(self.dtype.type, value) if number else value

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.array, dtype)


_AS_THEY_ARE = frozenset({bool, np.bool_, float, np.float16, np.float32, np.float64, np.int64, np.uint64, Integers, Rng})
_INTEGERS = frozenset(np.dtype(kind) for kind in (*np.typecodes["Integer"], *np.typecodes["UnsignedInteger"]))


def in_environment(function: KernelFunction) -> bool:
    """Return whether a function is part of an environment. Functions of warprun itself state the width of every integer."""
    package, _, rest = function.__module__.partition(".")
    return package != "warprun" or rest.startswith("envs.")


def widening(function: KernelFunction) -> KernelFunction:
    """Return a function that widens the arguments and the result of `function`."""

    @wraps(function)
    def call(*arguments: object, **named: object) -> object:
        return widened(function(*map(widened, arguments), **{name: widened(value) for name, value in named.items()}))

    return call


def widened(value: object) -> object:
    """Return a value with its integers as int64: those of tuples at once, those of arrays when they are read."""
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, np.integer):
        return np.int64(value)
    if isinstance(value, int):
        return np.int64((value + 2**63) % 2**64 - 2**63)
    if isinstance(value, tuple):
        parts = map(widened, value)
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    if getattr(value, "dtype", None) in _INTEGERS:
        return Integers(value)  # type: ignore[arg-type]
    return value


def widened_global(value: object) -> object:
    """Return what replaces the global `value` in an uncompiled function of an environment."""
    if isinstance(value, types.FunctionType):
        return value if in_environment(value) else widening(value)
    if value is np:
        return _NUMPY
    if isinstance(value, type):
        return _KINDS.get(value, value)
    return value if isinstance(value, int) else widened(value)


def _truncated(kind: Callable[..., np.integer], value: object) -> np.integer:
    # NumPy wraps an int64 that is out of range, but raises OverflowError for a Python int.
    return kind(widened(value))


def _kind(narrow: type[np.integer]) -> type:
    """Return a subclass of `narrow` whose calls truncate to `narrow` and return an int64; as a dtype it equals `narrow`."""
    return type(narrow.__name__, (narrow,), {"__new__": lambda _, value=0: np.int64(_truncated(narrow, value))})


_KINDS: dict[type, type] = {kind: _kind(kind) for kind in (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32)}
_NUMPY = types.ModuleType("numpy")
_NUMPY.__dict__.update(vars(np) | {kind.__name__: wide for kind, wide in _KINDS.items()})


def is_state(value: object) -> bool:
    """Return whether a value is the state of a group."""
    return isinstance(value, type) and value in STATES


@cache
def constructor(state: type) -> types.FunctionType:
    """Return a function with the arguments and defaults of a state that converts its numbers and makes one.

    Without it two branches that return an int64 and an int32, or 0 and 0.0, have states of two types, which Numba does not unify. `n | 0`
    makes Numba refuse a real number for an integer field; integers and truth values keep their value.
    """
    fields = STATES[state]
    # A line for each field, by which `refused_field` finds it; fields cannot begin with an underscore.
    values = (f.name if f.length else f"_int32({f.name} | 0)" if f.integer else f"_float32({f.name})" for f in fields)
    body = "".join(f"    {f.name} = {value}\n" for f, value in zip(fields, values, strict=True))
    arguments = ", ".join(f.name for f in fields)
    names = {"_float32": float32, "_int32": int32, "_state": state}
    code = compile(f"def make({arguments}):\n{body}    return _state({arguments})", f"<state {state.__name__}: {arguments}>", "exec")
    exec(code, names)
    made = names["make"]
    assert isinstance(made, types.FunctionType)
    made.__module__, made.__defaults__ = state.__module__, tuple(state._field_defaults.values())  # type: ignore[attr-defined]
    return made


def integer_fields(function: types.FunctionType) -> tuple[tuple[int, str], ...]:
    """Return place and name of the integers among the arguments of a `constructor`; nothing for another function."""
    if not function.__code__.co_filename.startswith("<state "):
        return ()
    fields = enumerate(STATES[function.__globals__["_state"]])
    return tuple((place, f.name) for place, f in fields if f.integer and not f.length)


def refused_field(text: str) -> str | None:
    """Return the problem that an error of Numba, `text`, has with a field of a state; None if it has another cause."""
    found = re.search(r'File "<state (\w+): ([^>]*)>", line (\d+)', text)
    if not found:
        return None
    field = f"{found[1]}.{found[2].split(', ')[int(found[3]) - 2]}"
    if "or_(float" in text:
        return f"{field} is an integer and gets a real number; write int32(...), which cuts off the digits, or declare it float32"
    return f"must give {field} a number"
