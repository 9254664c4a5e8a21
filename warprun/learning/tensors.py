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
from warprun.learning.rebinding import rebound

F = TypeVar("F", bound=Callable[..., object])
N = TypeVar("N", bound=tuple[object, ...])
Number: TypeAlias = torch.Tensor | float


def _scalars(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `function` of tensors for arguments some of which are numbers; they get the type of the tensors."""

    def of_any(*given: Number) -> torch.Tensor:
        like = next(each for each in given if isinstance(each, torch.Tensor))
        return function(*(each if isinstance(each, torch.Tensor) else like.new_full((), each) for each in given))

    return of_any


TORCH: dict[object, Callable[..., torch.Tensor]] = {
    math.where: lambda condition, a, b: torch.where(condition, a, b) if isinstance(condition, torch.Tensor) else a if condition else b,
    math.minimum: _scalars(torch.minimum),
    math.maximum: _scalars(torch.maximum),
    math.clip: torch.clamp,
    math.power: torch.pow,
    math.fmod: _scalars(torch.fmod),
    math.atan2: _scalars(torch.atan2),
    math.softplus: torch.nn.functional.softplus,
} | {
    getattr(math, name): getattr(torch, name)
    for name in ("exp", "log", "log10", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "tanh", "sigmoid", "floor")
}
"""What stands for the functions of `warprun.math`. The others, of bits and angles, are not for formulas."""


def on_tensors(formula: F) -> F:
    """Return a formula that takes tensors in the place of numbers, all of the shape of a batch of rows; so do those that it calls."""
    return cast(F, _on_tensors(formula))


def python_numbers(numbers: N) -> N:
    """Return a NamedTuple with Python's numbers in the place of NumPy's, which torch would copy to a GPU."""
    return converted(numbers, lambda number: number.item() if isinstance(number, np.generic) else number)


def converted(numbers: N, convert: Callable[..., object]) -> N:
    """Return a NamedTuple with each number converted."""
    return cast(N, cast(Callable[..., object], type(numbers))(*map(convert, numbers)))


def filled(value: torch.Tensor | float, like: torch.Tensor) -> torch.Tensor:
    """Return a number, or numbers, as a tensor of the type and shape of another."""
    return value.to(like.dtype).expand_as(like) if isinstance(value, torch.Tensor) else like.new_full(like.shape, value)


def _on_tensors(value: object) -> object:
    if value is math:
        return SimpleNamespace(**{name: _on_tensors(member) for name, member in vars(math).items() if not name.startswith("__")})
    if not isinstance(value, FunctionType):
        return value
    return _of_numbers_too(value) if value.__module__ == math.__name__ else _with_tensors(value)


@cache
def _of_numbers_too(function: FunctionType) -> Callable[..., object]:
    """Return a function of `warprun.math` that is torch's if an argument is a tensor."""

    def of_any(*given: object) -> object:
        return TORCH[function](*given) if any(isinstance(each, torch.Tensor) for each in given) else function(*given)

    return of_any


@cache
def _with_tensors(formula: FunctionType) -> FunctionType:
    return rebound(formula, _on_tensors)
