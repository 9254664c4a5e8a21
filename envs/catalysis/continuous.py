"""The landscape of `lattice` with continuous actions: steps of any direction, up to one cell per axis. Not part of the published task.

The energy between cells is interpolated linearly in each direction. The reward of a step is clip((reference - energy) / scale, -1, 0) at
its end point. A step across an edge ends at the edge and costs 1. The goal is a ball around the goal cell.
"""

from typing import NamedTuple

from warprun.environment import float32, int32
from warprun.math import clip, cos, floor, pi, sin, sqrt, where
from warprun.random import uniform


class State(NamedTuple):
    x: float32  # cells
    y: float32
    z: float32  # from z_lower on


class Params(NamedTuple):
    start_jitter: float = 0.0  # largest offset of the start in each direction, cells; drawn for each episode
    goal_radius: float = 0.5  # cells
    minimum_image: bool = False  # measure distances to the goal's nearest periodic image, in observations and in the shaping
    shaping: float = 0.0  # reward per cell closer to the goal; moving away costs the same
    energy_shaping: float = 0.0  # reward per unit of energy downhill; uphill costs the same
    discount: float = 0.99  # gamma of the agent, used by reports only


def reset(rng, p, tables):
    x = float32(tables.start_x) + uniform(rng, 0, -p.start_jitter, p.start_jitter)
    y = float32(tables.start_y) + uniform(rng, 1, -p.start_jitter, p.start_jitter)
    z = float32(tables.start_z) + uniform(rng, 2, -p.start_jitter, p.start_jitter)
    return State(inside(x, tables.nx, tables.periodic), inside(y, tables.ny, tables.periodic), layer(z, tables))


def inside(x, size, periodic):
    """Return a coordinate within its axis: wrapped if the axis is periodic, else limited to its edges."""
    n = float32(size)
    return where(periodic, x - n * floor(x / n), clip(x, 0.0, n - 1.0))


def layer(z, tables):
    """Return z limited to the existing layers."""
    lowest = float32(tables.z_lower)
    return clip(z, lowest, lowest + float32(tables.layers) - 1.0)


def step(s, action, p, tables):
    x, y, z = s.x + action[0], s.y + action[1], s.z + action[2]
    new = State(inside(x, tables.nx, tables.periodic), inside(y, tables.ny, tables.periodic), layer(z, tables))
    # On a surface of one layer a step in z has no effect and no cost.
    stopped = (new.z != z) & (tables.layers > 1) | (tables.periodic == 0) & ((new.x != x) | (new.y != y))
    energy = energy_at(new.x, new.y, new.z, tables)
    gap = distance(new, p, tables)
    arrived = gap <= p.goal_radius
    reward = where(stopped, -1.0, clip(-energy / tables.energy_scale, -1.0, 0.0)) + where(arrived, tables.goal_reward, 0.0)
    left = p.shaping * distance(s, p, tables) + p.energy_shaping * limited(energy_at(s.x, s.y, s.z, tables), tables)
    reached = where(arrived, 0.0, p.shaping * gap + p.energy_shaping * limited(energy, tables))
    return new, reward + left - reached, arrived


def limited(energy, tables):
    return min(energy, tables.energy_scale)


def energy_at(x, y, z, tables):
    """Return the energy between the eight cells around a point, linear along each axis."""
    left, front, below = floor(x), floor(y), floor(z)
    u, v, w = x - left, y - front, z - below
    i, j, k = int32(left), int32(front), int32(int32(below) - tables.z_lower)
    # A coordinate just below an edge may have been rounded onto it.
    i, j = int32(where(i >= tables.nx, int32(0), i)), int32(where(j >= tables.ny, int32(0), j))
    right, back = after(i, tables.nx, tables.periodic), after(j, tables.ny, tables.periodic)
    above = int32(min(int32(k + 1), int32(tables.layers - 1)))
    low = face(tables.energy, i, right, j, back, k, u, v)
    high = face(tables.energy, i, right, j, back, above, u, v)
    return low + w * (high - low)


def after(i, size, periodic):
    """Return the cell after `i`; the last one of an axis that is not periodic is followed by itself."""
    return int32(where(i + 1 < size, int32(i + 1), where(periodic, int32(0), i)))


def face(energy, i, right, j, back, k, u, v):
    front_side = energy[i, j, k] + u * (energy[right, j, k] - energy[i, j, k])
    back_side = energy[i, back, k] + u * (energy[right, back, k] - energy[i, back, k])
    return front_side + v * (back_side - front_side)


def apart(a, b, size, images):
    """Return the distance of two coordinates, the shorter way around if `images` is true."""
    straight = abs(a - float32(b))
    return where(images, min(straight, float32(size) - straight), straight)


def distance(s, p, tables):
    """Return the distance to the goal, cells."""
    images = p.minimum_image & tables.periodic
    dx, dy = apart(s.x, tables.goal_x, tables.nx, images), apart(s.y, tables.goal_y, tables.ny, images)
    dz = s.z - float32(tables.goal_z)
    return sqrt(dx * dx + dy * dy + dz * dz)


def observe(s, p, tables):
    return s.x / float32(tables.nx), s.y / float32(tables.ny), s.z / tables.nz, distance(s, p, tables) / tables.start_distance


def rise(dx, dy, dz, here, s, tables):
    """Return the energy of a point near `s` minus `here`, the energy at `s`, limited to -2..2; points beyond an edge count as the edge."""
    x, y = inside(s.x + dx, tables.nx, tables.periodic), inside(s.y + dy, tables.ny, tables.periodic)
    return clip(energy_at(x, y, layer(s.z + dz, tables), tables) - here, -2.0, 2.0)


def observe_neighbours(s, p, tables):
    here = energy_at(s.x, s.y, s.z, tables)
    return (
        *observe_periodic(s, p, tables),
        rise(1.0, 0.0, 0.0, here, s, tables),
        rise(-1.0, 0.0, 0.0, here, s, tables),
        rise(0.0, 1.0, 0.0, here, s, tables),
        rise(0.0, -1.0, 0.0, here, s, tables),
        rise(0.0, 0.0, 1.0, here, s, tables),
        rise(0.0, 0.0, -1.0, here, s, tables),
    )


def observe_periodic(s, p, tables):
    x, y = 2.0 * pi * s.x / float32(tables.nx), 2.0 * pi * s.y / float32(tables.ny)
    return sin(x), cos(x), sin(y), cos(y), s.z / tables.nz, distance(s, p, tables) / tables.start_distance
