"""The published dynamics: an H atom moves between neighbouring cells of a lattice, and the energy of each new cell is a cost.

Source: Lan, Wang, An, Nature Communications 15, 6281 (2024), and the settings published with warp-drive (commit bac017e,
`example_envs/rlchemists`). x and y are periodic; a move across an edge of z (or of x or y if they are not periodic) is cancelled and
costs 1. The reward of other moves is clip((reference - energy) / scale, -1, 0), plus the goal reward at the goal, where the episode ends.

The doubled grids (lh_fine, er2_fine) refine a periodic grid of n points to 2 n - 1 points, without the point between the last and the
first. A move from index 38 to 0 therefore spans a whole cell of the coarse grid, as in the published version. In the published
two-dimensional diffusion a move across an edge of z is not cancelled; here it is, as in all other scenarios.
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
    start_jitter: int = 0  # largest offset of the start in each direction, cells; drawn for each episode
    minimum_image: bool = False  # measure distances to the goal's nearest periodic image, in observations and in the shaping
    shaping: float = 0.0  # reward per step closer to the goal; a step away costs the same
    energy_shaping: float = 0.0  # reward per unit of energy downhill; uphill costs the same
    discount: float = 0.99  # gamma of the agent, used by reports only


class Tables(NamedTuple):
    energy: np.ndarray  # [nx, ny, layers] above the reference
    nx: int32
    ny: int32
    layers: int32
    z_lower: int32
    nz: float32  # divisor of z in observations
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
    """Return an index wrapped into 0..size - 1; it may be outside by one at most."""
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
    """Return the distance of two indices in cells, the shorter way around if `images` is true."""
    straight = int32(abs(a - b))
    return int32(where(images, min(straight, int32(size - straight)), straight))


def cost_to_come(x, y, z, energy, p, tables):
    """Return minus the shaping potential of a cell: the number of moves to the goal and the energy, each with its weight.

    The shaping reward of a step is the undiscounted difference of potentials. With the discounted difference of Ng, Harada, Russell 1999
    an agent that rests far from the goal is paid as much as one that moves there, and agents came to rest. All paths to the goal earn the
    same sum of shaping rewards, and tests check that the best paths of the published scenarios stay the best.
    """
    images = p.minimum_image & tables.periodic
    across = apart(x, tables.goal_x, tables.nx, images) + apart(y, tables.goal_y, tables.ny, images)
    moves = float32(int32(across + abs(z - tables.goal_z)))
    return p.shaping * moves + p.energy_shaping * min(energy, tables.energy_scale)


def distance(s, p, tables):
    """Return the distance to the goal, divided by that of the start."""
    images = p.minimum_image & tables.periodic
    dx = float32(apart(s.x, tables.goal_x, tables.nx, images))
    dy = float32(apart(s.y, tables.goal_y, tables.ny, images))
    dz = float32(int32(s.z - tables.goal_z))
    return sqrt(dx * dx + dy * dy + dz * dz) / tables.start_distance


def observe(s, p, tables):
    return float32(s.x) / float32(tables.nx), float32(s.y) / float32(tables.ny), float32(s.z) / tables.nz, distance(s, p, tables)


def rise(x, y, z, here, tables):
    """Return the energy of a neighbouring cell minus `here`, limited to -2..2; a cell beyond an edge counts as 2."""
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
