"""Numba's integer promotion for functions that run uncompiled: integers are computed in 64 bits and stored in 32.

In Numba every integer operation gives an int64, whatever the widths of the operands; NumPy keeps the width of its operands. So here all
integers that reach an uncompiled function of an environment become int64: arguments, array elements, results of calls and of `int32(x)`.
Python integers stay as they are: with an int64 operand they act as int64, with a float operand they take its width.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Protocol

import numpy as np

from warprun.environment import KernelFunction
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

    @functools.wraps(function)
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
