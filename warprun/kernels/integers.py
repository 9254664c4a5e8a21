"""The integer rule of Numba for functions that run uncompiled: integers are computed in 64 bits and stored in 32.

Numba makes an int64 of every operation on integers, however narrow they are; NumPy stays at the width of its operands. So what an
uncompiled function of an environment is given, reads from arrays, is returned by others and converts with `int32` becomes int64 here.
Python's own integers are left as they are: beside an int64 they are one, and beside a float they take its width.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from warprun.random import Rng


@runtime_checkable
class Array(Protocol):
    """A NumPy array, or one of the CUDA simulator."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __getitem__(self, at: Any) -> Any: ...

    def __setitem__(self, at: Any, value: Any) -> None: ...


class Integers:
    """A view of an array of integers whose elements are int64 when they are read, and wrap to the array's type when they are written."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.dtype = array.dtype
        self.shape = array.shape

    def __getitem__(self, at: Any) -> Any:
        return widened(self.array[at])

    def __setitem__(self, at: Any, value: Any) -> None:
        number = isinstance(value, int | np.generic)
        self.array[at] = _truncated(self.dtype.type, value) if number else value

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.array, dtype)


def in_environment(function: Callable[..., Any]) -> bool:
    """Tell whether a function is part of an environment; those of warprun itself write out the width of every integer."""
    package, _, rest = function.__module__.partition(".")
    return package != "warprun" or rest.startswith("envs.")


def widening(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its arguments and its result widened."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return widened(function(*map(widened, arguments), **{name: widened(value) for name, value in named.items()}))

    return call


def widened(value: Any) -> Any:
    """Return a value with its integers as int64; in tuples one by one, in arrays when they are read."""
    if isinstance(value, bool | np.bool_ | np.floating | float | np.uint64 | Integers | Rng):
        return value
    if isinstance(value, np.integer):
        return np.int64(value)
    if isinstance(value, int):
        return np.int64((value + 2**63) % 2**64 - 2**63)
    if isinstance(value, tuple):
        parts = map(widened, value)
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    if isinstance(value, Array) and value.dtype.kind in "iu":
        return Integers(value)
    return value


def widened_global(value: Any) -> Any:
    """Return what a function of an environment is to find where its module has `value`."""
    if isinstance(value, types.FunctionType):
        return value if in_environment(value) else widening(value)
    if value is np:
        return _NUMPY
    if isinstance(value, type):
        return _KINDS.get(value, value)
    return value if isinstance(value, int) else widened(value)


def _truncated(kind: Any, value: Any) -> Any:
    # Numbers of NumPy wrap where those of Python are refused.
    return kind(widened(value))


def _kind(narrow: Any) -> Any:
    """Return a class that stands for `narrow`: a call truncates to it and gives an int64, and as a dtype it is the same."""
    return type(narrow.__name__, (narrow,), {"__new__": lambda _, value=0: np.int64(_truncated(narrow, value))})


_KINDS: dict[type, Any] = {kind: _kind(kind) for kind in (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32)}
_NUMPY = types.ModuleType("numpy")
_NUMPY.__dict__.update(vars(np) | {kind.__name__: wide for kind, wide in _KINDS.items()})
