"""Regulators that learned policies are compared with, on the disturbances of given episodes.

Arrays: N episodes of T steps. VIMIN is counted from its setting throughout. A regulator returns the VIMIN that it
wants; the change to it is limited like an action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from warprun.envs.booster.model import HIGHEST, LEAST, LOWEST, MOST, Params, Tables, respond
from warprun.envs.booster.published import ALPHA, GAIN, GAMMA
from warprun.spec import Box, Space

Limit = Callable[[np.ndarray], np.ndarray]
"""Maps wanted changes of VIMIN to those that are made."""


class Episodes(NamedTuple):
    """The two samples before each episode, and what disturbs its steps."""

    delta: np.ndarray
    """[N]."""
    delta_1: np.ndarray
    iminer: np.ndarray
    iminer_1: np.ndarray
    disturbance: np.ndarray
    """[N, T]."""


def simulate(p: Params, count: int, steps: int, seed: int = 0) -> Episodes:
    """Return episodes that begin at rest anywhere in a super-cycle, with disturbances as the environment draws them."""
    draws, cycle, time = np.random.default_rng(seed), int(p.cycle), np.arange(1, steps + 1)
    place = (draws.integers(0, cycle, (count, 1)) + time) % cycle
    angle = draws.uniform(0, 2 * np.pi, (count, 1)) + 2 * np.pi / p.period * time
    strength = p.amplitude + p.burst * (place < p.burst_length)
    rest = np.zeros(count)
    return Episodes(rest, rest, rest, rest, p.noise * draws.standard_normal((count, steps)) + strength * np.sin(angle))


class Course(NamedTuple):
    """The outcome of the episodes; after an early end VIMIN and IMINER are NaN and rewards 0."""

    delta: np.ndarray
    """[N, T]."""
    iminer: np.ndarray
    rewards: np.ndarray
    length: np.ndarray
    """[N] steps."""

    @property
    def returns(self) -> np.ndarray:
        """[N]."""
        total: np.ndarray = self.rewards.sum(1)
        return total


class Now(NamedTuple):
    """The measurements that a regulator has before step `step`; [N] each."""

    step: int
    delta: np.ndarray
    delta_1: np.ndarray
    iminer: np.ndarray
    iminer_1: np.ndarray
    total: np.ndarray
    """Sum of IMINER since the start of the episode."""


Regulator = Callable[[Now], np.ndarray]
"""Returns the wanted VIMIN [N]."""


def run(regulator: Regulator, episodes: Episodes, p: Params, tables: Tables, limit: Limit = lambda change: change) -> Course:
    """Regulate the episodes; `p` and `tables` are those of the environment, whose rewards and ends of episodes apply."""
    steps = episodes.disturbance.shape[1]
    delta, delta_1, iminer, iminer_1 = (np.asarray(value, np.float64) for value in episodes[:4])
    total, going = np.zeros_like(delta), np.ones(len(delta), bool)
    deltas, iminers = np.full((2, len(delta), steps), np.nan)
    rewards = np.zeros_like(deltas)
    for t in range(steps):
        wanted = delta + limit(regulator(Now(t, delta, delta_1, iminer, iminer_1, total)) - delta)
        edge, left = (wanted <= tables.low) | (wanted >= tables.high), (wanted < tables.low) | (wanted > tables.high)
        made = np.clip(wanted, *((LOWEST, HIGHEST) if tables.compat else (tables.low, tables.high)))
        found = np.clip(respond(made, delta, delta_1, iminer, iminer_1, p) + episodes.disturbance[:, t], LEAST, MOST)
        tripped = np.abs(found) >= p.trip
        cost = tripped * p.trip_cost * (tables.steps - t - 1) if tables.compat else edge * p.edge_cost
        deltas[going, t], iminers[going, t], rewards[going, t] = made[going], found[going], (-np.abs(found) - cost)[going]
        delta, delta_1, iminer, iminer_1, total = made, delta, found, iminer, total + found
        if tables.compat:
            going = going & ~(left | tripped)
    return Course(deltas, iminers, rewards, np.isfinite(deltas).sum(1))


def limit_of(action: Space, changes: np.ndarray) -> Limit:
    """Return the limit of an action space: its bounds, or the nearest of the discrete `changes` [30], which rise."""
    if isinstance(action, Box):
        low, high = action.bounds()[0]
        return lambda change: np.clip(change, low, high)
    middles = (changes[1:] + changes[:-1]) / 2
    return lambda change: changes[np.searchsorted(middles, change)]


def none(now: Now) -> np.ndarray:
    """Leave VIMIN at its setting."""
    return np.zeros_like(now.delta)


def recorded(now: Now) -> np.ndarray:
    """Regulate as the recorded data show it."""
    return -GAIN * now.iminer


class Pid(NamedTuple):
    """A proportional, integral and derivative regulator; the default gains are the published ones."""

    alpha: float = ALPHA
    gamma: float = GAMMA
    kappa: float = 0.0

    def __call__(self, now: Now) -> np.ndarray:
        """Return setting - alpha e - beta - kappa (change of e); beta is gamma times the sum of e over the episode."""
        return -self.alpha * now.iminer - self.gamma * now.total - self.kappa * (now.iminer - now.iminer_1)


class StateFeedback(NamedTuple):
    """A linear regulator of the last two samples."""

    gains: np.ndarray
    """[5], of delta, delta_1, iminer, iminer_1, and a constant."""

    def __call__(self, now: Now) -> np.ndarray:
        """Return minus the sum of gains times values."""
        wanted: np.ndarray = -(np.stack([now.delta, now.delta_1, now.iminer, now.iminer_1, np.ones_like(now.delta)], 1) @ self.gains)
        return wanted


def quadratic_regulator(p: Params, weight: float = 0.0) -> StateFeedback:
    """Return the regulator with the least long-run mean of e^2 + weight (change of VIMIN)^2 under white disturbances.

    The gains are those of the Riccati equation, iterated to its fixed point (Bertsekas, "Dynamic Programming and Optimal Control",
    vol. 1, section 3.1). With weight 0 the regulator cancels all that the plant makes of the past.
    """
    past = np.array([p.vimin_1, p.vimin_2, p.iminer_1, p.iminer_2, p.offset], np.float64)
    direct, held = float(p.vimin_0), np.array([1.0, 0, 0, 0, 0])
    move = np.zeros((5, 5))
    move[1, 0] = move[3, 2] = move[4, 4] = 1.0
    move[2] = past
    push = np.array([1.0, 0, direct, 0, 0])
    cost = np.zeros((5, 5))
    gains = np.zeros(5)
    for _ in range(10_000):
        cross = direct * past - weight * held + push @ cost @ move
        before, gains = gains, cross / (direct**2 + weight + push @ cost @ push)
        cost = np.outer(past, past) + weight * np.outer(held, held) + move.T @ cost @ move - np.outer(cross, gains)
        cost[4, 4] = 0.0  # the cost of the constant grows without end, and no gain depends on it
        if np.abs(gains - before).max() < 1e-12:
            break
    return StateFeedback(gains)


def search(loss: Callable[[Sequence[float]], float], start: Sequence[float], step: float, smallest: float = 1e-4) -> tuple[float, ...]:
    """Return the numbers with the least loss that moves of one number at a time find; moves are halved until they are `smallest`."""
    best, least = list(start), loss(start)
    while step >= smallest:
        moves = [[*best[:n], best[n] + sign * step, *best[n + 1 :]] for n in range(len(best)) for sign in (1, -1)]
        losses = [loss(move) for move in moves]
        if min(losses) < least:
            best, least = moves[int(np.argmin(losses))], min(losses)
        else:
            step /= 2
    return tuple(best)


def best_pid(episodes: Episodes, p: Params, tables: Tables, limit: Limit) -> Pid:
    """Return the gains with the highest mean return of the episodes, the best of searches from several starts."""

    def loss(gains: Sequence[float]) -> float:
        return -float(run(Pid(*gains), episodes, p, tables, limit).returns.mean())

    found = [search(loss, (alpha, 0.0, kappa), 0.04) for alpha in (0.05, 0.15) for kappa in (-0.05, 0.0, 0.05)]
    return Pid(*min(found, key=loss))


def best_quadratic(episodes: Episodes, p: Params, tables: Tables, limit: Limit) -> StateFeedback:
    """Return the quadratic regulator whose weight gives the highest mean return of the episodes."""
    made = [quadratic_regulator(p, weight) for weight in (0.0, *np.logspace(-2, 2, 17))]
    return max(made, key=lambda regulator: float(run(regulator, episodes, p, tables, limit).returns.mean()))
