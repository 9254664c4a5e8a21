"""The operations of experience replay in torch: for CUDA, and the plain statement of what `replay_cpu` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from warprun.agents.shuffle import random_bits
from warprun.engine.trajectory import GroupTrajectory, Trajectory

if TYPE_CHECKING:
    from warprun.agents.replay import Place, Ring, Tree


def store(ring: Ring, tree: Tree, place: Place, trajectory: Trajectory, group: GroupTrajectory, t: int) -> None:
    """Write step `t` of a rollout to the rows of the newest step; what is new has the largest priority."""
    part = slice(place.newest, place.newest + place.actors)
    truncated = trajectory.truncated[t]
    slot = trajectory.final_slot()[t].view(1, -1, 1, 1).expand(1, *group.obs.shape[1:])
    following = torch.where(truncated[:, None, None], group.final_obs.gather(0, slot)[0], group.obs[t + 1])
    ring.obs[part] = group.obs[t].flatten(0, 1)
    ring.next_obs[part] = following.flatten(0, 1)
    ring.action[part] = group.action[t].flatten(0, 1)
    ring.reward[part] = group.reward[t].flatten()
    ring.ends[part] = (trajectory.terminated[t].byte() + 2 * truncated.byte()).repeat_interleave(group.reward.shape[-1])
    if len(tree.priority):
        rows = torch.arange(part.start, part.stop, device=tree.priority.device)
        tree.priority[rows] = tree.largest
        _sum_up(tree, rows)


def draw_alike(place: Place, count: int, seed: int, number: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `count` rows, all alike, [B] int64, and their weights, [B]: 1."""
    bits = random_bits(count, seed, torch.tensor(number, device=device))
    return bits * place.size >> 32, torch.ones(count, device=device)


def draw_by_priority(tree: Tree, place: Place, count: int, seed: int, number: int, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `count` rows, one from each of as many equal shares of the total priority, [B] int64, and their weights, [B].

    Schaul et al. 2016, section 3.3 and algorithm 1: (N P)^-beta over the largest of the batch.
    """
    device = tree.priority.device
    bits = random_bits(count, seed, torch.tensor(number, device=device))
    mass = (torch.arange(count, device=device, dtype=torch.float64) + bits * 2.0**-32) * (tree.sums[-1] / count)
    row = find(tree, mass)
    weight = (place.size * tree.priority[row].double() / tree.sums[-1]) ** -beta
    return row, (weight / weight.max()).float()


def find(tree: Tree, mass: torch.Tensor) -> torch.Tensor:
    """Return the rows, [B] int64, in whose share of the summed priorities `mass` [B] float64 lies."""
    node = torch.zeros_like(mass, dtype=torch.int64)
    branches = torch.arange(16, device=mass.device)
    below = [tree.sums[int(begin) : int(end)] for begin, end in zip(tree.levels[:-1], tree.levels[1:], strict=True)]
    for values in [*reversed(below[:-1]), tree.priority]:
        share = values[node[:, None] * 16 + branches].double()
        upto = share.cumsum(1)
        # The first branch that ends beyond the mass; rounding may leave none, then the last that has any.
        branch = (upto <= mass[:, None]).sum(1)
        last = (branches * (share > 0)).amax(1)
        branch = torch.minimum(branch, last)
        mass = mass - torch.where(branch > 0, upto.gather(1, (branch - 1).clamp(min=0)[:, None])[:, 0], 0.0)
        node = node * 16 + branch
    return node


def set_priorities(tree: Tree, row: torch.Tensor, error: torch.Tensor, alpha: float, eps: float) -> None:
    """Give rows [B] the priorities (|error| + eps)^alpha."""
    made = ((error.double().abs() + eps) ** alpha).float()
    tree.priority[row] = made
    tree.largest.copy_(torch.maximum(tree.largest, made.max()))
    _sum_up(tree, row)


def _sum_up(tree: Tree, row: torch.Tensor) -> None:
    """Sum up again all that stands above rows: afresh, so that nothing drifts."""
    below, node = tree.priority, row
    for begin, end in zip(tree.levels[:-1].tolist(), tree.levels[1:].tolist(), strict=True):
        node = node // 16
        own = tree.sums[begin:end]
        own[node] = below.view(-1, 16)[node].double().sum(1)
        below = own


def gather(ring: Ring, place: Place, row: torch.Tensor, n_step: int, gamma: float) -> tuple[torch.Tensor, ...]:
    """Return (obs, action, reward, discount, next_obs) of transitions that begin in rows [B] and go on for up to n steps.

    They end with the episode, and with the newest step: a shorter return is discounted less (Sutton & Barto 2018, eq. 7.1).
    """
    at, going_on = row, torch.ones_like(row, dtype=torch.bool)
    total, discount = torch.zeros(len(row), device=row.device), torch.ones(len(row), device=row.device)
    for _ in range(n_step):
        total = torch.where(going_on, total + discount * ring.reward[at], total)
        discount = torch.where(going_on, discount * gamma, discount)
        newest = (at >= place.newest) & (at < place.newest + place.actors)
        going_on = going_on & (ring.ends[at] == 0) & ~newest
        after = at + place.actors
        at = torch.where(going_on, torch.where(after >= place.rows, after - place.rows, after), at)
    # Where the loop ends while the return goes on, `at` is one step too far.
    before = at - place.actors
    at = torch.where(going_on, torch.where(before < 0, before + place.rows, before), at)
    discount = torch.where(ring.ends[at] == 1, 0.0, discount)
    return ring.obs[row], ring.action[row], total, discount, ring.next_obs[at]
