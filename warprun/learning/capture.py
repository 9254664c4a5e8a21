"""Work of an agent that is recorded and repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from warprun.kernels.graph import Captured
from warprun.kernels.repeat import Repeated
from warprun.learning.interfaces import Context

P = ParamSpec("P")
R = TypeVar("R")


def captured(work: Callable[P, R], context: Context) -> Callable[P, R]:
    """Return `work`, repeated as the plan says: by CUDA graphs, or as a list of kernel calls on CPU.

    An agent lists all such work in one table, `device_work`, built once; `graph.Captured` and `repeat.Repeated` say what it must keep to.
    """
    if context.plan.captured == "graphs":
        return cast(Callable[P, R], Captured(work))
    return cast(Callable[P, R], Repeated(work, context.threads)) if context.plan.captured == "calls" else work
