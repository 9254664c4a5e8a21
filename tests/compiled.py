"""Functions as kernels have them, to be called from Python."""

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit

from warprun.kernels.compile import FLAGS, kernel_function


@cache
def compiled(function: Callable[..., Any]) -> Any:
    """Return `function` compiled as for kernels, behind a door for Python: what kernels call has none. Tests share it."""
    inner = kernel_function(function)

    @njit(**FLAGS)
    def call(*arguments):
        return inner(*arguments)

    return call
