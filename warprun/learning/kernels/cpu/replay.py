"""Experience replay in CPU kernels; `learning.replay` is the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch

from warprun.kernels.bound import Call, kernel_module
from warprun.learning.draws import Stream, bits_of, key_of
from warprun.learning.replay import (
    BRANCHES,
    GOES_ON,
    TERMINATED,
    TRUNCATED,
    Replay,
    Ring,
    RingPosition,
    TransitionBatch,
    Transitions,
    Tree,
)
from warprun.simulation.trajectory import GroupTrajectory, Trajectory
from warprun.spec import BYTE

float32, float64, uint8 = np.float32, np.float64, np.uint8
PART = float64(1.0 / BYTE)


def store_step(part, ring, tree, place, rollout):
    """Write step `part` of the rollout that `place.steps` already includes to its rows; new transitions get the largest priority."""
    obs, final_obs, action, reward, terminated, truncated, source, continues = rollout
    (horizon, n_envs, size), t = reward.shape, part
    step = place.steps[()] - horizon + t
    begin = step * place.actors % place.rows
    if place.newest.size > 0:
        kept, before = place.following.size, place.newest[source[()]]
        place.following[step % kept] = -1
        if before >= 0 and step - before < kept and (t > 0 or continues[()]):
            place.following[before % kept] = step % kept
        place.newest[source[()]] = step
    elif t == 0 and not continues[()]:
        for row in range((step - 1) * place.actors % place.rows, (step - 1) * place.actors % place.rows + place.actors):
            ring.ends[row] = TRUNCATED if ring.ends[row] == GOES_ON else ring.ends[row]
    for n in range(n_envs):
        slot = 0
        if truncated[t, n]:
            for earlier in range(t):
                slot += 1 if truncated[earlier, n] else 0
        for a in range(size):
            row = begin + n * size + a
            hold(ring.obs, row, obs[t, n, a])
            hold(ring.next_obs, row, final_obs[slot, n, a] if truncated[t, n] else obs[t + 1, n, a])
            for c in range(action.shape[3]):
                ring.action[row, c] = action[t, n, a, c]
            ring.reward[row] = reward[t, n, a]
            ring.ends[row] = TERMINATED if terminated[t, n] else TRUNCATED if truncated[t, n] else GOES_ON
    if tree.priority.size > 0:
        tree.priority[begin : begin + place.actors] = tree.largest[0]
        first, last = begin, begin + place.actors - 1
        for level in range(tree.levels.size - 1):
            first, last = first // BRANCHES, last // BRANCHES
            for node in range(first, last + 1):
                sum_node(tree, level, node)


def hold(held, row, obs):
    """Write an observation [F] to a row of the ring."""
    if held.itemsize == 1:
        for f in range(obs.size):
            held[row, f] = uint8(obs[f] * float32(BYTE) + float32(0.5))
    else:
        for f in range(obs.size):
            held[row, f] = obs[f]


def observe(held, row, obs):
    """Fill an observation [F] with a row of the ring."""
    if held.itemsize == 1:
        for f in range(obs.size):
            obs[f] = float32(float64(held[row, f]) * PART)  # the float32 quotient of all bytes; a float32 product is not
    else:
        for f in range(obs.size):
            obs[f] = held[row, f]


def sum_node(tree, level, node):
    """Compute the sum of one node from its children."""
    total = float64(0.0)
    for n in range(BRANCHES):
        if level == 0:
            total += float64(tree.priority[node * BRANCHES + n])
        else:
            total += tree.sums[tree.levels[level - 1] + node * BRANCHES + n]
    tree.sums[tree.levels[level] + node] = total


def draw_batch(ring, tree, place, stream, beta, n_step, gamma, batch):
    """Draw rows, by priority if the tree has priorities, and fill `batch` with their transitions."""
    key, size = key_of(stream), min(place.steps[()] * place.actors, place.rows)
    if tree.priority.size > 0:
        draw_by_priority(batch.row, batch.weight, tree, size, key, beta[()])
    else:
        draw_uniformly(batch.row, size, key)
    gather_batch(ring, place, n_step, gamma, batch)


def draw_uniformly(rows, size, key):
    """Fill `rows` [B] with rows below `size`."""
    for b in range(rows.size):
        rows[b] = (np.int64(bits_of(key, b)) * size) >> 32


def draw_by_priority(rows, weights, tree, size, key, beta):
    """Fill `rows` and `weights` [B]: draw one row from each of B equal shares of the total priority."""
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
    """Return the row whose interval of the cumulative priorities contains `mass`."""
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
            # Rounding left a remainder: choose the last branch that is not empty.
            chosen = last
        node = node * BRANCHES + chosen
    return node


def put_priorities(tree, rows, errors, alpha, eps):
    """Set the priorities of rows [B], each by the largest of its errors, and compute the sums above them again."""
    for b in range(rows.size):
        tree.priority[rows[b]] = float32(0.0)
    for b in range(rows.size):
        priority = float32((float64(abs(errors[b])) + float64(eps)) ** float64(alpha))
        tree.priority[rows[b]] = max(tree.priority[rows[b]], priority)
        tree.largest[0] = max(tree.largest[0], priority)
    reach = 1
    for level in range(tree.levels.size - 1):
        reach *= BRANCHES
        for b in range(rows.size):
            sum_node(tree, level, rows[b] // reach)


def gather_batch(ring, place, n_step, gamma, batch):
    """Fill `batch` with the transitions of up to n steps that begin in its rows [B]."""
    newest = (place.steps[()] - 1) * place.actors % place.rows
    for b in range(batch.row.size):
        at, last = batch.row[b], batch.row[b]
        total, scale = float32(0.0), float32(1.0)
        for _ in range(n_step):
            last = at
            total += scale * ring.reward[at]
            scale *= float32(gamma)
            if ring.ends[at] != GOES_ON:
                break
            if place.newest.size > 0:
                step = place.following[at // place.actors]
                if step < 0:
                    break
                at = step * place.actors + at % place.actors
            elif newest <= at < newest + place.actors:
                break
            else:
                at += place.actors
                at = at - place.rows if at >= place.rows else at
        batch.reward[b] = total
        batch.discount[b] = float32(0.0) if ring.ends[last] == TERMINATED else scale
        observe(ring.obs, batch.row[b], batch.obs[b])
        observe(ring.next_obs, last, batch.next_obs[b])
        for c in range(ring.action.shape[1]):
            batch.action[b, c] = ring.action[batch.row[b], c]


@cache
def module() -> ModuleType:
    """Return the compiled kernels."""
    return kernel_module("replay", {"store": [store_step], "draw": [draw_batch], "put": [put_priorities]})


class KernelReplay(Replay):
    """`Replay` whose operations are kernels; the next draw overwrites the batch of the last one."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        """Take what `Replay` takes."""
        super().__init__(*given, **settings)
        place = self.place
        counts = RingPosition(place.actors, place.rows, place.steps.numpy(), place.following.numpy(), place.newest.numpy())
        self._memory = Ring(*map(torch.Tensor.numpy, self.ring)), Tree(*map(torch.Tensor.numpy, self.tree)), counts
        count = self.batch_size
        obs, next_obs = (torch.empty(count, part.shape[1]) for part in self.ring[:2])
        action = self.ring.action.new_empty(count, self.ring.action.shape[1])
        row = torch.zeros(count, dtype=torch.int64)
        self._batch = Transitions(obs, action, torch.empty(count), torch.empty(count), next_obs, torch.ones(count), row)
        self._calls: dict[str, tuple[Call, tuple[object, ...]]] = {}
        """By the name of the kernel: its last call, and what it was made for."""

    def store(self, trajectory: Trajectory, group: GroupTrajectory) -> None:
        def arguments() -> tuple[object, ...]:
            ends = (trajectory.terminated, trajectory.truncated)
            parts = (
                group.obs,
                group.final_obs,
                group.action,
                group.reward,
                *ends,
                trajectory.source,
                trajectory.continues,
            )
            return *self._memory, tuple(part.numpy() for part in parts)

        self._call("store", arguments, trajectory)(0, trajectory.horizon, 0)

    def draw(self, number: torch.Tensor) -> TransitionBatch:
        """Return batch `number` ([] int64), which the next draw overwrites."""

        def arguments() -> tuple[object, ...]:
            batch = Transitions(*map(torch.Tensor.numpy, self._batch))
            return (
                *self._memory,
                Stream(self.seed, number).words(),
                self.beta.tensor.numpy(),
                self.n_step,
                self.gamma,
                batch,
            )

        self._call("draw", arguments, number)(0, 1, 0)
        return self._batch

    def update_priorities(self, row: torch.Tensor, error: torch.Tensor) -> None:
        """Set the priorities of rows [B] by the largest of their temporal-difference errors [B]; only if `prioritized`."""
        alpha, eps = self.config.alpha, self.config.eps
        self._call("put", lambda: (self._memory[1], row.numpy(), error.numpy(), alpha, eps), row, error)(0, 1, 0)

    def _call(self, kernel: str, arguments: Callable[[], tuple[object, ...]], *given: object) -> Call:
        """Return the last call of a kernel if it was made for the same objects, else a new one."""
        call, known = self._calls.get(kernel, (None, ()))
        if call is None or any(new is not old for new, old in zip(given, known, strict=True)):
            call = Call(getattr(module(), kernel), *arguments())
            self._calls[kernel] = call, given
        return call
