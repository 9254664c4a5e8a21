"""Sort the actors of an environment by the numbers of their cells, for `environment.Index`: what kernels call.

Counting sort: the order within a cell is that of the actors' numbers, on one thread or many, without atomic operations. The arrays of an
index, [.., lane], begin with the cell of each actor in `place`, -1 for one that is in no cell, and end with its place in `actor`.
"""

from __future__ import annotations


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
