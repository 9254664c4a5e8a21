"""Put out a chemical fire with as little effort as possible: the Gray-Scott reaction U + 2 V -> 3 V, V -> P in an open, flat dish.

    du/dt = D_u lap(u) - u v^2 + F (1 - u)
    dv/dt = D_v lap(v) + u v^2 - (F + k) v

u and v are concentrations in units of that of U in the feed. V makes more of itself out of U, which the feed brings; U and V leave with
the overflow, and V turns into P. Source: P. Gray and S. K. Scott, Chem. Eng. Sci. 39 (1984) 1087; equations, diffusivities, time step
and patterns in two dimensions: J. E. Pearson, Complex patterns in a simple system, Science 261 (1993) 189, in his units of length and
time. The dish is a square without flow through its walls.

Discretisation: cells of the side h, the Laplacian of five points, and Euler's method with the time step dt, explicit but for the loss
of u, which is taken at the end of the step. Then u and v stay positive and u at most 1 for dt <= h^2 / (4 D_u), dt (F + k) <= 1 / 2,
and the reaction makes exactly the V that it takes of U.

Action: what 3 x 3 ports do at the beginning of a step: they add dose sum_j a_j b(x - x_j) of V, or take as much away, but no more than
is there; b(d) = exp(-(d / WIDTH)^2 / 2), a_j within -1..1. Then the reaction goes on for SUBSTEPS time steps.

Observation: the field, u and v of all cells. Reward: -(10 mean(v) + cost mean(|a|)), v at the end of the step. An episode begins with
sparks at random places, as in Pearson's paper: u = 1/2 and v = 1/4 in a dish that has u = 1 and v = 0 elsewhere. It ends when v < F + k
everywhere. Then the fire is out: as u <= 1, v (u v - F - k) is negative, and the largest v can only fall.
"""

from typing import Annotated, NamedTuple

import numpy as np

from warprun.environment import Box, float32, single_agent
from warprun.math import exp
from warprun.random import uniform

SIDE = 32  # cells
CELLS = SIDE * SIDE
PORTS, WIDTH = 3, 0.02  # along a side; of a port, in units of length
SUBSTEPS = 10  # an even number: the last one writes to `field`
SPARKS, SPARK = 6, 0.02  # at the beginning, and the width of one


class State(NamedTuple):
    field: Annotated[np.ndarray, 2 * CELLS]  # u of all cells, row by row, then v
    other: Annotated[np.ndarray, 2 * CELLS]  # the field of every second time step


class Params(NamedTuple):
    feed: float = 0.02  # F, 1/time
    kill: float = 0.055  # k, 1/time
    diffusion_u: float = 2e-5  # length^2/time
    diffusion_v: float = 1e-5
    h: float = 0.01  # side of a cell, length
    dt: float = 1.0  # time
    dose: float = 0.25  # of V, at the middle of a port
    cost: float = 0.1  # of all ports at full strength for a step


class Tables(NamedTuple):
    bump: np.ndarray  # [PORTS, SIDE], b(x - x_j) = bump[row of j, y] bump[column of j, x]


