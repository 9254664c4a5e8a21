"""Mistakes planted in real kernels: in the source that warprun writes, in a function that kernels call, or in PTX."""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from warprun.kernels import fingerprint


@dataclass
class Mistake:
    """`before` becomes `after`, in one place."""

    name: str
    before: str
    after: str
    function: Callable[..., Any] | None = None
    """The function that is changed; None: the source of a module of kernels, or PTX."""
    kernel: str | None = None
    nth: int = 0
    """Which of several places, from 0 on."""
    made: int = 0

    def in_source(self, source: str) -> str:
        return source if self.function or self.kernel else self._change(source)

    def in_ptx(self, kernel: str) -> Callable[[str], str] | None:
        return self._change if kernel == self.kernel else None

    def in_function(self, patch: pytest.MonkeyPatch) -> None:
        if isinstance(self.function, FunctionType):
            names: dict[str, Any] = {}
            source = textwrap.dedent(inspect.getsource(self.function))
            exec(self._change(source), dict(self.function.__globals__), names)
            patch.setattr(self.function, "__code__", names[self.function.__name__].__code__)
            patch.setattr(fingerprint, "_settled", WeakKeyDictionary())  # code of the package changes nowhere else

    def _change(self, text: str) -> str:
        parts = text.split(self.before)
        if len(parts) < self.nth + 2:  # another module of kernels than the one that is meant
            return text
        self.made += 1
        return self.before.join(parts[: self.nth + 1]) + self.after + self.before.join(parts[self.nth + 1 :])
