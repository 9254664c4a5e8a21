"""Measure environments with loops in `step` against vectorized NumPy and against hand-written loops over lanes.

    python scripts/bench/loops.py [envs=10000] [rounds=5] [kinds=rk4-10,row,table,newton]

One thread, random actions drawn before. `rk4-N` integrates the Lotka-Volterra equations with N steps of the Runge-Kutta method, `row` is
the diffusion in 16 cells with 10 steps, `table` goes 10 steps through a table by bilinear interpolation, `newton` solves an equation until
it converges. The environments are in `tests/environments/loops.py`. The candidates take turns; the table has the medians of the rounds.
The limit is the same arithmetic for 64 lanes at a time in a loop over lanes, written by hand, without the episodes around it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numba import njit

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.environments import loops
from tests.simulation.rollouts import make
from warprun.kernels.compile import FLAGS

KINDS = ("rk4-1", "rk4-2", "rk4-4", "rk4-10", "rk4-30", "rk4-100", "row", "table", "newton")
FUNCTIONS = {"rk4": "integrate", "row": "spread", "table": "descend", "newton": "solve"}
SECONDS = 0.3
"""Least time of one measurement."""
LANES = 64
Arrays = dict[str, np.ndarray]


def main(arguments: list[str]) -> None:
    """Print the table."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    unknown = set(given) - {"envs", "rounds", "kinds"}
    if unknown:
        raise SystemExit(f"unknown argument {min(unknown)}; it has envs, rounds and kinds")
    n, rounds = int(float(given.get("envs", 10_000))), int(given.get("rounds", 5))
    print(f"{n:,} environments, one thread, million steps/s, medians of {rounds}")
    print(f"{'':10}{'warprun':>10}{'NumPy':>10}{'ratio':>8}{'limit':>10}{'share':>8}")
    for kind in given["kinds"].split(",") if "kinds" in given else KINDS:
        if kind not in KINDS:
            raise SystemExit(f"unknown kind {kind}; there are {', '.join(KINDS)}")
        ours, numpy, limit = rates([warprun(kind, n), vectorized(kind, n), by_hand(kind, n)], n, rounds)
        bound, share = (f"{limit / 1e6:10.2f}", f"{ours / limit:8.0%}") if limit else (f"{'-':>10}", f"{'-':>8}")
        print(f"{kind:10}{ours / 1e6:10.2f}{numpy / 1e6:10.2f}{ours / numpy:8.1f}{bound}{share}", flush=True)


def rates(candidates: list[Callable[[], None] | None], n: int, rounds: int) -> list[float]:
    """Return the median steps per second of each candidate; 0 for None."""
    found: list[list[float]] = [[] for _ in candidates]
    for candidate in filter(None, candidates):
        candidate()  # compiles
    for _ in range(rounds):
        for candidate, kept in zip(candidates, found, strict=True):
            if candidate is None:
                kept.append(0.0)
                continue
            steps, began = 0, time.perf_counter()
            while time.perf_counter() - began < SECONDS:
                candidate()
                steps += n
            kept.append(steps / (time.perf_counter() - began))
    return [statistics.median(kept) for kept in found]


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
    state, p = start(n), loops.Params(substeps=substeps(kind))
    height = loops.tables("table").height
    dt = np.float32(p.dt)

    def integrate() -> None:
        u, w = state["u"], state["w"]
        for _ in range(p.substeps):
            u, w = loops.runge_kutta(u, w, state["a"], dt)
        state["u"], state["w"] = u, w

    def spread() -> None:
        c, d = state["cells"], np.float32(p.diffusivity)
        for _ in range(p.substeps):
            change = np.empty_like(c)
            change[1:-1] = c[:-2] - 2 * c[1:-1] + c[2:]
            change[0] = c[1] - c[0] + np.float32(0.1) * state["a"] * dt / d
            change[-1] = c[-2] - c[-1]
            c += d * change
        c.sum(0)

    def level(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        i, j = x.astype(np.int32), y.astype(np.int32)
        a, b = x - i.astype(np.float32), y - j.astype(np.float32)
        low = height[i, j] + b * (height[i, j + 1] - height[i, j])
        high = height[i + 1, j] + b * (height[i + 1, j + 1] - height[i + 1, j])
        return low + a * (high - low)

    def descend() -> None:
        x, y, most = state["u"], state["w"], np.float32(loops.LAST)
        for _ in range(p.substeps):
            at = level(x, y)
            x = np.clip(x + dt * (at + np.float32(0.1) * state["a"]), np.float32(0), most)
            y = np.clip(y - dt * (at - np.float32(0.05)), np.float32(0), most)
        level(x, y)
        state["u"], state["w"] = x, y

    def solve() -> None:
        b = state["u"] + np.float32(0.3) * state["a"] + np.float32(0.5)
        x, change = np.ones_like(b), np.ones_like(b)
        for _ in range(20):
            running = np.abs(change) > p.tolerance
            if not running.any():
                break
            change = np.where(running, (x + np.log(x) - b) / (1 + 1 / x), change)
            x = np.where(running, np.maximum(x - change, np.float32(0.05)), x)
        state["w"] = x

    return {"rk4": integrate, "row": spread, "table": descend, "newton": solve}[kind.partition("-")[0]]


# The limit ------------------------------------------------------------------------------------------------------------------------------


def by_hand(kind: str, n: int) -> Callable[[], None] | None:
    """Return the arithmetic of the integrator for LANES environments at a time; None for other kinds."""
    if not kind.startswith("rk4"):
        return None
    shape = (-(-n // LANES), LANES)
    u, w, a = (np.resize(start(n)[name], shape) for name in ("u", "w", "a"))
    slopes = njit(**FLAGS)(_slopes)
    source = LIMIT.replace("STEPS", str(substeps(kind)))
    names = {"f": np.float32, "slopes": slopes, "LANES": LANES}
    exec(source, names)
    run = njit(**FLAGS)(names["limit"])
    return lambda: run(u, w, a)


def _slopes(u, w, a):  # type: ignore[no-untyped-def]
    return u * (np.float32(1) - w) - np.float32(0.4) * a * u, w * (u - np.float32(1)) - np.float32(0.2) * a * w


LIMIT = """
def limit(us, ws, acts):
    dt = f(0.02); h = f(0.01); sixth = dt / f(6); two = f(2)
    for tile in range(us.shape[0]):
        for n in range(STEPS):
            for lane in range(LANES):
                u = us[tile, lane]; w = ws[tile, lane]; a = acts[tile, lane]
                k1u, k1w = slopes(u, w, a)
                k2u, k2w = slopes(u + h * k1u, w + h * k1w, a)
                k3u, k3w = slopes(u + h * k2u, w + h * k2w, a)
                k4u, k4w = slopes(u + dt * k3u, w + dt * k3w, a)
                us[tile, lane] = u + sixth * (k1u + two * k2u + two * k3u + k4u)
                ws[tile, lane] = w + sixth * (k1w + two * k2w + two * k3w + k4w)
"""

if __name__ == "__main__":
    main(sys.argv[1:])
