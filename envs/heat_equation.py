"""A heated rod under a load that changes: keep its temperature at 0 with three heaters. A parallel program of any number of ranks.

The temperature u(x, t) of a rod of length 1, whose ends are kept at 0, follows the heat equation

    du/dt = d2u/dx2 + sum_j a_j HEAT b(x - x_j) + s LOAD b(x - y),    b(d) = exp(-(d / WIDTH)^2 / 2)

with three heaters at x_j = 1/4, 1/2, 3/4, whose powers a_j in -1..1 are the action (they also cool), and a load of the strength s in -1..1
at the place y in 0.2..0.8. Load and place are drawn at the beginning of an episode, and again with probability 0.05 after each step; they
are not observed. At the beginning, u is a sum of the first three Fourier modes with random amplitudes.

Discretisation: `cells` inner points at the distance h = 1 / (cells + 1), central differences, and explicit Euler with a time step of
STABLE h^2; the scheme is stable up to h^2 / 2 (R. J. LeVeque, Finite Difference Methods for Ordinary and Partial Differential Equations,
SIAM 2007, section 9.3). A step of the environment is INTERVAL = 0.01 of time, in as many equal time steps as this takes.

Observation: the temperatures at 7 sensors, x = 1/8, 2/8, ..., 7/8. Reward: -mean(u^2) - 0.01 mean(a^2) after the step, the mean of u over
all inner points.

Parallelism: each rank has consecutive points, and copies of the nearest points of its neighbours (ghosts), up to DEPTH on either side,
which it computes along with its own. A time step makes the outermost ghost wrong, so every DEPTH time steps ranks exchange them (halo
exchange). A point is computed by the same operations on any number of ranks, and the reward from all points in one rank, so the numbers
are the same to the last bit. Every rank draws the same random numbers, because every rank gets the same seeds and makes the same calls.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.spaces import Box

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm, Request

HEATERS, SENSORS = np.array([0.25, 0.5, 0.75]), np.arange(1, 8) / 8
HEAT, LOAD, WIDTH = 30.0, 30.0, 0.08
INTERVAL, STABLE = 0.01, 0.4
DEPTH = 8
CHANGES = 0.05
"""Probability that the load changes after a step."""
POWER_COST = 0.01


class HeatEquation:
    """A heated rod. The ranks of `comm` share it; None: this process has all of it."""

    observation_space = Box(-np.inf, np.inf, (len(SENSORS),), np.float32)
    action_space = Box(-1.0, 1.0, (len(HEATERS),), np.float32)

    def __init__(self, comm: Intracomm | None = None, cells: int = 31) -> None:
        self.comm, self.cells = comm, cells
        self.rank, size = (comm.rank, comm.size) if comm else (0, 1)
        if cells < DEPTH * size:
            raise ValueError(f"cells={cells} must be {DEPTH} or more for each of {size} ranks")
        edges = [cells * n // size for n in range(size + 1)]
        self.counts = np.diff(edges)
        begin, end = edges[self.rank], edges[self.rank + 1]
        self.left, self.right = self.rank > 0, self.rank + 1 < size
        """Whether there is a neighbour."""
        first, last = begin - DEPTH * self.left, end + DEPTH * self.right
        self.part = slice(first, last)
        """The points that this rank computes, of all of the rod."""
        self.own = slice(1 + begin - first, 1 + end - first)
        """Its own among them, in `u`."""
        h = 1.0 / (cells + 1)
        self.x = h * np.arange(1, cells + 1)
        """[cells]: of all of the rod."""
        self.substeps = int(np.ceil(INTERVAL / (STABLE * h * h)))
        self.dt = INTERVAL / self.substeps
        self.ratio = self.dt / (h * h)
        self.u = np.zeros(last - first + 2)
        """Temperatures of the points that this rank computes, and of the point beyond on either side."""
        self.heaters = HEAT * bump(self.x[:, None] - HEATERS)[self.part]
        nearest = np.rint(SENSORS * (cells + 1)).astype(int) - 1  # the point of each sensor
        self.sensors = np.flatnonzero((nearest >= begin) & (nearest < end))
        self.points = nearest[self.sensors] - first + 1
        self.rng = np.random.default_rng()

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, dict[str, object]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        modes = np.arange(1, 4)
        self.u[1:-1] = (np.sin(np.pi * self.x[:, None] * modes) * self.rng.uniform(-1.0, 1.0, 3)).sum(-1)[self.part]
        self.draw_load()
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        power = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        self.diffuse((self.heaters * power).sum(-1) + self.load)
        reward = -self.mean_square() - POWER_COST * float(np.mean(power**2))
        if self.rng.random() < CHANGES:
            self.draw_load()
        return self.observe(), reward, False, False, {}

    def diffuse(self, source: np.ndarray) -> None:
        """Advance the temperatures by INTERVAL with a source at every point that this rank computes."""
        u, heat = self.u, self.dt * source
        for substep in range(self.substeps):
            if substep % DEPTH == 0:
                self.exchange()
            u[1:-1] += self.ratio * (u[2:] - 2.0 * u[1:-1] + u[:-2]) + heat

    def exchange(self) -> None:
        """Copy the temperatures of the neighbours' points into the ghosts."""
        u, own, requests = self.u, self.own, []
        for there, neighbour, ghosts, nearest in (
            (self.left, self.rank - 1, slice(1, own.start), slice(own.start, own.start + DEPTH)),
            (self.right, self.rank + 1, slice(own.stop, -1), slice(own.stop - DEPTH, own.stop)),
        ):
            if there:
                requests += [self.comm.Irecv(u[ghosts], neighbour), self.comm.Isend(u[nearest], neighbour)]
        wait(requests)

    def draw_load(self) -> None:
        strength, place = self.rng.uniform(-1.0, 1.0), self.rng.uniform(0.2, 0.8)
        self.load = strength * LOAD * bump(self.x - place)[self.part]

    def observe(self) -> np.ndarray:
        """Return the temperatures at all sensors, on every rank."""
        seen, all_seen = np.zeros(len(SENSORS)), np.zeros(len(SENSORS))
        seen[self.sensors] = self.u[self.points]
        if self.comm:
            wait([self.comm.Iallreduce(seen, all_seen)])  # a number and zeros: the sum is exact
        return (all_seen if self.comm else seen).astype(np.float32)

    def temperatures(self) -> np.ndarray:
        """Return the temperatures of all points, [cells], on the first rank; on other ranks those of their own points."""
        own = self.u[self.own].copy()
        if self.comm is None:
            return own
        everything = np.empty(self.cells)
        wait([self.comm.Igatherv(own, (everything, self.counts) if self.rank == 0 else None)])
        return everything if self.rank == 0 else own

    def mean_square(self) -> float:
        """Return the mean of u^2 over all points on the first rank, over their own points on other ranks."""
        return float(np.mean(self.temperatures() ** 2))


