"""Measure environments with loops in `step` against vectorized NumPy and against hand-written loops over lanes.

    python scripts/bench/loops.py [--envs 10000] [--rounds 5] [--kinds rk4-10 row table newton]

One thread, random actions drawn before. `rk4-N` integrates the Lotka-Volterra equations with N steps of the Runge-Kutta method, `row` is
the diffusion in 16 cells with 10 steps, `table` goes 10 steps through a table by bilinear interpolation, `newton` solves an equation until
it converges. The environments are in `tests/environments/loops.py`. The candidates take turns; the table has the medians of the rounds.
NumPy takes the same whole step: state, reward, end, clock, return, the next episode, observation. The limit is only the arithmetic of the
state, for 64 lanes at a time in loops over lanes that are written by hand, compiled for the same vectors; `newton` has none.

What the limit of one environment takes at least, in operations on float32 and bytes between first-level cache and registers:

    rk4-N    N * (42 operations, of which half are fused, 20 bytes)
    row      10 * (48 operations, of which a third is fused, 128 bytes): as many bytes as a core moves meanwhile
    table    11 * (20 operations, 4 gathered numbers, 20 bytes)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
from numba import njit

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from common import in_turn, medians, rate, settings

from tests.environments import loops
from tests.simulation.rollouts import make
from warprun.kernels.compile import KERNELS, kernel_function
from warprun.kernels.lanes import lane_loop
from warprun.math import clip

KINDS = ("rk4-1", "rk4-2", "rk4-4", "rk4-10", "rk4-30", "rk4-100", "row", "table", "newton")
FUNCTIONS = {"rk4": "integrate", "row": "spread", "table": "descend", "newton": "solve"}
SECONDS = 0.3
"""Least time of one measurement."""
LANES = 64
Arrays = dict[str, np.ndarray]


def main() -> None:
    """Print the table."""
    chosen = settings(__doc__, choices={"kinds": KINDS}, envs=10_000, rounds=5, kinds=list(KINDS))
    n = chosen.envs
    print(f"{n:,} environments, one thread, million steps/s, medians of {chosen.rounds}")
    print(f"{'':10}{'warprun':>10}{'NumPy':>10}{'ratio':>8}{'limit':>10}{'share':>8}")
    for kind in chosen.kinds:
        limits = [by_hand(kind, n)] if kind.partition("-")[0] in LIMITS else []
        ours, numpy, *limit = rates([warprun(kind, n), vectorized(kind, n), *limits], n, chosen.rounds)
        of_limit = "".join(f"{most / 1e6:10.2f}{ours / most:8.0%}" for most in limit) or f"{'-':>10}{'-':>8}"
        print(f"{kind:10}{ours / 1e6:10.2f}{numpy / 1e6:10.2f}{ours / numpy:8.1f}{of_limit}", flush=True)


def rates(candidates: list[Callable[[], None]], n: int, rounds: int) -> list[float]:
    """Return the median steps per second of each candidate."""
    for candidate in candidates:
        candidate()  # compiles
    tasks = {str(number): lambda step=step: n * rate(lambda: step() or 1, SECONDS) for number, step in enumerate(candidates)}
    return list(medians(in_turn(tasks, rounds)).values())


def substeps(kind: str) -> int:
    """Return how often the body of the loop runs in a step."""
    return int(kind.partition("-")[2] or 10)


def warprun(kind: str, n: int) -> Callable[[], None]:
    """Return a step of all environments by the kernel."""
    environment = loops.environment(FUNCTIONS[kind.partition("-")[0]])
    engine = make(environment, f"loops_{kind.partition('-')[0]}", n_envs=n, horizon=1, params=loops.Params(substeps=substeps(kind)))
    (group,) = engine.trajectory.groups.values()
    group.action[0].copy_(group.action[0].random_(0, 2))
    return lambda: engine.step(0)


# NumPy ----------------------------------------------------------------------------------------------------------------------------------


def start(n: int) -> Arrays:
    """Return states and actions of `n` environments."""
    rng = np.random.default_rng(0)
    states = {name: rng.uniform(low, low + 0.4, n).astype(np.float32) for name, low in (("u", 0.5), ("w", 0.6))}
    return states | {"a": rng.integers(0, 2, n).astype(np.float32), "cells": rng.random((loops.CELLS, n), np.float32)}


def vectorized(kind: str, n: int) -> Callable[[], None]:
    """Return the same step in NumPy, one operation for all environments, as one writes it."""
    environment, rng = loops.environment(FUNCTIONS[kind.partition("-")[0]]), np.random.default_rng(0)
    state, dynamics = start(n) | {"tried": np.zeros(n, np.int32)}, dynamics_of(kind, n)
    clock, returns = np.zeros(n, np.int32), np.zeros(n, np.float32)
    ended_returns: list[float] = []

    def step() -> np.ndarray:
        reward, terminated = dynamics(state)
        clock[:] += 1
        returns[:] += reward
        (ended,) = np.nonzero(terminated | (clock >= environment.time_limit))
        if len(ended):
            ended_returns.append(float(returns[ended].sum()))
            clock[ended], returns[ended] = 0, 0.0
            state["u"][ended], state["w"][ended] = rng.uniform(0.5, 0.9, len(ended)), rng.uniform(0.6, 1.0, len(ended))
            state["cells"][:, ended], state["tried"][ended] = rng.random((loops.CELLS, len(ended)), np.float32), 0
        return np.stack((state["u"], state["w"], state["tried"].astype(np.float32), state["cells"][3]), axis=1)

    def run() -> None:
        step()

    return run


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


# The limit ------------------------------------------------------------------------------------------------------------------------------


def by_hand(kind: str, n: int) -> Callable[[], None]:
    """Return the arithmetic of a step for LANES environments at a time."""
    tiles = -(-n // LANES)
    u, w, a = (np.resize(start(n)[name], (tiles, LANES)) for name in ("u", "w", "a"))
    cells = np.resize(start(n)["cells"], (tiles, loops.CELLS, LANES))
    functions: dict[str, Callable[..., object]] = {"slopes": _slopes, "clip": clip}
    names: dict[str, Any] = {name: kernel_function(function) for name, function in functions.items()}
    names |= {"f": np.float32, "np": np, "lane_loop": lane_loop}
    exec(_limit_source(kind), names)
    run, height = njit(**KERNELS)(names["limit"]), loops.tables("table").height.ravel()
    return lambda: run(u, w, a, cells, height)


def _slopes(u, w, a):  # type: ignore[no-untyped-def]
    return u * (np.float32(1) - w) - np.float32(0.4) * a * u, w * (u - np.float32(1)) - np.float32(0.2) * a * w


def _limit_source(kind: str) -> str:
    """Return the source of the function `limit`; `lane_loop` lets its loops have the vectors of kernels, and changes nothing else."""
    body = LIMITS[kind.partition("-")[0]]
    inner, last = range(1, loops.CELLS - 1), loops.CELLS - 1
    lines = {
        "READ": [f"c{k} = cells[tile, {k}, lane]" for k in range(loops.CELLS)],
        "WRITE": [f"cells[tile, {k}, lane] = c{k} + d * (c{k - 1} - two * c{k} + c{k + 1})" for k in inner],
        "SUM": [f"total += cells[tile, {k}, lane]" for k in range(loops.CELLS)],
    }
    for name, texts in lines.items():
        body = re.sub(rf"^( *){name}$", lambda found, texts=texts: "\n".join(found[1] + text for text in texts), body, flags=re.MULTILINE)
    numbers = {"STEPS": substeps(kind), "LANES": LANES, "SIDE": loops.SIDE, "MOST": loops.LAST, "LAST": last, "BEFORE": last - 1}
    return re.sub("|".join(numbers), lambda found: str(numbers[found[0]]), HEAD + indent(body, "        "))


HEAD = """
def limit(us, ws, acts, cells, height):
    dt = f(0.02); h = f(0.01); sixth = dt / f(6); two = f(2); one = f(1); d = f(0.2); tolerance = f(1e-5)
    for tile in range(us.shape[0]):
