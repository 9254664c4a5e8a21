"""Work of an agent that is recorded and repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from warprun.kernels.repeat import Captured, Repeated
from warprun.learning.interfaces import Context

P = ParamSpec("P")
R = TypeVar("R")


def captured(work: Callable[P, R], context: Context, owner: type) -> Callable[P, R]:
    """Return `work`, repeated as the plan says: by CUDA graphs, or as a list of kernel calls on CPU.

    An agent lists all such work in one table, `device_work`, built once; `kernels/repeat.py` says what it must keep to.
    On CPU `owner`, the class of the agent or learner, must say that it does so, by `recordable = True`. A derived class does not inherit
    this: what it adds may compute something in Python, which would be lost.
    """
    if context.plan.captured == "graphs":
        return cast(Callable[P, R], Captured(work))
    if context.plan.captured == "calls" and vars(owner).get("recordable", False):
        return cast(Callable[P, R], Repeated(work, context.threads))
    return work