def wait(requests: list[Request]) -> None:
    """Wait for messages in short sleeps: waiting within MPI would keep the core from other processes."""
    while not all(request.Test() for request in requests):
        time.sleep(2e-5)


def bump(distance: np.ndarray) -> np.ndarray:
    """Return b(distance) of the equation above, elementwise."""
    return np.exp(-0.5 * (distance / WIDTH) ** 2)


def draw(axes):
    """Draw the temperatures at the sensors, and the powers of the heaters as bars."""
    axes.axhline(0.0, color="0.6", linewidth=0.8)
    bars = axes.bar(HEATERS, np.zeros(len(HEATERS)), 2.0 * WIDTH, color="#e69f00", alpha=0.6, label="power of a heater")
    (line,) = axes.plot((), (), "o-", color="#0072b2", linewidth=2, clip_on=False, label="temperature at the sensors")
    axes.set(xlim=(0.0, 1.0), ylim=(-2.0, 2.0), xlabel="place")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)  # above the data
    axes.figure.set_size_inches(6, 3)

    def show(observation, action):
        line.set_data((0.0, *SENSORS, 1.0), (0.0, *observation, 0.0))
        for bar, power in zip(bars, np.zeros(len(HEATERS)) if action is None else action, strict=True):
            bar.set_height(power)

    return show


environment = HeatEquation
