"""The operations of experience replay in torch: for CUDA, and the plain statement of what `replay_cpu` does."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from warprun.learning.replay.ring import BRANCHES, GOES_ON, TERMINATED, TRUNCATED, Place, Ring, Transitions, Tree
from warprun.learning.shuffle import random_bits
from warprun.simulation.trajectory import GroupTrajectory, Trajectory


class TorchOperations:
    """What can be done with one ring."""

    def __init__(self, ring: Ring, tree: Tree, batch_size: int) -> None:
        self.ring, self.tree, self.batch_size = ring, tree, batch_size
        self.levels = list(pairwise(tree.levels.tolist()))
        """Where each level begins and ends in the sums."""

    def store(self, place: Place, trajectory: Trajectory, group: GroupTrajectory, t: int) -> None:
        """Write step `t` of a rollout to the rows of the newest step; what is new has the largest priority."""
        ring, tree = self.ring, self.tree
        rows = place.newest + torch.arange(place.actors, device=ring.reward.device)
        truncated = trajectory.truncated[t]
        slot = trajectory.final_slot()[t].view(1, -1, 1, 1).expand(1, *group.obs.shape[1:])
        following = torch.where(truncated[:, None, None], group.final_obs.gather(0, slot)[0], group.obs[t + 1])
        ring.obs[rows] = group.obs[t].flatten(0, 1)
        ring.next_obs[rows] = following.flatten(0, 1)
        ring.action[rows] = group.action[t].flatten(0, 1)
        ring.reward[rows] = group.reward[t].flatten()
        ends = TERMINATED * trajectory.terminated[t].byte() + TRUNCATED * truncated.byte()
        ring.ends[rows] = ends.repeat_interleave(group.reward.shape[-1])
        if len(tree.priority):
            tree.priority[rows] = tree.largest
            self._sum_up(rows)

    def draw(self, place: Place, seed: int, number: Any, beta: Any, n_step: int, gamma: float) -> Transitions:
        """Return the `number`-th batch: with priorities one row from each of as many equal shares of their total, else all alike.

        Schaul et al. 2016, section 3.3 and algorithm 1: weights are (N P)^-beta over the largest of the batch.
        """
        tree, count, device = self.tree, self.batch_size, self.ring.reward.device
        bits = random_bits(count, seed, torch.as_tensor(number, device=device))
        if not len(tree.priority):
            return self.gather(place, bits * place.size >> 32, n_step, gamma)
        mass = (torch.arange(count, device=device, dtype=torch.float64) + bits * 2.0**-32) * (tree.sums[-1] / count)
        row = self.find(mass)
        weight = (place.size * tree.priority[row].double() / tree.sums[-1]) ** -beta
        return self.gather(place, row, n_step, gamma)._replace(weight=(weight / weight.max()).float())

    def gather(self, place: Place, row: torch.Tensor, n_step: int, gamma: float) -> Transitions:
        """Return the transitions that begin in rows [B] and go on for up to n steps, with weights 1.

        They end with the episode, and with the newest step: a shorter return is discounted less (Sutton & Barto 2018, eq. 7.1).
        """
        ring, at, going_on = self.ring, row, torch.ones_like(row, dtype=torch.bool)
        total, discount = torch.zeros(len(row), device=row.device), torch.ones(len(row), device=row.device)
        for _ in range(n_step):
            total = torch.where(going_on, total + discount * ring.reward[at], total)
            discount = torch.where(going_on, discount * gamma, discount)
            newest = (at >= place.newest) & (at < place.newest + place.actors)
            going_on = going_on & (ring.ends[at] == GOES_ON) & ~newest
            after = at + place.actors
            at = torch.where(going_on, torch.where(after >= place.rows, after - place.rows, after), at)
        # Where the loop ends while the return goes on, `at` is one step too far.
        before = at - place.actors
        at = torch.where(going_on, torch.where(before < 0, before + place.rows, before), at)
        discount = torch.where(ring.ends[at] == TERMINATED, 0.0, discount)
        return Transitions(ring.obs[row], ring.action[row], total, discount, ring.next_obs[at], torch.ones_like(total), row)

    def find(self, mass: torch.Tensor) -> torch.Tensor:
        """Return the rows, [B] int64, in whose share of the summed priorities `mass` [B] float64 lies."""
        tree, node = self.tree, torch.zeros_like(mass, dtype=torch.int64)
        branches = torch.arange(BRANCHES, device=mass.device)
        below = [tree.sums[begin:end] for begin, end in self.levels]
        for values in [*reversed(below[:-1]), tree.priority]:
            share = values[node[:, None] * BRANCHES + branches].double()
            upto = share.cumsum(1)
            # The first branch that ends beyond the mass; rounding may leave none, then the last that has any.
            branch = (upto <= mass[:, None]).sum(1)
            last = (branches * (share > 0)).amax(1)
            branch = torch.minimum(branch, last)
            mass = mass - torch.where(branch > 0, upto.gather(1, (branch - 1).clamp(min=0)[:, None])[:, 0], 0.0)
            node = node * BRANCHES + branch
        return node

    def set_priorities(self, row: torch.Tensor, error: torch.Tensor, alpha: float, eps: float) -> None:
        """Give rows [B] the priorities (|error| + eps)^alpha."""
        made = ((error.double().abs() + eps) ** alpha).float()
        self.tree.priority[row] = made
        self.tree.largest.copy_(torch.maximum(self.tree.largest, made.max()))
        self._sum_up(row)

    def _sum_up(self, row: torch.Tensor) -> None:
        """Sum up again all that stands above rows: afresh, so that nothing drifts."""
        tree = self.tree
        below, node = tree.priority, row
        for begin, end in self.levels:
            node = node // BRANCHES
            own = tree.sums[begin:end]
            own[node] = below.view(-1, BRANCHES)[node].double().sum(1)
            below = own
