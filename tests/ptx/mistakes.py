"""Mistakes planted in real kernels: a change of the source that warprun writes, or of a function that kernels call."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest


@dataclass(frozen=True)
class Mistake:
    """`before` becomes `after`: in a function, or in the source of a module of kernels."""

    name: str
    before: str
    after: str
    function: Callable[..., Any] | None = None
    nth: int = 0
    """Which of several places, from 0 on."""

    def planted(self, source: str) -> str:
        """Return the source of a module of kernels with the mistake."""
        return source if self.function else self._change(source)

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Make the mistake in the function."""
        if isinstance(self.function, FunctionType):
            names: dict[str, Any] = {}
            exec(self._change(textwrap.dedent(inspect.getsource(self.function))), dict(self.function.__globals__), names)
            patch.setattr(self.function, "__code__", names[self.function.__name__].__code__)

    def _change(self, text: str) -> str:
        parts = text.split(self.before)
        if len(parts) < self.nth + 2:  # another module of kernels than the one that is meant
            return text
        return self.before.join(parts[: self.nth + 1]) + self.after + self.before.join(parts[self.nth + 1 :])
