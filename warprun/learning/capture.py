"""Work of an agent that is recorded and repeated, and batches that are made once for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

from warprun.kernels.repeat import Captured, Repeated
from warprun.learning.batch import Batch, Estimate
from warprun.learning.interfaces import Context
from warprun.simulation.members import Joined
from warprun.simulation.trajectory import Trajectory

P = ParamSpec("P")
R = TypeVar("R")


def captured(work: Callable[P, R], context: Context, owner: type) -> Callable[P, R]:
    """Return `work`, repeated as the plan says: by CUDA graphs, together with that of other members, or as a list of kernel calls on CPU.

    An agent lists all such work in one table, `device_work`, built once; `kernels/repeat.py` says what it must keep to.
    On CPU `owner`, the class of the agent or learner, must say that it does so, by `recordable = True`. A derived class does not inherit
    this: what it adds may compute something in Python, which would be lost.
    """
    if context.plan.repeated.by == "graphs":
        return cast(Callable[P, R], Captured(work))
    if context.plan.repeated.by == "members":
        return cast(Callable[P, R], Joined(work, context.device))
    if context.plan.repeated.by == "calls" and vars(owner).get("recordable", False):
        return cast(Callable[P, R], Repeated(work, context.threads))
    return work


class LastingBatches:
    """Batches that are made once for each trajectory: their tensors are views, to which kernels write the next numbers."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Trajectory, tuple[Estimate, Batch]] = WeakKeyDictionary()

    def __call__(self, trajectory: Trajectory, name: str, estimate: Estimate, make: Callable[[], Batch]) -> Batch:
        """Return the batch of a group, which `make` makes of the estimate unless the former one lasts."""
        former = self._made.get(trajectory)
        if former and former[0] is estimate:
            return former[1]
        batch, group = make(), trajectory.groups[name]
        given = (group.obs, group.mask, group.action, group.log_prob, group.value)
        views = batch.alive is None and batch.past is None and all(tensor is None or tensor.is_contiguous() for tensor in given)
        same = batch.spread is estimate.spread and batch.activations is trajectory.activations.get(name)
        if estimate.lasting and views and same:
            self._made[trajectory] = estimate, batch
        return batch
