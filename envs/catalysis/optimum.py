"""Compute exact best paths on a lattice: highest return, fewest steps, lowest barrier. Needs Numba.

Moves are deterministic and rewards of cells are negative. Value iteration from minus infinity counts only paths that reach the goal, so it
ends after finitely many sweeps with the exact values, as soon as a sweep changes nothing.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

MOVES = np.array([(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)])
"""Moves in the order of the actions."""


class Path(NamedTuple):
    """Cells from start to goal, with energies and rewards."""

    cells: np.ndarray  # [steps + 1, 3], z from z_lower on
    energies: np.ndarray  # [steps + 1] above the start, in the surface's unit
    rewards: np.ndarray  # [steps], without shaping

    @property
    def steps(self):
        return len(self.rewards)

    @property
    def barrier(self):
        """Highest energy above the start."""
        return float(self.energies.max())

    def discounted(self, gamma):
        """Return the sum of rewards discounted by `gamma`."""
        return float(self.rewards @ gamma ** np.arange(self.steps))


def highest_return(made, gamma):
    """Return the path to the goal with the highest return, discounted by `gamma`."""
    return _greedy(made, _rewards(made), gamma)


def fewest_steps(made):
    """Return a path to the goal with the fewest steps."""
    return _greedy(made, np.full(made.energy.shape, -1.0), 1.0)


def lowest_barrier(made):
    """Return the path with the lowest possible highest energy; among several, the one with the highest undiscounted return."""
    goal = _index(made, made.goal)
    barrier = barriers(made.energy, np.array(goal), made.periodic)[_index(made, made.start)]
    rewards = np.where(made.energy <= barrier, _rewards(made), -np.inf)
    return _greedy(made, rewards, 1.0)


def describe(made, cells):
    """Return the path along `cells` [steps + 1, 3], z from z_lower on, with energies and published rewards."""
    cells = np.asarray(cells, np.int64)
    energies = made.energy[cells[:, 0], cells[:, 1], cells[:, 2] - made.z_lower]
    earned = _rewards(made)[cells[1:, 0], cells[1:, 1], cells[1:, 2] - made.z_lower]
    cancelled = (cells[1:] == cells[:-1]).all(1)
    return Path(cells, energies - made.start_energy, np.where(cancelled, -1.0, earned))


def _index(made, cell):
    return (cell[0], cell[1], cell[2] - made.z_lower)


def _rewards(made):
    rewards = np.clip((made.reference - made.energy) / made.energy_scale, -1.0, 0.0)
    rewards[_index(made, made.goal)] += made.goal_reward
    return rewards


def _greedy(made, rewards, gamma):
    goal = np.array(_index(made, made.goal))
    _, moves = best_values(rewards, goal, gamma, made.periodic)
    cells = follow(moves, np.array(_index(made, made.start)), made.periodic)
    return describe(made, cells + np.array([0, 0, made.z_lower]))


@njit(cache=True)
def neighbour(x, y, z, move, shape, periodic):
    """Return the cell that a move leads to, and whether it exists."""
    x, y, z = x + MOVES[move, 0], y + MOVES[move, 1], z + MOVES[move, 2]
    if periodic:
        x, y = x % shape[0], y % shape[1]
    there = 0 <= x < shape[0] and 0 <= y < shape[1] and 0 <= z < shape[2]
    return x, y, z, there


@njit(cache=True)
def best_values(rewards, goal, gamma, periodic):
    """Return the highest discounted return from every cell and its first move; minus infinity if no path of finite cost leads to the goal.

    The goal and cells without such a path have move -1.
    """
    shape = rewards.shape
    moves = np.full(shape, -1)
    values = np.full(shape, -np.inf)
    values[goal[0], goal[1], goal[2]] = 0.0
    changed, backward = True, False
    while changed:
        changed = False
        for n in range(rewards.size):
            # Sweeps alternate in direction, so that values propagate far in either.
            m = rewards.size - 1 - n if backward else n
            z, y, x = m % shape[2], m // shape[2] % shape[1], m // (shape[2] * shape[1])
            if x == goal[0] and y == goal[1] and z == goal[2]:
                continue
            # Only a higher value changes a move, so moves never form a cycle, even one without cost.
            for move in range(6):
                u, v, w, there = neighbour(x, y, z, move, shape, periodic)
                if there and rewards[u, v, w] + gamma * values[u, v, w] > values[x, y, z]:
                    values[x, y, z] = rewards[u, v, w] + gamma * values[u, v, w]
                    moves[x, y, z] = move
                    changed = True
        backward = not backward
    return values, moves


@njit(cache=True)
def barriers(energy, goal, periodic):
    """Return for every cell the lowest possible highest energy of a path to the goal, including both ends."""
    shape = energy.shape
    lowest = np.full(shape, np.inf)
    lowest[goal[0], goal[1], goal[2]] = energy[goal[0], goal[1], goal[2]]
    changed, backward = True, False
    while changed:
        changed = False
        for n in range(energy.size):
            m = energy.size - 1 - n if backward else n
            z, y, x = m % shape[2], m // shape[2] % shape[1], m // (shape[2] * shape[1])
            for move in range(6):
                u, v, w, there = neighbour(x, y, z, move, shape, periodic)
                if there and max(energy[x, y, z], lowest[u, v, w]) < lowest[x, y, z]:
                    lowest[x, y, z] = max(energy[x, y, z], lowest[u, v, w])
                    changed = True
        backward = not backward
    return lowest


@njit(cache=True)
def follow(moves, start, periodic):
    """Return the cells [n, 3] along `moves` from the start to the end."""
    x, y, z = start[0], start[1], start[2]
    cells = [(x, y, z)]
    while moves[x, y, z] >= 0:
        x, y, z, _ = neighbour(x, y, z, moves[x, y, z], moves.shape, periodic)
        cells.append((x, y, z))
    return np.array(cells)
