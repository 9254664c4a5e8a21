"""The operations of experience replay on CPU: kernels for what `replay_torch` says in torch. Memory for a batch is taken once."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from warprun.engine import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.engine.trajectory import GroupTrajectory, Trajectory

if TYPE_CHECKING:
    from warprun.agents.replay import Place, Ring, Tree

uint32, float32, float64 = np.uint32, np.float32, np.float64


def store_step(ring, tree, place, obs, next_obs, final_obs, action, reward, terminated, truncated, t):
    """Write step `t` of a rollout to the rows of the newest step."""
    n_envs, size = obs.shape[0], obs.shape[1]
    for n in range(n_envs):
        slot = 0
        if truncated[t, n]:
            for before in range(t):
                slot += 1 if truncated[before, n] else 0
        for a in range(size):
            row = place.newest + n * size + a
            for f in range(obs.shape[2]):
                ring.obs[row, f] = obs[n, a, f]
                ring.next_obs[row, f] = final_obs[slot, n, a, f] if truncated[t, n] else next_obs[n, a, f]
            for c in range(action.shape[2]):
                ring.action[row, c] = action[n, a, c]
            ring.reward[row] = reward[n, a]
            ring.ends[row] = 1 if terminated[t, n] else 2 if truncated[t, n] else 0
    if tree.priority.size > 0:
        tree.priority[place.newest : place.newest + place.actors] = tree.largest[0]
        first, last = place.newest, place.newest + place.actors - 1
        for level in range(tree.levels.size - 1):
            first, last = first // 16, last // 16
            for node in range(first, last + 1):
                sum_node(tree, level, node)


def sum_node(tree, level, node):
    """Sum up the branches of one node afresh."""
    total = float64(0.0)
    for n in range(16):
        if level == 0:
            total += float64(tree.priority[node * 16 + n])
        else:
            total += tree.sums[tree.levels[level - 1] + node * 16 + n]
    tree.sums[tree.levels[level] + node] = total


def mix(x):
    """Return 32 well-mixed bits of uint32 `x`, as `shuffle` does."""
    x = uint32((x ^ (x >> uint32(16))) * uint32(0x7FEB352D))
    x = uint32((x ^ (x >> uint32(15))) * uint32(0x846CA68B))
    return uint32(x ^ (x >> uint32(16)))


def key_of(seed_low, seed_high, number):
    """Return the key of the `number`-th draw, as `shuffle.random_bits` has it."""
    return mix(uint32(mix(uint32(number + seed_low)) ^ seed_high))


def bits_of(key, index):
    """Return random bits `index` of a draw."""
    return mix(uint32(mix(uint32(uint32(index) ^ key)) + key))


def pick_alike(rows, size, seed_low, seed_high, number):
    """Fill `rows` [B] with rows below `size`."""
    key = key_of(seed_low, seed_high, number)
    for b in range(rows.size):
        rows[b] = (np.int64(bits_of(key, b)) * size) >> 32


def pick_by_priority(rows, weights, tree, size, seed_low, seed_high, number, beta):
    """Fill `rows` and `weights` [B]; one row from each of B equal shares of the total."""
    key = key_of(seed_low, seed_high, number)
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
        first = node * 16 if level < 0 else tree.levels[level] + node * 16
        chosen, last = -1, 0
        for n in range(16):
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
        node = node * 16 + chosen
    return node


def put_priorities(tree, rows, errors, alpha, eps):
    """Give rows [B] their priorities and sum up again what stands above them."""
    for b in range(rows.size):
        made = float32((float64(abs(errors[b])) + float64(eps)) ** float64(alpha))
        tree.priority[rows[b]] = made
        tree.largest[0] = max(tree.largest[0], made)
    for level in range(tree.levels.size - 1):
        for b in range(rows.size):
            sum_node(tree, level, rows[b] >> (4 * (level + 1)))


def gather_batch(ring, place, rows, n_step, gamma, batch):
    """Fill `batch` with the transitions that begin in `rows` [B]."""
    obs, action, reward, discount, next_obs = batch
    for b in range(rows.size):
        at, last = rows[b], rows[b]
        total, scale = float32(0.0), float32(1.0)
        for _ in range(n_step):
            last = at
            total += scale * ring.reward[at]
            scale *= gamma
            if ring.ends[at] != 0 or place.newest <= at < place.newest + place.actors:
                break
            at += place.actors
            at = at - place.rows if at >= place.rows else at
        reward[b] = total
        discount[b] = float32(0.0) if ring.ends[last] == 1 else scale
        for f in range(obs.shape[1]):
            obs[b, f] = ring.obs[rows[b], f]
            next_obs[b, f] = ring.next_obs[last, f]
        for c in range(action.shape[1]):
            action[b, c] = ring.action[rows[b], c]


SOURCE = '''"""Experience replay; written by warprun."""

from numba import njit


@njit(nogil=True, cache=True, **FLAGS)
def store(*given):
    store_step(*given)


@njit(nogil=True, cache=True, **FLAGS)
def alike(*given):
    pick_alike(*given)


@njit(nogil=True, cache=True, **FLAGS)
def by_priority(*given):
    pick_by_priority(*given)


@njit(nogil=True, cache=True, **FLAGS)
def find(tree, masses, rows):
    for b in range(masses.size):
        rows[b] = find_row(tree, masses[b])


@njit(nogil=True, cache=True, **FLAGS)
def put(*given):
    put_priorities(*given)


@njit(nogil=True, cache=True, **FLAGS)
def gather(*given):
    gather_batch(*given)
'''


@cache
def module() -> ModuleType:
    """Return the compiled kernels."""
    functions: dict[str, Any] = {f.__name__: f for f in (store_step, pick_alike, pick_by_priority, find_row, put_priorities, gather_batch)}
    return kernels.load_module("replay", SOURCE, functions | {"FLAGS": kernels.FLAGS})


def store(ring: Ring, tree: Tree, place: Place, trajectory: Trajectory, group: GroupTrajectory, t: int) -> None:
    """Write step `t` of a rollout to the rows of the newest step; what is new has the largest priority."""
    parts = (group.obs[t], group.obs[t + 1], group.final_obs, group.action[t], group.reward[t], trajectory.terminated, trajectory.truncated)
    module().store(_arrays(ring), _arrays(tree), place, *(part.numpy() for part in parts), t)


def draw_alike(place: Place, count: int, seed: int, number: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `count` rows, all alike, [B] int64, and their weights, [B]: 1."""
    rows = np.empty(count, np.int64)
    module().alike(rows, place.size, *_counter(seed, number))
    return torch.from_numpy(rows), torch.ones(count)


