"""Functions that generated kernels call: checks for what is not finite, and the sorting of actors into the cells of an index.

Every step checks what it has written: actions, rewards, final observations, observations and masks. The check of a row is one comparison
per number, without a branch, so that LLVM vectorises it. Only if a check fails does the kernel search for the faults. It records the first
fault of each environment in `fault` [tile, 4, lane]: a code (0: none), the step, the place in the environment's part of the row, and the
value. It also sets `any_fault` [1] to 1, so the host reads a single number if there is no fault.

Sorting counts: the order within a cell is that of the actors' numbers, on one thread or many, without atomic operations. The arrays of an
index, [.., lane], begin with the cell of each actor in `place`, -1 for one that is in no cell, and end with its place in `actor`.
"""

from __future__ import annotations

import numpy as np

from warprun.random import randint

float32 = np.float32
uint64 = np.uint64


def whole(rng, index, low, high):
    """Return draw `index` as float32, uniform among the whole numbers low .. high, both included, which are exact in float32."""
    return float32(np.int32(low) + randint(rng, index, np.int32(high) - np.int32(low) + 1))


def all_finite(row, first, count):
    """Return whether row[first : first + count] holds neither NaN nor infinity."""
    sound = True
    # For a signed index Numba adds the wrap-around of negative ones, and LLVM then gathers neighbours one by one.
    for n in range(uint64(first), uint64(first + count)):
        sound &= abs(row[n]) < float32(np.inf)
    return sound


def all_can_act(mask, first, rows, width, begin, choices):
    """Return whether the mask allows each of `rows` actors at least one of the `choices` from entry `begin` on.

    The entries of the first actor begin at `first`; each actor has `width` entries.
    """
    sound = True
    for n in range(rows):
        allowed = False
        for k in range(choices):
            allowed |= mask[uint64(first + n * width + begin + k)]
        sound &= allowed
    return sound


def note_numbers(fault, any_fault, lane, code, now, row, first, count, width, stride):
    """Record the first number of row[first : first + count] that is not finite, unless the environment already has a fault.

    Number n is component n % width of actor n // width; the field has `stride` components.
    """
    for n in range(count):
        x = row[first + n]
        if fault[0, lane] == 0 and not abs(x) < float32(np.inf):
            fault[0, lane] = code
            fault[1, lane] = np.int32(now)
            fault[2, lane] = n // width * stride + n % width
            fault[3, lane] = 0 if x != x else 1 if x > float32(0.0) else 2
            any_fault[0] = 1


def note_mask(fault, any_fault, lane, code, now, mask, first, actors, width, begin, choices, component, components):
    """Record the first of `actors`, whose entries begin at `first`, that is allowed none of the `choices` of a component."""
    for n in range(actors):
        if fault[0, lane] == 0 and not all_can_act(mask, first + n * width, 1, width, begin, choices):
            fault[0, lane] = code
            fault[1, lane] = np.int32(now)
            fault[2, lane] = n * components + component
            fault[3, lane] = 0
            any_fault[0] = 1


def sort_actors(place, first, actor, cells, lane):
    """Sort the actors of one environment on one thread."""
    for c in range(cells + 2):
        first[c, lane] = 0
    for n in range(place.shape[0]):
        if place[n, lane] >= 0:
            first[place[n, lane] + 2, lane] += 1
    for c in range(2, cells + 2):
        first[c, lane] += first[c - 1, lane]
    # first[c + 1] is the next free place of cell c, and in the end the first of cell c + 1.
    for n in range(place.shape[0]):
        c = place[n, lane]
        if c >= 0:
            at = first[c + 1, lane]
            actor[at, lane] = n
            place[n, lane] = at
            first[c + 1, lane] = at + 1


def count_actors(place, first, actor, cells, thread, threads):
    """Write the number of actors in each cell c to first[c + 1], this thread's share of the cells of the environment of a block."""
    for c in range(thread, cells, threads):
        count = 0
        for n in range(place.shape[0]):
            if place[n, 0] == c:
                count += 1
        first[c + 1, 0] = count


def begin_cells(first, cells):
    """Turn the numbers of actors into the first places of the cells."""
    first[0, 0] = 0
    for c in range(1, cells + 1):
        first[c, 0] += first[c - 1, 0]


def place_actors(place, first, actor, cells, thread, threads):
    """List the actors of this thread's share of the cells."""
    for c in range(thread, cells, threads):
        at = first[c, 0]
        for n in range(place.shape[0]):
            if place[n, 0] == c:
                actor[at, 0] = n
                at += 1


def number_places(place, first, actor, cells, thread, threads):
    """Write the place of each actor."""
    for at in range(thread, first[cells, 0], threads):
        place[actor[at, 0], 0] = at
