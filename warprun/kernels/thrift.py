"""Work of Numba, at its first use and in every compilation, that no kernel needs: how it is left out."""

from __future__ import annotations

import gc
from functools import cache

from numba.core import errors
from numba.core.event import Listener, register
from numba.np import linalg


class _RareCollection(Listener):
    """Lets Python look for reference cycles less often while Numba compiles: it makes millions of objects, most of which stay."""

    OBJECTS = 200_000

    def __init__(self) -> None:
        self._outside: list[tuple[int, ...]] = []

    def on_start(self, event: object) -> None:
        first, *others = gc.get_threshold()
        self._outside.append((first, *others))
        gc.set_threshold(first and max(self.OBJECTS, first), *others)  # 0: never

    def on_end(self, event: object) -> None:
        gc.set_threshold(*self._outside.pop())


@cache
def spare() -> None:
    """Spare this process what kernels do not need. A second call changes nothing.

    To learn whether products of matrices can be compiled, Numba imports SciPy, if it is installed, for 0.2 s. It looks
    again where a function has one. Its errors are coloured with colorama, if that is installed, thousands of them in a
    compilation that succeeds; messages of warprun have no colours.
    """
    register("numba:compile", _RareCollection())
    look = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        from numba.np import arraymath  # noqa: F401  looks at its import
    finally:
        linalg.ensure_blas = look
    vars(errors.termcolor())["_markup"] = lambda text, *style: text