"""
LIMITS = {
    "rk4": """
for n in range(STEPS):
    for lane in range(LANES):
        lane_loop()
        u = us[tile, lane]; w = ws[tile, lane]; a = acts[tile, lane]
        k1u, k1w = slopes(u, w, a)
        k2u, k2w = slopes(u + h * k1u, w + h * k1w, a)
        k3u, k3w = slopes(u + h * k2u, w + h * k2w, a)
        k4u, k4w = slopes(u + dt * k3u, w + dt * k3w, a)
        us[tile, lane] = u + sixth * (k1u + two * k2u + two * k3u + k4u)
        ws[tile, lane] = w + sixth * (k1w + two * k2w + two * k3w + k4w)
""",
    "row": """
for n in range(STEPS):
    for lane in range(LANES):
        lane_loop()
        READ
        cells[tile, 0, lane] = c0 + d * (c1 - c0) + f(0.1) * acts[tile, lane] * dt
        WRITE
        cells[tile, LAST, lane] = cLAST + d * (cBEFORE - cLAST)
for lane in range(LANES):
    lane_loop()
    total = f(0)
    SUM
    ws[tile, lane] = total / f(16)
""",
    "table": """
for n in range(STEPS + 1):
    for lane in range(LANES):
        lane_loop()
        x = us[tile, lane]; y = ws[tile, lane]
        i = np.int32(x); j = np.int32(y)
        a = x - f(i); b = y - f(j); at = np.uint64(i) * np.uint64(SIDE) + np.uint64(j)
        low = height[at] + b * (height[at + np.uint64(1)] - height[at])
        at += np.uint64(SIDE)
        high = height[at] + b * (height[at + np.uint64(1)] - height[at])
        level = low + a * (high - low)
        us[tile, lane] = clip(x + dt * (level + f(0.1) * acts[tile, lane]), f(0), f(MOST))
        ws[tile, lane] = clip(y - dt * (level - f(0.05)), f(0), f(MOST))
""",
}

if __name__ == "__main__":
    main()