def reset(s, rng, p):
    for n in range(CELLS):
        s.field[n] = 0.0
    for spark in range(SPARKS):
        x0 = uniform(rng, 2 * spark, 0.0, float32(SIDE) * p.h)
        y0 = uniform(rng, 2 * spark + 1, 0.0, float32(SIDE) * p.h)
        for n in range(CELLS):
            x, y = (float32(n % SIDE) + 0.5) * p.h - x0, (float32(n // SIDE) + 0.5) * p.h - y0
            s.field[n] = max(s.field[n], exp(-0.5 * (x * x + y * y) / (SPARK * SPARK)))
    for n in range(CELLS):
        s.field[CELLS + n] = 0.25 * s.field[n]
        s.field[n] = 1.0 - 0.5 * s.field[n]
    for n in range(2 * CELLS):
        s.other[n] = s.field[n]
    return State(s.field, s.other)


def step(s, action, p, tables):
    a1, a2, a3, b1, b2, b3, c1, c2, c3 = action  # three rows of three ports
    for y in range(SIDE):
        a, b, c = p.dose * tables.bump[0, y], p.dose * tables.bump[1, y], p.dose * tables.bump[2, y]
        left, middle, right = a * a1 + b * b1 + c * c1, a * a2 + b * b2 + c * c2, a * a3 + b * b3 + c * c3
        for x in range(SIDE):
            n = CELLS + y * SIDE + x
            given = left * tables.bump[0, x] + middle * tables.bump[1, x] + right * tables.bump[2, x]
            s.field[n] = max(0.0, s.field[n] + given)
    for _ in range(SUBSTEPS // 2):
        advance(s.field, s.other, SIDE, p)
        advance(s.other, s.field, SIDE, p)
    total, largest = 0.0, 0.0
    for n in range(CELLS, 2 * CELLS):
        total += s.field[n]
        largest = max(largest, s.field[n])
    effort = abs(a1) + abs(a2) + abs(a3) + abs(b1) + abs(b2) + abs(b3) + abs(c1) + abs(c2) + abs(c3)
    reward = -10.0 * total / float32(CELLS) - p.cost * effort / 9.0
    return State(s.field, s.other), reward, largest < p.feed + p.kill


def advance(now, after, side, p):
    """Write the field `now`, a time step later, to `after`."""
    cells = side * side
    to_u, to_v = p.dt * p.diffusion_u / (p.h * p.h), p.dt * p.diffusion_v / (p.h * p.h)
    for y in range(side):
        row, below, above = y * side, max(y - 1, 0) * side, min(y + 1, side - 1) * side  # nothing flows through the walls
        for x in range(side):
            left, right = max(x - 1, 0), min(x + 1, side - 1)
            u, v = now[row + x], now[cells + row + x]
            u_around = now[row + left] + now[row + right] + now[below + x] + now[above + x]
            v_around = now[cells + row + left] + now[cells + row + right] + now[cells + below + x] + now[cells + above + x]
            u = (u + to_u * (u_around - 4.0 * u) + p.dt * p.feed) / (1.0 + p.dt * (p.feed + v * v))
            after[row + x] = u
            after[cells + row + x] = v + to_v * (v_around - 4.0 * v) + p.dt * (u * v * v - (p.feed + p.kill) * v)


def observe(s, out):
    for n in range(2 * CELLS):
        out[n] = s.field[n]


def make_tables():
    middles = (np.arange(PORTS) + 0.5) * SIDE / PORTS
    away = (np.arange(SIDE) + 0.5 - middles[:, None]) * Params().h
    return Tables(np.exp(-0.5 * (away / WIDTH) ** 2).astype(np.float32))


def draw(axes):
    """Draw v, and what the ports do: filled circles add, hollow ones take away."""
    middles = (np.arange(PORTS) + 0.5) * SIDE / PORTS - 0.5
    shown = axes.imshow(np.zeros((SIDE, SIDE)), cmap="inferno", vmin=0.0, vmax=0.4, origin="lower")
    ports = axes.scatter(np.tile(middles, PORTS), np.repeat(middles, PORTS), edgecolors="#56b4e9", linewidths=2)
    axes.axis("off")
    axes.figure.set_size_inches(2.5, 2.5)

    def show(state, action):
        shown.set_data(state.field[CELLS:].reshape(SIDE, SIDE))
        doses = np.zeros(PORTS**2) if action is None else action
        ports.set_sizes(200 * np.abs(doses))
        ports.set_facecolors(["#56b4e9" if dose > 0 else "none" for dose in doses])

    return show


environment = single_agent(
    state=State,
    params=Params,
    observation=Box((2, SIDE, SIDE), 0.0),
    action=Box(PORTS**2, -1.0, 1.0),
    reset=reset,
    step=step,
    observe=observe,
    tables=make_tables,
    time_limit=100,
)
