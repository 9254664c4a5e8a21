"""Functions that functions make, for kernels: made once for the same arguments, and made again by another process (`kernels.ahead`)."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Hashable
from functools import cache, wraps
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Callable[..., Any]])


def made(maker: F) -> F:
    """Let a function that makes functions return the same one for the same arguments, which must have hashes; `forget()` ends that."""

    @cache
    def make(*arguments: Hashable) -> Callable[..., object]:
        function: Callable[..., object] = maker(*arguments)
        function.made_by = once, arguments  # type: ignore[attr-defined]
        return function

    @wraps(maker)
    def once(*arguments: Hashable) -> Callable[..., object]:
        return make(*arguments)

    once.forget = make.cache_clear  # type: ignore[attr-defined]
    return cast(F, once)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        if isinstance(value, ModuleType):
            return import_module, (value.__name__,)
        return value.made_by if isinstance(value, FunctionType) and hasattr(value, "made_by") else NotImplemented


def dumps(value: object) -> bytes:
    """Return a pickle of a value; where it is read, functions that `made` knows are made again, and modules imported by their names."""
    into = io.BytesIO()
    _Pickler(into, pickle.HIGHEST_PROTOCOL).dump(value)
    return into.getvalue()
