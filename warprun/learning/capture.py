"""Work of an agent that CUDA graphs repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from warprun.kernels.graph import Captured
from warprun.plan import Plan

P = ParamSpec("P")
R = TypeVar("R")


def captured(work: Callable[P, R], plan: Plan) -> Callable[P, R]:
    """Return `work`, repeated by CUDA graphs if the plan says so.

    An agent lists all such work in one table, `device_work`, built once; `kernels.graph.Captured` says what the work must keep to.
    """
    return cast(Callable[P, R], Captured(work)) if plan.captured else work
