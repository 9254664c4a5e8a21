"""Experience replay of one row, node or draw, for kernels on CPU and on CUDA; `learning.replay` has the memory, and tests a
form by torch."""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

import numpy as np
import torch

from warprun.learning.kernels.draws import bits_of
from warprun.learning.replay import BRANCHES, GOES_ON, TERMINATED, TRUNCATED, RingPosition
from warprun.simulation.trajectory import GroupTrajectory, Trajectory
from warprun.spec import BYTE

float32, float64, uint8 = np.float32, np.float64, np.uint8
PART = float64(1.0 / BYTE)


class Rollout(NamedTuple):
    """The part of a rollout that replay stores, see `Trajectory`: tensors, or the arrays of kernels."""

    obs: torch.Tensor
    final_obs: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    source: torch.Tensor
    """[1]."""
    continues: torch.Tensor
    """[1]."""


def rollout_of(trajectory: Trajectory, group: GroupTrajectory) -> Rollout:
    """Return the part of a rollout that replay stores."""
    ends, state = (trajectory.terminated, trajectory.truncated), (trajectory.source.view(1), trajectory.continues.view(1))
    return Rollout(group.obs, group.final_obs, group.action, group.reward, *ends, *state)


def position(place: RingPosition[torch.Tensor]) -> RingPosition[torch.Tensor]:
    """Return the filled part of the ring with `steps` as [1]."""
    return place._replace(steps=place.steps.view(1))


def link(place, step, source, continues):
    """Let `step` follow the newest step of its source, if that one is still there."""
    kept, before = place.following.size, place.newest[source]
    place.following[step % kept] = -1
    if before >= 0 and step - before < kept and continues:
        place.following[before % kept] = step % kept
    place.newest[source] = step


def cut_off(ring, row):
    """Let the episode end with a row: no rollout has continued it, and its next observation is there."""
    ring.ends[row] = TRUNCATED if ring.ends[row] == GOES_ON else ring.ends[row]


def store_row(ring, tree, rollout, row, t, n, a, first, step):
    """Write the numbers `first`, `first` + `step`, ... of actor `a` of environment `n` at step `t` to a row."""
    truncated = rollout.truncated[t, n]
    slot = 0
    if truncated:
        for earlier in range(t):
            slot += 1 if rollout.truncated[earlier, n] else 0
    for f in range(first, rollout.obs.shape[3], step):
        hold(ring.obs, row, f, rollout.obs[t, n, a, f])
        hold(ring.next_obs, row, f, rollout.final_obs[slot, n, a, f] if truncated else rollout.obs[t + 1, n, a, f])
    if first == 0:
        for c in range(rollout.action.shape[3]):
            ring.action[row, c] = rollout.action[t, n, a, c]
        ring.reward[row] = rollout.reward[t, n, a]
        ring.ends[row] = TERMINATED if rollout.terminated[t, n] else TRUNCATED if truncated else GOES_ON
        if tree.prioritized:
            tree.priority[row] = tree.largest[0]


def hold(held, row, f, x):
    """Write number `f` of an observation to a row of the ring."""
    held[row, f] = uint8(x * float32(BYTE) + float32(0.5)) if held.itemsize == 1 else x


def observed(held, row, f):
    """Return number `f` of the observation in a row of the ring."""
    # The float32 quotient of all bytes; a float32 product is not.
    return float32(float64(held[row, f]) * PART) if held.itemsize == 1 else held[row, f]


def sum_node(tree, level, node):
    """Compute the sum of one node from its children."""
    total = float64(0.0)
    for n in range(BRANCHES):
        if level == 0:
            total += float64(tree.priority[node * BRANCHES + n])
        else:
            total += tree.sums[tree.levels[level - 1] + node * BRANCHES + n]
    tree.sums[tree.levels[level] + node] = total


def uniform_row(b, size, key):
    """Return the row that draw `b` gives, below `size`."""
    return (np.int64(bits_of(key, b)) * size) >> 32


def priority_row(tree, b, count, key):
    """Return the row that draw `b` of `count` gives: one out of each of `count` equal shares of the total priority."""
    total = tree.sums[tree.sums.size - 1]
    mass = (float64(b) + float64(bits_of(key, b)) * float64(2.3283064365386963e-10)) * (total / float64(count))
    return find_row(tree, mass)


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


def importance(tree, row, size, beta):
    """Return the importance-sampling weight of a row, before it is divided by the largest of the batch."""
    return exp(-float64(beta) * log(float64(size) * float64(tree.priority[row]) / tree.sums[tree.sums.size - 1]))


def priority_of(error, alpha, eps):
    """Return the priority of a temporal-difference error."""
    size = float64(abs(error)) + float64(eps)
    return float32(exp(float64(alpha) * log(size))) if size > 0.0 else float32(0.0)


def returns_of(ring, place, n_step, gamma, row):
    """Return the sum of up to n rewards from a row on, the discount after them, and the last row, see `Replay.returns`."""
    newest = (place.steps[0] - 1) * place.actors % place.rows
    at, last = row, row
    total, scale = float32(0.0), float32(1.0)
    for _ in range(n_step):
        last = at
        total += scale * ring.reward[at]
        scale *= float32(gamma)
        if ring.ends[at] != GOES_ON:
            break
        if place.linked:
            step = place.following[at // place.actors]
            if step < 0:
                break
            at = step * place.actors + at % place.actors
        elif newest <= at < newest + place.actors:
            break
        else:
            at += place.actors
            at = at - place.rows if at >= place.rows else at
    return total, float32(0.0) if ring.ends[last] == TERMINATED else scale, last


def gather_row(ring, place, n_step, gamma, batch, b, first, step):
    """Fill row `b` of a batch with the transition of up to n steps that begins in its row: numbers `first`, `first` + `step`, ... of the
    observations."""
    row = batch.row[b]
    total, discount, last = returns_of(ring, place, n_step, gamma, row)
    for f in range(first, batch.obs.shape[1], step):
        batch.obs[b, f] = observed(ring.obs, row, f)
        batch.next_obs[b, f] = observed(ring.next_obs, last, f)
    if first == 0:
        batch.reward[b] = total
        batch.discount[b] = discount
        for c in range(ring.action.shape[1]):
            batch.action[b, c] = ring.action[row, c]
