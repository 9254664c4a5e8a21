"""Loops within a step, of every kind that scientists write: `kind` chooses one. `scripts/bench/loops.py` measures them."""

from typing import Annotated, NamedTuple

import numpy as np

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.math import clip, exp, log, maximum
from warprun.random import uniform

CELLS = 16
SIDE = 32
LAST = 30.5


class Params(NamedTuple):
    dt: float = 0.02
    substeps: int = 10
    diffusivity: float = 0.2
    tolerance: float = 1e-5


class State(NamedTuple):
    prey: float32
    predators: float32
    tried: int32
    cells: Annotated[np.ndarray, CELLS]


class Tables(NamedTuple):
    height: np.ndarray  # [SIDE, SIDE]


def tables(kind):
    x = np.arange(SIDE, dtype=np.float32)
    return Tables(np.sin(0.37 * x)[:, None] * np.cos(0.23 * x).astype(np.float32))


def reset(s, rng):
    for n in range(CELLS):
        s.cells[n] = uniform(rng, 2 + n, 0.0, 1.0)
    return State(uniform(rng, 0, 0.5, 0.9), uniform(rng, 1, 0.6, 1.0), int32(0), s.cells)


def slopes(u, w, a):
    return u * (1.0 - w) - 0.4 * a * u, w * (u - 1.0) - 0.2 * a * w


def runge_kutta(u, w, a, dt):
    k1u, k1w = slopes(u, w, a)
    k2u, k2w = slopes(u + 0.5 * dt * k1u, w + 0.5 * dt * k1w, a)
    k3u, k3w = slopes(u + 0.5 * dt * k2u, w + 0.5 * dt * k2w, a)
    k4u, k4w = slopes(u + dt * k3u, w + dt * k3w, a)
    sixth = dt / 6.0
    return u + sixth * (k1u + 2.0 * k2u + 2.0 * k3u + k4u), w + sixth * (k1w + 2.0 * k2w + 2.0 * k3w + k4w)


def integrate(s, action, p):
    """Steps whose number is a parameter."""
    u, w = s.prey, s.predators
    for _ in range(p.substeps):
        u, w = runge_kutta(u, w, float32(action), p.dt)
    return State(u, w, s.tried, s.cells), u - w, u > 20.0


def spread(s, action, p):
    """Nested loops over an array; the ends of the row are open."""
    heat = 0.1 * float32(action)
    for _ in range(p.substeps):
        left = s.cells[0]
        s.cells[0] = left + p.diffusivity * (s.cells[1] - left) + heat * p.dt
        for n in range(1, CELLS - 1):
            here = s.cells[n]
            s.cells[n] = here + p.diffusivity * (left - 2.0 * here + s.cells[n + 1])
            left = here
        s.cells[CELLS - 1] += p.diffusivity * (left - s.cells[CELLS - 1])
    total = float32(0.0)
    for n in range(CELLS):
        total += s.cells[n]
    return State(s.prey, total / float32(CELLS), s.tried, s.cells), total, False


def between(height, x, y):
    """Bilinear interpolation."""
    i, j = int32(x), int32(y)
    a, b = x - float32(i), y - float32(j)
    low = height[i, j] + b * (height[i, j + 1] - height[i, j])
    high = height[i + 1, j] + b * (height[i + 1, j + 1] - height[i + 1, j])
    return low + a * (high - low)


def descend(s, action, p, tables):
    """A way through a table."""
    x, y = s.prey, s.predators
    for _ in range(p.substeps):
        level = between(tables.height, x, y)
        x = clip(x + p.dt * (level + 0.1 * float32(action)), 0.0, LAST)
        y = clip(y - p.dt * (level - 0.05), 0.0, LAST)
    return State(x, y, s.tried, s.cells), between(tables.height, x, y), False


def solve(s, action, p):
    """Newton's method for x + log x = b, until it has converged: lanes leave the loop at different times."""
    b = s.prey + 0.3 * float32(action) + 0.5
    x = float32(1.0)
    tried = int32(0)
    change = float32(1.0)
    while abs(change) > p.tolerance and tried < 20:
        change = (x + log(x) - b) / (1.0 + 1.0 / x)
        x = maximum(x - change, 0.05)
        tried += 1
    return State(s.prey + 0.05 * x * exp(-s.prey), x, int32(tried), s.cells), x - s.prey, s.prey > 4.0


def wander(s, action, p):
    """Loops within branches, whose length the state decides; break, continue, and loops in loops that lanes leave at different times."""
    u, w, tried = s.prey, s.predators, int32(0)
    if u > w:
        for n in range(1 + int32(4.0 * u)):
            u -= 0.01 * (u - w)
            if n == 3:
                continue
            for k in range(n):
                if s.cells[k] > u:
                    break
                tried += 1
                s.cells[k] += 0.01 * float32(n)
    elif action == 1:
        for n in range(3):
            w -= 0.02 * s.cells[n + 2]
            tried += 2
    while tried % 5 != 0:
        tried += 1
        u += 0.03
    most, at = s.cells[0], int32(0)
    for n in range(1, CELLS):
        if s.cells[n] > most:
            most, at = s.cells[n], int32(n)
    s.cells[at] *= 0.9
    return State(u + 0.1 * most - 0.05, w + 0.01 * float32(at), int32(tried + at), s.cells), u - w, u > 3.0


def observe(s):
    return s.prey, s.predators, float32(s.tried), s.cells[3]


STEPS = {"integrate": integrate, "spread": spread, "descend": descend, "solve": solve, "wander": wander}


def environment(kind="integrate"):
    return single_agent(
        state=State,
        params=Params,
        observation=Box(4),
        action=Discrete(2),
        reset=reset,
        step=STEPS[kind],
        observe=observe,
        time_limit=50,
        tables=tables,
        options={"kind": kind},
    )
