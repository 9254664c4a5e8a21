"""The arrays that a step gives to its caller, used again as soon as the caller has let go of them."""

from __future__ import annotations

from sys import getrefcount
from typing import NamedTuple, Protocol

import numpy as np

from warprun.simulation.memory import Array
from warprun.simulation.vector_engine import BoundStep, VectorEngine

MOST_KEPT = 8
"""Sets of arrays that are kept for later steps."""


class Results(NamedTuple):
    """The results of a step of N environments of one actor."""

    bound: BoundStep
    obs: Array
    """[N, F]."""
    reward: Array
    """[N]."""
    terminated: Array
    """[N]."""
    truncated: Array
    """[N]."""
    final_obs: Array
    """[N, F]."""
    mask: Array | None
    """[N, M]."""
    final_mask: Array | None
    """[N, M]."""


class ResultSource(Protocol):
    """Gives the arrays for the next step."""

    def next(self) -> Results:
        """Return arrays that a step may write."""

    def clear(self) -> None:
        """Forget all arrays: their engine has a new seed."""


def make_results(engine: VectorEngine, actions: tuple[Array, ...]) -> Results:
    """Return new arrays for a step of an environment of one actor."""
    bound = engine.new_step(actions)
    group, n = bound.step.groups[0], engine.n_envs
    mask, final_mask = (None if given is None else given.reshape(n, -1) for given in (group.mask, group.final_mask))
    seen = (group.obs.reshape(n, -1), group.reward, bound.step.terminated, bound.step.truncated, group.final_obs.reshape(n, -1))
    return Results(bound, *seen, mask, final_mask)


class Overwritten:
    """The same arrays for every step."""

    def __init__(self, engine: VectorEngine, actions: tuple[Array, ...]) -> None:
        self._engine, self._actions = engine, actions
        self.clear()

    def clear(self) -> None:
        self._results = make_results(self._engine, self._actions)

    def next(self) -> Results:
        return self._results


class Kept:
    """Arrays of its own for every step, whose memory is used again if nothing refers to it any more.

    The kernels write where the caller reads, so nothing is copied. New memory for every step would take longer than a small step: the
    system clears its pages. Python counts the references to an array; a view of it counts as one.
    """

    def __init__(self, engine: VectorEngine, actions: tuple[Array, ...]) -> None:
        self._engine, self._actions = engine, actions
        self.clear()

    def clear(self) -> None:
        self._free: list[tuple[Results, tuple[np.ndarray, ...], list[int]]] = []

    def next(self) -> Results:
        for results, watched, unused in self._free:
            if [getrefcount(array) for array in watched] == unused:
                return results
        results = make_results(self._engine, self._actions)
        if len(self._free) < MOST_KEPT:
            group = results.bound.step.groups[0]
            flat = (group.obs, group.final_obs, group.mask, group.final_mask)
            watched = tuple(a for a in (*results[1:], *flat) if isinstance(a, np.ndarray))
            self._free.append((results, watched, []))
            entry = self._free[-1]
            del group, flat, watched
            entry[2].extend(getrefcount(array) for array in entry[1])
        return results