def draw_by_priority(tree: Tree, place: Place, count: int, seed: int, number: int, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `count` rows, one from each of as many equal shares of the total priority, [B] int64, and their weights, [B]."""
    rows, weights = np.empty(count, np.int64), np.empty(count, np.float32)
    module().by_priority(rows, weights, _arrays(tree), place.size, *_counter(seed, number), np.float64(beta))
    return torch.from_numpy(rows), torch.from_numpy(weights)


def find(tree: Tree, mass: torch.Tensor) -> torch.Tensor:
    """Return the rows, [B] int64, in whose share of the summed priorities `mass` [B] float64 lies."""
    rows = np.empty(len(mass), np.int64)
    module().find(_arrays(tree), mass.numpy(), rows)
    return torch.from_numpy(rows)


def set_priorities(tree: Tree, row: torch.Tensor, error: torch.Tensor, alpha: float, eps: float) -> None:
    """Give rows [B] the priorities (|error| + eps)^alpha."""
    module().put(_arrays(tree), row.numpy(), error.numpy(), np.float64(alpha), np.float64(eps))


def gather(ring: Ring, place: Place, row: torch.Tensor, n_step: int, gamma: float) -> tuple[torch.Tensor, ...]:
    """Return (obs, action, reward, discount, next_obs) of transitions that begin in rows [B] and go on for up to n steps."""
    count, features, components = len(row), ring.obs.shape[1], ring.action.shape[1]
    obs, next_obs = torch.empty(count, features), torch.empty(count, features)
    action = torch.empty(count, components, dtype=ring.action.dtype)
    batch = (obs, action, torch.empty(count), torch.empty(count), next_obs)
    module().gather(_arrays(ring), place, row.numpy(), n_step, np.float32(gamma), tuple(part.numpy() for part in batch))
    return batch


def _counter(seed: int, number: int) -> tuple[Any, ...]:
    return uint32(seed & 0xFFFFFFFF), uint32(seed >> 32 & 0xFFFFFFFF), uint32(number & 0xFFFFFFFF)


def _arrays(tensors: Any) -> Any:
    """Return a NamedTuple of tensors as one of arrays over the same memory."""
    return type(tensors)(*(tensor.numpy() for tensor in tensors))
