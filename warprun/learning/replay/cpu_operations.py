"""The operations of experience replay on CPU: kernels for what `replay_torch` says in torch. Arrays are bound once, a call is a kernel."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch

from warprun.kernels import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.learning.replay.draws import bits_of, counter, key_of
from warprun.learning.replay.ring import BRANCHES, GOES_ON, TERMINATED, TRUNCATED, Place, Ring, Transitions, Tree
from warprun.simulation.trajectory import GroupTrajectory, Trajectory

float32, float64 = np.float32, np.float64


def store_step(ring, tree, place, obs, final_obs, action, reward, terminated, truncated, t):
    """Write step `t` of a rollout to the rows of the newest step; what is new has the largest priority."""
    n_envs, size = obs.shape[1], obs.shape[2]
    for n in range(n_envs):
        slot = 0
        if truncated[t, n]:
            for before in range(t):
                slot += 1 if truncated[before, n] else 0
        for a in range(size):
            row = place.newest + n * size + a
            for f in range(obs.shape[3]):
                ring.obs[row, f] = obs[t, n, a, f]
                ring.next_obs[row, f] = final_obs[slot, n, a, f] if truncated[t, n] else obs[t + 1, n, a, f]
            for c in range(action.shape[3]):
                ring.action[row, c] = action[t, n, a, c]
            ring.reward[row] = reward[t, n, a]
            ring.ends[row] = TERMINATED if terminated[t, n] else TRUNCATED if truncated[t, n] else GOES_ON
    if tree.priority.size > 0:
        tree.priority[place.newest : place.newest + place.actors] = tree.largest[0]
        first, last = place.newest, place.newest + place.actors - 1
        for level in range(tree.levels.size - 1):
            first, last = first // BRANCHES, last // BRANCHES
            for node in range(first, last + 1):
                sum_node(tree, level, node)


def sum_node(tree, level, node):
    """Sum up the branches of one node afresh."""
    total = float64(0.0)
    for n in range(BRANCHES):
        if level == 0:
            total += float64(tree.priority[node * BRANCHES + n])
        else:
            total += tree.sums[tree.levels[level - 1] + node * BRANCHES + n]
    tree.sums[tree.levels[level] + node] = total


def draw_batch(ring, tree, place, key, beta, n_step, gamma, batch):
    """Draw rows, by priority if there are any, and fill `batch` with their transitions."""
    if tree.priority.size > 0:
        pick_by_priority(batch.row, batch.weight, tree, place.size, key, beta)
    else:
        pick_alike(batch.row, place.size, key)
    gather_batch(ring, place, n_step, gamma, batch)


def pick_alike(rows, size, key):
    """Fill `rows` [B] with rows below `size`."""
    for b in range(rows.size):
        rows[b] = (np.int64(bits_of(key, b)) * size) >> 32


def pick_by_priority(rows, weights, tree, size, key, beta):
    """Fill `rows` and `weights` [B]; one row from each of B equal shares of the total."""
    total = tree.sums[tree.sums.size - 1]
    largest = float64(0.0)
    for b in range(rows.size):
        mass = (float64(b) + float64(bits_of(key, b)) * float64(2.3283064365386963e-10)) * (total / float64(rows.size))
        rows[b] = find_row(tree, mass)
        share = float64(size) * float64(tree.priority[rows[b]]) / total
        weight = share ** -float64(beta)
        weights[b] = weight
        largest = max(largest, weight)
    for b in range(rows.size):
        weights[b] = float32(float64(weights[b]) / largest)


def find_row(tree, mass):
    """Return the row in whose share of the summed priorities `mass` lies."""
    node = 0
    for level in range(tree.levels.size - 3, -2, -1):
        first = node * BRANCHES if level < 0 else tree.levels[level] + node * BRANCHES
        chosen, last = -1, 0
        for n in range(BRANCHES):
            share = float64(tree.priority[first + n]) if level < 0 else tree.sums[first + n]
            if share > 0.0:
                last = n
                if mass < share:
                    chosen = n
                    break
                mass -= share
        if chosen < 0:
            # Rounding left a rest; it stays with the last branch that has any, at its end.
            chosen = last
        node = node * BRANCHES + chosen
    return node


def put_priorities(tree, rows, errors, alpha, eps):
    """Give rows [B] their priorities and sum up again what stands above them."""
    for b in range(rows.size):
        made = float32((float64(abs(errors[b])) + float64(eps)) ** float64(alpha))
        tree.priority[rows[b]] = made
        tree.largest[0] = max(tree.largest[0], made)
    reach = 1
    for level in range(tree.levels.size - 1):
        reach *= BRANCHES
        for b in range(rows.size):
            sum_node(tree, level, rows[b] // reach)


def gather_batch(ring, place, n_step, gamma, batch):
    """Fill `batch` with the transitions that begin in its rows [B]."""
    for b in range(batch.row.size):
        at, last = batch.row[b], batch.row[b]
        total, scale = float32(0.0), float32(1.0)
        for _ in range(n_step):
            last = at
            total += scale * ring.reward[at]
            scale *= float32(gamma)
            if ring.ends[at] != GOES_ON or place.newest <= at < place.newest + place.actors:
                break
            at += place.actors
            at = at - place.rows if at >= place.rows else at
        batch.reward[b] = total
        batch.discount[b] = float32(0.0) if ring.ends[last] == TERMINATED else scale
        for f in range(ring.obs.shape[1]):
            batch.obs[b, f] = ring.obs[batch.row[b], f]
            batch.next_obs[b, f] = ring.next_obs[last, f]
        for c in range(ring.action.shape[1]):
            batch.action[b, c] = ring.action[batch.row[b], c]


SOURCE = '''"""Experience replay; written by warprun."""

from numba import njit


@njit(nogil=True, cache=True, **FLAGS)
def store(ring, tree, place, rollout, t):
    store_step(ring, tree, place, *rollout, t)


@njit(nogil=True, cache=True, **FLAGS)
def draw(ring, tree, place, seed_low, seed_high, number, beta, n_step, gamma, batch):
    draw_batch(ring, tree, place, key_of(seed_low, seed_high, number), beta, n_step, gamma, batch)


@njit(nogil=True, cache=True, **FLAGS)
def gather(*given):
    gather_batch(*given)


@njit(nogil=True, cache=True, **FLAGS)
def find(tree, masses, rows):
    for b in range(masses.size):
        rows[b] = find_row(tree, masses[b])


@njit(nogil=True, cache=True, **FLAGS)
def put(*given):
    put_priorities(*given)
'''


@cache
def module() -> ModuleType:
    """Return the compiled kernels."""
    functions: dict[str, Any] = {f.__name__: f for f in (store_step, draw_batch, gather_batch, find_row, put_priorities, key_of)}
    return kernels.load_module("replay", SOURCE, functions | {"FLAGS": kernels.FLAGS})


class CpuOperations:
    """What can be done with one ring; a batch that is drawn lies in the memory of the one before."""

    def __init__(self, ring: Ring, tree: Tree, batch_size: int) -> None:
        self.ring, self.tree = _arrays(ring), _arrays(tree)
        self.batch = _batch(self.ring, torch.zeros(batch_size, dtype=torch.int64))
        self.batch_arrays = _arrays(self.batch)
        self.rollout: tuple[Trajectory | None, tuple[np.ndarray, ...]] = (None, ())

    def store(self, place: Place, trajectory: Trajectory, group: GroupTrajectory, t: int) -> None:
        """Write step `t` of a rollout to the rows of the newest step; what is new has the largest priority."""
        if self.rollout[0] is not trajectory:
            parts = (group.obs, group.final_obs, group.action, group.reward, trajectory.terminated, trajectory.truncated)
            self.rollout = (trajectory, tuple(part.numpy() for part in parts))
        module().store(self.ring, self.tree, place, self.rollout[1], t)

    def draw(self, place: Place, seed: int, number: int, beta: float, n_step: int, gamma: float) -> Transitions:
        """Return the `number`-th batch: with priorities one row from each of as many equal shares of their total, else all alike."""
        module().draw(self.ring, self.tree, place, *counter(seed, number), beta, n_step, gamma, self.batch_arrays)
        return self.batch

    def gather(self, place: Place, row: torch.Tensor, n_step: int, gamma: float) -> Transitions:
        """Return the transitions that begin in rows [B] and go on for up to n steps, with weights 1."""
        batch = _batch(self.ring, row)
        module().gather(self.ring, place, n_step, gamma, _arrays(batch))
        return batch

    def find(self, mass: torch.Tensor) -> torch.Tensor:
        """Return the rows, [B] int64, in whose share of the summed priorities `mass` [B] float64 lies."""
        rows = np.empty(len(mass), np.int64)
        module().find(self.tree, mass.numpy(), rows)
        return torch.from_numpy(rows)

    def set_priorities(self, row: torch.Tensor, error: torch.Tensor, alpha: float, eps: float) -> None:
        """Give rows [B] the priorities (|error| + eps)^alpha."""
        module().put(self.tree, row.numpy(), error.numpy(), alpha, eps)


def _batch(ring: Ring, row: torch.Tensor) -> Transitions:
    """Return memory for the transitions that begin in rows [B] of a ring of arrays."""
    count = len(row)
    obs, next_obs, action = (torch.from_numpy(np.empty((count, part.shape[1]), part.dtype)) for part in (ring.obs, ring.obs, ring.action))
    return Transitions(obs, action, torch.empty(count), torch.empty(count), next_obs, torch.ones(count), row)


def _arrays(tensors: Any) -> Any:
    """Return a NamedTuple of tensors as one of arrays over the same memory."""
    return type(tensors)(*(tensor.numpy() for tensor in tensors))
