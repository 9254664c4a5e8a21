"""The published dynamics: an H atom moves from cell to cell of a lattice, and pays for the energy of where it arrives.

Source: Lan, Wang, An, Nature Communications 15, 6281 (2024), and the settings published with warp-drive (commit bac017e,
`example_envs/rlchemists`). x and y are periodic; a move across an edge of z (or of x or y, where they are not periodic) is cancelled and
costs 1. Other moves earn clip((reference - energy) / scale, -1, 0), and the goal's reward in its cell, where the episode ends.

The doubled grids (lh_fine, er2_fine) refine a periodic grid of n points to 2 n - 1, without the point between the last and the first:
so a move from index 38 to 0 jumps a whole cell of the coarse grid. That is how they were published, and it is kept.
In the published two-dimensional diffusion a move across an edge of z is not cancelled; here it is, as everywhere else.
"""

from typing import NamedTuple

import numpy as np

from warprun.environment import float32, int32
from warprun.math import clip, cos, pi, sin, sqrt, where
from warprun.random import randint


class State(NamedTuple):
    x: int32
    y: int32
    z: int32  # from z_lower on


class Params(NamedTuple):
    start_jitter: int = 0  # cells by which the start may be off in each direction, drawn for each episode
    minimum_image: bool = False  # measure distances to the goal's nearest periodic image, in observations and in the shaping
    shaping: float = 0.0  # reward for a step closer to the goal; a step back pays it back
    energy_shaping: float = 0.0  # the same for a step down in energy, per unit of energy
    discount: float = 0.99  # the agent's gamma, by which evaluations discount; steps do not depend on it


class Tables(NamedTuple):
    energy: np.ndarray  # [nx, ny, layers] above the reference
    nx: int32
    ny: int32
    layers: int32
    z_lower: int32
    nz: float32  # what z is divided by in observations
    periodic: int32
    start_x: int32
    start_y: int32
    start_z: int32
    goal_x: int32
    goal_y: int32
    goal_z: int32
    start_distance: float32  # of start and goal, cells
    goal_reward: float32
    energy_scale: float32


def make_tables(made):
    """Return the tables of a landscape."""
    start, goal = np.array(made.start), np.array(made.goal)
    return Tables(
        made.relative,
        *(int32(n) for n in (*made.energy.shape, made.z_lower)),
        float32(made.nz),
        int32(made.periodic),
        *(int32(n) for n in (*made.start, *made.goal)),
        float32(np.linalg.norm(start - goal)),
        float32(made.goal_reward),
        float32(made.energy_scale),
    )


def around(n, size):
    """Return an index that has left 0..size - 1 by one at most, on the other side."""
    return int32(where(n < 0, int32(n + size), where(n >= size, int32(n - size), int32(n))))


def within(n, size):
    """Return an index limited to 0..size - 1."""
    return int32(clip(int32(n), int32(0), int32(size - 1)))


def reset(rng, p, tables):
    span = 2 * p.start_jitter + 1
    x = tables.start_x + int32(randint(rng, 0, span)) - p.start_jitter
    y = tables.start_y + int32(randint(rng, 1, span)) - p.start_jitter
    z = tables.start_z + int32(randint(rng, 2, span)) - p.start_jitter
    x = where(tables.periodic, int32(x % tables.nx), within(x, tables.nx))
    y = where(tables.periodic, int32(y % tables.ny), within(y, tables.ny))
    z = int32(within(z - tables.z_lower, tables.layers) + tables.z_lower)
    at_goal = (x == tables.goal_x) & (y == tables.goal_y) & (z == tables.goal_z)
    return State(where(at_goal, tables.start_x, x), where(at_goal, tables.start_y, y), where(at_goal, tables.start_z, z))


