"""Neighbours among many actors in a square: what environment functions call on an `environment.Index` with the fields `x` and `y`.

The square from 0 to `extent` along both axes is cut into `side` x `side` cells. The function `cell` of the index returns `cell_at` of an
actor, or -1 for one that nobody should find. With two to four actors to a cell a search visits a few cells, whatever the number of
actors. Actors outside the square are in the cells at its edge, and are found with less care: keep actors within it.
"""

import numpy as np

from warprun.math import clip

int32 = np.int32
float32 = np.float32

NEARLY = 0.999
"""Cells are taken to be this much narrower than they are, because the cell of an actor at an edge is subject to rounding."""


def side_for(actors, in_a_cell):
    """Return how many cells a side should have, so that about `in_a_cell` of `actors` actors are in a cell; for declarations."""
    return max(1, int((actors / in_a_cell) ** 0.5))


def line_at(x, extent, side):
    """Return the column of cells that `x` is in, or the row that a y is in: 0 to `side` - 1."""
    return int32(clip(x * float32(side) / extent, 0.0, float32(side - 1)))


def cell_at(x, y, extent, side):
    """Return the number of the cell that a place is in: row times `side` plus column."""
    return line_at(y, extent, side) * side + line_at(x, extent, side)


def nearest(index, x, y, but, k, extent, side, out):
    """Find the `k` actors nearest to (x, y), without actor `but`: in the order of their distances, then of their numbers.

    Write the squares of the distances to out[0] to out[k - 1] and the places of the actors in `index` to out[k] to out[2 k - 1], as
    numbers. Return how many actors were found, k or fewer.
    """
    row, column, found, ring, searching = line_at(y, extent, side), line_at(x, extent, side), 0, 0, True
    while searching and ring < side:
        # The cells at a distance of `ring` cells: all of the first and last row, and two of each row between.
        for r in range(max(row - ring, 0), min(row + ring, side - 1) + 1):
            whole = r == row - ring or r == row + ring
            for c in range(column - ring, column + ring + 1, 1 if whole else 2 * ring):
                if c >= 0 and c < side:
                    for at in range(index.first[r * side + c], index.first[r * side + c + 1]):
                        if index.actor[at] != but:
                            dx, dy = index.x[at] - x, index.y[at] - y
                            found = keep_nearest(index, dx * dx + dy * dy, at, k, found, out)
        # All other actors are at least `ring` cells away.
        reach = NEARLY * extent * float32(ring) / float32(side)
        searching = found < k or out[k - 1] >= reach * reach
        ring += 1
    return found


def keep_nearest(index, square, at, k, found, out):
    """Put the actor at a place among the nearest ones, see `nearest`; return how many there are now."""
    if found == k and square > out[k - 1]:
        return found
    actor, n = index.actor[at], found
    while n > 0 and (square < out[n - 1] or (square == out[n - 1] and actor < index.actor[int32(out[k + n - 1])])):
        if n < k:
            out[n], out[k + n] = out[n - 1], out[k + n - 1]
        n -= 1
    if n < k:
        out[n], out[k + n] = square, float32(at)
    return min(found + 1, k)


def nearest_within(index, x, y, distance, extent, side):
    """Return the place of the actor nearest to (x, y), less than `distance` away, -1 without one; of equally near ones the first."""
    best, square, actor = -1, distance * distance, -1
    for r in range(line_at(y - distance, extent, side), line_at(y + distance, extent, side) + 1):
        for c in range(line_at(x - distance, extent, side), line_at(x + distance, extent, side) + 1):
            for at in range(index.first[r * side + c], index.first[r * side + c + 1]):
                dx, dy = index.x[at] - x, index.y[at] - y
                if dx * dx + dy * dy < square or (best >= 0 and dx * dx + dy * dy == square and index.actor[at] < actor):
                    best, square, actor = at, dx * dx + dy * dy, index.actor[at]
    return best
