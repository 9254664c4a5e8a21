"""Formulas of one row on tensors: torch computes with the functions that kernels compile.

A formula is a function of numbers, written with `warprun.math`; its branches are `where`. Here it gets tensors of many rows in their
place, and torch's mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import TypeAlias, TypeVar, cast

import numpy as np
import torch

from warprun import math

F = TypeVar("F", bound=Callable[..., object])
N = TypeVar("N", bound=tuple[object, ...])
Number: TypeAlias = torch.Tensor | float


def _both(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[Number, Number], torch.Tensor]:
    """Return `function` for numbers in the place of one of two tensors; they get the type of the other."""

    def of_any(a: Number, b: Number) -> torch.Tensor:
        if not isinstance(a, torch.Tensor):
            assert isinstance(b, torch.Tensor)
            return function(b.new_full((), a), b)
        return function(a, b if isinstance(b, torch.Tensor) else a.new_full((), b))

    return of_any


MATHEMATICS: dict[object, Callable[..., torch.Tensor]] = {
    math.where: torch.where,
    math.minimum: _both(torch.minimum),
    math.maximum: _both(torch.maximum),
    math.exp: torch.exp,
    math.log: torch.log,
    math.sqrt: torch.sqrt,
    math.tanh: torch.tanh,
    math.softplus: torch.nn.functional.softplus,
}
"""What stands for the functions of `warprun.math`."""


def on_tensors(formula: F) -> F:
    """Return a formula that takes tensors in the place of numbers, all of the shape of a batch of rows; so do those that it calls."""
    return cast(F, _with_tensors(cast(FunctionType, formula)))


def python_numbers(numbers: N) -> N:
    """Return a NamedTuple with Python's numbers in the place of NumPy's, which torch would copy to a GPU."""
    return converted(numbers, lambda number: number.item() if isinstance(number, np.generic) else number)


def converted(numbers: N, convert: Callable[[object], object]) -> N:
    """Return a NamedTuple with each number converted."""
    return cast(N, cast(Callable[..., object], type(numbers))(*map(convert, numbers)))


@cache
def _with_tensors(formula: FunctionType) -> FunctionType:
    known = formula.__globals__
    names = {name: _on_tensors(known[name]) for name in formula.__code__.co_names if name in known}
    return FunctionType(formula.__code__, known | names, formula.__name__, formula.__defaults__, formula.__closure__)


def _on_tensors(value: object) -> object:
    if value is math:
        return SimpleNamespace(**{name: _on_tensors(member) for name, member in vars(math).items() if not name.startswith("__")})
    if not isinstance(value, FunctionType):
        return value
    return MATHEMATICS.get(value, value) if value.__module__ == math.__name__ else _with_tensors(value)
