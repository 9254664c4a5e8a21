"""Functions with other functions behind the names that they use: one source for numbers, tensors, and kernels of several devices."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, CodeType, FunctionType


def rebound(function: FunctionType, replace: Callable[[object], object]) -> FunctionType:
    """Return a copy of a function in which `replace(value)` stands for each value that it refers to."""
    known = function.__globals__
    names = {name: replace(known[name]) for name in _names(function.__code__) if name in known}
    cells = tuple(CellType(replace(cell.cell_contents)) for cell in function.__closure__ or ())
    defaults = tuple(map(replace, function.__defaults__ or ()))
    made = FunctionType(function.__code__, known | names, function.__name__, defaults, cells)
    made.__kwdefaults__ = {name: replace(value) for name, value in (function.__kwdefaults__ or {}).items()} or None
    return made


def _names(code: CodeType) -> set[str]:
    """Return the global names that code reads, that of functions in it too."""
    return set(code.co_names).union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))
