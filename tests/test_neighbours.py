"""Indices of actors by cell, and the searches on them, against sorting and against a look at all actors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.environments import leaving
from tests.simulation.rollouts import make
from warprun.environment import Environment
from warprun.errors import ContractError, UserError
from warprun.neighbours import cell_at, nearest, nearest_within, side_for
from warprun.simulation.codegen import called
from warprun.simulation.trial import try_out

EXTENT = np.float32(7.0)


class Places(NamedTuple):
    first: np.ndarray
    actor: np.ndarray
    x: np.ndarray
    y: np.ndarray


def sorted_by_hand(cell: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Return first [cells + 1] and the actors that are in a cell, by NumPy."""
    order = np.argsort(cell, kind="stable")
    order = order[cell[order] >= 0]
    return np.searchsorted(cell[order], np.arange(cells + 1)), order


def index_of(x: np.ndarray, y: np.ndarray, side: int) -> Places:
    cell = np.array([cell_at(a, b, EXTENT, side) for a, b in zip(x, y, strict=True)])
    first, actor = sorted_by_hand(cell, side * side)
    return Places(first, actor, x[actor], y[actor])


def crowd(kind: str, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return places of actors: anywhere, at corners and edges, or on a lattice, where many distances are equal."""
    if kind == "anywhere":
        x, y = random.uniform(0.0, EXTENT, (2, count))
    elif kind == "corners":
        x, y = np.clip(random.normal(0.0, 8.0, (2, count)), 0.0, EXTENT)
    else:
        x, y = random.integers(0, 8, (2, count))
    return x.astype(np.float32), y.astype(np.float32)


@pytest.mark.parametrize("kind", ["anywhere", "corners", "lattice"])
@pytest.mark.parametrize("count", [1, 2, 9, 60])
def test_the_nearest_are_those_of_a_look_at_all(kind: str, count: int) -> None:
    random = np.random.default_rng(count)
    x, y = crowd(kind, count, random)
    for k in (1, 4, 12):
        for side in {1, 2, side_for(count, 2), 11}:
            index, out = index_of(x, y, side), np.full(2 * k, np.nan, np.float32)
            for me in range(min(count, 9)):
                found = nearest(index, x[me], y[me], me, k, EXTENT, side, out)
                square = (x - x[me]) * (x - x[me]) + (y - y[me]) * (y - y[me])
                expected = [j for j in np.lexsort((np.arange(count), square)) if j != me][:k]
                assert found == len(expected)
                assert [int(index.actor[int(at)]) for at in out[k : k + found]] == expected
                np.testing.assert_array_equal(out[:found], square[expected])


@pytest.mark.parametrize("kind", ["anywhere", "corners", "lattice"])
def test_the_nearest_within_a_distance_is_that_of_a_look_at_all(kind: str) -> None:
    random, hits = np.random.default_rng(3), 0
    x, y = crowd(kind, 40, random)
    for side in (1, 4, 9):
        index = index_of(x, y, side)
        for _ in range(60):
            (at_x,), (at_y,) = crowd(kind, 1, random)
            distance = np.float32(random.uniform(0.1, 2.0))
            at = nearest_within(index, at_x, at_y, distance, EXTENT, side)
            square = (x - at_x) * (x - at_x) + (y - at_y) * (y - at_y)
            best = int(square.argmin())  # the first of equal ones
            assert (index.actor[at] if at >= 0 else -1) == (best if square[best] < distance * distance else -1)
            hits += at >= 0
    assert 20 < hits < 160


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_one_thread_and_many_sort_alike(threads: int) -> None:
    cells, cell = 5, np.random.default_rng(0).integers(-1, 5, 40).astype(np.int32)
    first, actor = sorted_by_hand(cell, cells)
    alone, together = ((cell[:, None].copy(), np.zeros((cells + 2, 1), np.int32), np.zeros((40, 1), np.int32)) for _ in range(2))
    called.sort_actors(*alone, cells, 0)
    for thread in range(threads):
        called.count_actors(*together, cells, thread, threads)
    called.begin_cells(together[1], cells)
    for function in (called.place_actors, called.number_places):
        for thread in range(threads):
            function(*together, cells, thread, threads)
    for place, begins, sorted_actors in (alone, together):
        np.testing.assert_array_equal(begins[: cells + 1, 0], first)
        np.testing.assert_array_equal(sorted_actors[: len(actor), 0], actor)
        expected = np.full(40, -1)
        expected[actor] = np.arange(len(actor))
        np.testing.assert_array_equal(place[:, 0], expected)


@pytest.mark.long
def test_an_engine_counts_neighbours_and_leaves_out_who_has_left() -> None:
    """On two groups and 20 environments, the numbers of the observation against NumPy, and who is in the episode where it is cut."""
    engine = make(leaving.environment, "leaving", n_envs=20, horizon=9, auto_reset=True)
    taken, walkers, met, cut = engine.trajectory, engine.trajectory.groups["walkers"], 0, 0
    assert walkers.alive is not None and walkers.final_alive is not None
    for _ in range(3):
        for group in taken.groups.values():
            group.policy_output.zero_()
        left = [engine.state_of("walkers")["patience"].numpy().copy()]
        for row in range(9):
            engine.sample(row)
            engine.step(row)
            state = engine.state_of("walkers")
            x, patience = state["x"].numpy(), state["patience"].numpy()
            left.append(patience.copy())
            cell = np.where(patience > 0, (x * np.float32(leaving.CELLS)).astype(int), -1)
            own = (x * np.float32(leaving.CELLS)).astype(int)
            same = cell[:, None, :] == own[:, :, None]
            first = np.where(same.any(2), same.argmax(2), -1)
            expected = np.stack((x, same.sum(2), (same * x[:, None, :]).sum(2), first), -1)
            np.testing.assert_allclose(walkers.obs[row + 1].numpy(), expected, atol=1e-6)
            np.testing.assert_array_equal(walkers.alive[row + 1].numpy(), patience > 0)
            np.testing.assert_array_equal(walkers.reward[row].numpy(), walkers.alive[row].float().numpy())
            met += int((patience == 0).sum())
        rows, envs = np.nonzero(taken.truncated.numpy())
        for row, env in zip(rows, envs, strict=True):
            slot = int(taken.final_slot()[row, env])
            assert (walkers.final_alive[slot, env].numpy() == (left[row][env] > 1)).all()
            assert walkers.alive[row + 1, env].all()
        terminated, _ = taken.ends("walkers")
        assert (terminated.numpy()[rows, envs] == (np.array(left)[rows, envs] <= 1)).all()
        cut += len(rows)
        engine.carry_over()
    assert met > 50 and cut > 10


def far(cells: Any, s: Any) -> tuple[float, ...]:
    return s.x, 0.0, 0.0, float(cells.actor[len(cells.actor) + 3])


def changed(**group: Any) -> Environment:
    walkers, guides = leaving.environment.groups
    return replace(leaving.environment, groups=(replace(walkers, **group), guides))


@pytest.mark.parametrize(
    ("part", "wrong", "told"),
    [
        ("group", {"alive": "health"}, "alive of group 'walkers' must be the name of a number of its state, not 'health'"),
        ("group", {"alive": 1}, "alive of group 'walkers' must be the name of a number of its state, not 1"),
        ("index", {"groups": ("fish",)}, "there is no group 'fish'"),
        ("index", {"groups": ()}, "must name at least one group"),
        ("index", {"name": "walkers"}, "the name of index 'walkers' is taken"),
        ("index", {"name": "walkers_sum"}, "the name of index 'walkers_sum' is taken"),
        ("index", {"name": "two words"}, "is not a Python identifier"),
        ("index", {"cells": 0}, "cells of index 'cells' must be a whole number"),
        ("index", {"fields": ("y",)}, "index 'cells' has the field 'y', which is no number of the state of group 'walkers'"),
        ("index", {"fields": ("x", "x")}, "must be a tuple of different names"),
        ("index", {"cell": lambda action: 0}, "unknown argument 'action'"),
        ("index", {"fields": "x"}, "fields of index 'cells' must be a tuple"),
    ],
)
def test_mistakes_are_told(part: str, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ContractError, match=told):
        if part == "group":
            changed(**wrong)
        else:
            replace(leaving.environment, indices=(replace(leaving.environment.indices[0], **wrong),))


def test_a_place_beyond_an_index_is_found_before_anything_is_compiled() -> None:
    flawed = changed(observe=far)
    with pytest.raises(UserError, match=r"test_neighbours.py:\d+ in far: .*out of bounds"):
        try_out(flawed, [far], seed=0, params=flawed.params())
