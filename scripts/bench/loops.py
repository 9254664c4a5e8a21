"""Environments with loops in `step` against vectorized NumPy: what `python scripts/reproduce.py --only loops` measures.

One thread, random actions drawn before. `rk4-N` integrates the Lotka-Volterra equations with N steps of the Runge-Kutta method, `row` is
the diffusion in 16 cells with 10 steps, `table` goes 10 steps through a table by bilinear interpolation, `newton` solves an equation until
it converges. NumPy takes the same whole step: state, reward, end, clock, return, the next episode, observation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median

import numpy as np
from common import ROOT, rate

sys.path.insert(0, str(ROOT))

from tests.environments import loops
from tests.simulation.rollouts import make

KINDS = ("rk4-1", "rk4-10", "rk4-100", "row", "table", "newton")
FUNCTIONS = {"rk4": "integrate", "row": "spread", "table": "descend", "newton": "solve"}
SECONDS = 0.3
"""Least time of one measurement."""
ENVIRONMENTS = 10_000
Arrays = dict[str, np.ndarray]


def speeds() -> dict[str, dict[str, float]]:
    """Return million steps per second of both sides, medians of three turns, and their ratio, by kind."""
    found = {}
    for kind in KINDS:
        steps = {"warprun": warprun(kind, ENVIRONMENTS), "NumPy": vectorized(kind, ENVIRONMENTS)}
        for step in steps.values():
            step()  # compiles
        turns = [{name: rate(step, SECONDS) / 1e6 for name, step in steps.items()} for _ in range(3)]
        rates = {name: median(turn[name] for turn in turns) for name in steps}
        found[kind] = {name: round(speed, 3) for name, speed in (rates | {"ratio": rates["warprun"] / rates["NumPy"]}).items()}
    return found


def substeps(kind: str) -> int:
    """Return how often the body of the loop runs in a step."""
    return int(kind.partition("-")[2] or 10)


def warprun(kind: str, n: int) -> Callable[[], int]:
    """Return a step of all environments by the kernel, which returns their number."""
    environment = loops.environment(FUNCTIONS[kind.partition("-")[0]])
    engine = make(environment, f"loops_{kind.partition('-')[0]}", n_envs=n, horizon=1, params=loops.Params(substeps=substeps(kind)))
    (group,) = engine.trajectory.groups.values()
    group.action[0].copy_(group.action[0].random_(0, 2))

    def step() -> int:
        engine.step(0)
        return n

    return step


# NumPy ----------------------------------------------------------------------------------------------------------------------------------


def start(n: int) -> Arrays:
    """Return states and actions of `n` environments."""
    rng = np.random.default_rng(0)
    states = {name: rng.uniform(low, low + 0.4, n).astype(np.float32) for name, low in (("u", 0.5), ("w", 0.6))}
    return states | {"a": rng.integers(0, 2, n).astype(np.float32), "cells": rng.random((loops.CELLS, n), np.float32)}


def vectorized(kind: str, n: int) -> Callable[[], int]:
    """Return the same step in NumPy, one operation for all environments, as one writes it."""
    environment, rng = loops.environment(FUNCTIONS[kind.partition("-")[0]]), np.random.default_rng(0)
    state, dynamics = start(n) | {"tried": np.zeros(n, np.int32)}, dynamics_of(kind, n)
    clock, returns = np.zeros(n, np.int32), np.zeros(n, np.float32)
    ended_returns: list[float] = []

    def step() -> int:
        reward, terminated = dynamics(state)
        clock[:] += 1
        returns[:] += reward
        (ended,) = np.nonzero(terminated | (clock >= environment.time_limit))
        if len(ended):
            ended_returns.append(float(returns[ended].sum()))
            clock[ended], returns[ended] = 0, 0.0
            state["u"][ended], state["w"][ended] = rng.uniform(0.5, 0.9, len(ended)), rng.uniform(0.6, 1.0, len(ended))
            state["cells"][:, ended], state["tried"][ended] = rng.random((loops.CELLS, len(ended)), np.float32), 0
        np.stack((state["u"], state["w"], state["tried"].astype(np.float32), state["cells"][3]), axis=1)  # what is observed
        return n

    return step


def dynamics_of(kind: str, n: int) -> Callable[[Arrays], tuple[np.ndarray, np.ndarray]]:
    """Return the function that changes the states and returns rewards, and which environments are in a terminal state."""
    p, height = loops.Params(substeps=substeps(kind)), loops.tables("table").height
    dt, never = np.float32(p.dt), np.zeros(n, np.bool_)

    def integrate(state: Arrays) -> tuple[np.ndarray, np.ndarray]:
        u, w = state["u"], state["w"]
        for _ in range(p.substeps):
            u, w = loops.runge_kutta(u, w, state["a"], dt)
        state["u"], state["w"] = u, w
        return u - w, u > 20

    def spread(state: Arrays) -> tuple[np.ndarray, np.ndarray]:
        c, d, heat = state["cells"], np.float32(p.diffusivity), np.float32(0.1) * state["a"] * dt
        for _ in range(p.substeps):
            change = np.empty_like(c)
            change[1:-1] = c[:-2] - 2 * c[1:-1] + c[2:]
            change[0] = c[1] - c[0]
            change[-1] = c[-2] - c[-1]
            c += d * change
            c[0] += heat
        total = c.sum(0)
        state["w"] = total / loops.CELLS
        return total, never

    def level(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        i, j = x.astype(np.int32), y.astype(np.int32)
        a, b = x - i.astype(np.float32), y - j.astype(np.float32)
        low = height[i, j] + b * (height[i, j + 1] - height[i, j])
        high = height[i + 1, j] + b * (height[i + 1, j + 1] - height[i + 1, j])
        return low + a * (high - low)

    def descend(state: Arrays) -> tuple[np.ndarray, np.ndarray]:
        x, y, most = state["u"], state["w"], np.float32(loops.LAST)
        for _ in range(p.substeps):
            at = level(x, y)
            x = np.clip(x + dt * (at + np.float32(0.1) * state["a"]), np.float32(0), most)
            y = np.clip(y - dt * (at - np.float32(0.05)), np.float32(0), most)
        state["u"], state["w"] = x, y
        return level(x, y), never

    def solve(state: Arrays) -> tuple[np.ndarray, np.ndarray]:
        u = state["u"]
        b = u + np.float32(0.3) * state["a"] + np.float32(0.5)
        x, change, tried = np.ones_like(b), np.ones_like(b), np.zeros(n, np.int32)
        for _ in range(20):
            running = np.abs(change) > p.tolerance
            if not running.any():
                break
            change = np.where(running, (x + np.log(x) - b) / (1 + 1 / x), change)
            x = np.where(running, np.maximum(x - change, np.float32(0.05)), x)
            tried += running
        state["u"], state["w"], state["tried"] = u + np.float32(0.05) * x * np.exp(-u), x, tried
        return x - u, u > 4

    return {"rk4": integrate, "row": spread, "table": descend, "newton": solve}[kind.partition("-")[0]]