def step(s, action, p, tables):
    x = int32(s.x + int32(action == 0) - int32(action == 1))
    y = int32(s.y + int32(action == 2) - int32(action == 3))
    z = int32(s.z + int32(action == 4) - int32(action == 5))
    layer = int32(z - tables.z_lower)
    wrapped_x, wrapped_y = around(x, tables.nx), around(y, tables.ny)
    across = (wrapped_x != x) | (wrapped_y != y)
    cancelled = (layer < 0) | (layer >= tables.layers) | (across & (tables.periodic == 0))
    x = where(cancelled, s.x, wrapped_x)
    y = where(cancelled, s.y, wrapped_y)
    z = where(cancelled, s.z, z)
    energy = tables.energy[x, y, z - tables.z_lower]
    arrived = (x == tables.goal_x) & (y == tables.goal_y) & (z == tables.goal_z)
    reward = where(cancelled, -1.0, clip(-energy / tables.energy_scale, -1.0, 0.0)) + where(arrived, tables.goal_reward, 0.0)
    before = tables.energy[s.x, s.y, s.z - tables.z_lower]
    left, reached = cost_to_come(s.x, s.y, s.z, before, p, tables), where(arrived, 0.0, cost_to_come(x, y, z, energy, p, tables))
    return State(x, y, z), reward + left - reached, arrived


def apart(a, b, size, images):
    """Return how many cells lie between two indices, the short way round where `images` is true."""
    straight = int32(abs(a - b))
    return int32(where(images, min(straight, int32(size - straight)), straight))


def cost_to_come(x, y, z, energy, p, tables):
    """Return minus the potential of a cell: the moves from it to the goal, and its energy, which a barrier shows before it is crossed.

    A step earns the undiscounted difference. Discounted as in Ng, Harada, Russell 1999, a potential pays for resting far from the goal as
    much as for going there, once the agent knows what to expect; so agents came to rest. Undiscounted it pays for arriving only. All paths
    to the goal still earn the same sum, and tests prove the best path of the published scenarios unchanged by it.
    """
    images = p.minimum_image & tables.periodic
    across = apart(x, tables.goal_x, tables.nx, images) + apart(y, tables.goal_y, tables.ny, images)
    moves = float32(int32(across + abs(z - tables.goal_z)))
    return p.shaping * moves + p.energy_shaping * min(energy, tables.energy_scale)


def distance(s, p, tables):
    """Return the distance to the goal as a share of the start's."""
    images = p.minimum_image & tables.periodic
    dx = float32(apart(s.x, tables.goal_x, tables.nx, images))
    dy = float32(apart(s.y, tables.goal_y, tables.ny, images))
    dz = float32(int32(s.z - tables.goal_z))
    return sqrt(dx * dx + dy * dy + dz * dz) / tables.start_distance


def observe(s, p, tables):
    return float32(s.x) / float32(tables.nx), float32(s.y) / float32(tables.ny), float32(s.z) / tables.nz, distance(s, p, tables)


def rise(x, y, z, here, tables):
    """Return how much higher a cell next to one of energy `here` is, within -2..2; one beyond an edge counts as a wall."""
    wrapped_x, wrapped_y = around(x, tables.nx), around(y, tables.ny)
    level = int32(z - tables.z_lower)
    beyond = (level < 0) | (level >= tables.layers) | (((wrapped_x != x) | (wrapped_y != y)) & (tables.periodic == 0))
    level = within(level, tables.layers)
    return where(beyond, 2.0, clip(tables.energy[wrapped_x, wrapped_y, level] - here, -2.0, 2.0))


def observe_neighbours(s, p, tables):
    here = tables.energy[s.x, s.y, s.z - tables.z_lower]
    return (
        *observe_periodic(s, p, tables),
        rise(int32(s.x + 1), s.y, s.z, here, tables),
        rise(int32(s.x - 1), s.y, s.z, here, tables),
        rise(s.x, int32(s.y + 1), s.z, here, tables),
        rise(s.x, int32(s.y - 1), s.z, here, tables),
        rise(s.x, s.y, int32(s.z + 1), here, tables),
        rise(s.x, s.y, int32(s.z - 1), here, tables),
    )


def observe_periodic(s, p, tables):
    x, y = 2.0 * pi * float32(s.x) / float32(tables.nx), 2.0 * pi * float32(s.y) / float32(tables.ny)
    return sin(x), cos(x), sin(y), cos(y), float32(s.z) / tables.nz, distance(s, p, tables)
