"""The operations of experience replay in torch: for CUDA, and as the reference for `cpu_operations`."""

from __future__ import annotations

from itertools import pairwise

import torch

from warprun.learning.replay.ring import BRANCHES, GOES_ON, TERMINATED, TRUNCATED, Place, Ring, Transitions, Tree
from warprun.learning.shuffle import random_bits
from warprun.simulation.trajectory import GroupTrajectory, Trajectory


class TorchOperations:
    """`Operations` in torch; none of them waits for the device."""

    def __init__(self, ring: Ring[torch.Tensor], tree: Tree[torch.Tensor], place: Place[torch.Tensor], batch_size: int) -> None:
        self.ring, self.tree, self.place, self.batch_size = ring, tree, place, batch_size
        self.levels = levels_of(tree)

    def store(self, trajectory: Trajectory, group: GroupTrajectory) -> None:
        """Write the rollout."""
        for t in range(trajectory.horizon):
            self._store_step(trajectory, group, t)

    def _store_step(self, trajectory: Trajectory, group: GroupTrajectory, t: int) -> None:
        ring, tree, place = self.ring, self.tree, self.place
        step = place.steps - trajectory.horizon + t
        first = step * place.actors % place.rows
        if len(place.newest):
            self._link(step, trajectory.source, trajectory.continues if t == 0 else torch.ones_like(trajectory.continues))
        rows = first + torch.arange(place.actors, device=ring.reward.device)
        truncated = trajectory.truncated[t]
        slot = trajectory.final_slot()[t].view(1, -1, 1, 1).expand(1, *group.obs.shape[1:])
        next_obs = torch.where(truncated[:, None, None], group.final_obs.gather(0, slot)[0], group.obs[t + 1])
        ring.obs[rows] = group.obs[t].flatten(0, 1)
        ring.next_obs[rows] = next_obs.flatten(0, 1)
        ring.action[rows] = group.action[t].flatten(0, 1)
        ring.reward[rows] = group.reward[t].flatten()
        ends = TERMINATED * trajectory.terminated[t].byte() + TRUNCATED * truncated.byte()
        ring.ends[rows] = ends.repeat_interleave(group.reward.shape[-1])
        if len(tree.priority):
            tree.priority[rows] = tree.largest
            sum_up(tree, self.levels, rows)

    def _link(self, step: torch.Tensor, source: torch.Tensor, continues: torch.Tensor) -> None:
        """Let `step` follow the newest step of its source, if that one is still there."""
        following, newest = self.place.following, self.place.newest
        kept, source = len(following), source.view(1)
        before, at = newest[source], (step % kept).view(1)
        following.index_fill_(0, at, -1)
        is_there = (before >= 0) & (step - before < kept) & continues
        place = torch.where(before >= 0, before % kept, at)
        following.index_copy_(0, place, torch.where(is_there, at, following[place]).to(following.dtype))
        newest.index_copy_(0, source, step.view(1))

    def draw(self, seed: int, number: torch.Tensor, beta: torch.Tensor, n_step: int, gamma: float) -> Transitions[torch.Tensor]:
        """Return batch `number`."""
        tree, count, device = self.tree, self.batch_size, self.ring.reward.device
        bits = random_bits(count, seed, number)
        size = (self.place.steps * self.place.actors).clamp(max=self.place.rows)
        if not len(tree.priority):
            return self.gather(bits * size >> 32, n_step, gamma)
        mass = (torch.arange(count, device=device, dtype=torch.float64) + bits * 2.0**-32) * (tree.sums[-1] / count)
        row = self.find(mass)
        weight = (size * tree.priority[row].double() / tree.sums[-1]) ** -beta
        return self.gather(row, n_step, gamma)._replace(weight=(weight / weight.max()).float())

    def gather(self, row: torch.Tensor, n_step: int, gamma: float) -> Transitions[torch.Tensor]:
        """Return the transitions of up to n steps that begin in rows [B]."""
        ring, place, at, last, goes_on = self.ring, self.place, row, row, torch.ones_like(row, dtype=torch.bool)
        first_of_newest = (place.steps - 1) * place.actors % place.rows
        total, discount = torch.zeros(len(row), device=row.device), torch.ones(len(row), device=row.device)
        for _ in range(n_step):
            total = torch.where(goes_on, total + discount * ring.reward[at], total)
            discount = torch.where(goes_on, discount * gamma, discount)
            last = torch.where(goes_on, at, last)
            if len(place.newest):
                step = place.following[at // place.actors].long()
                newest, after = step < 0, step * place.actors + at % place.actors
            else:
                newest, after = (at >= first_of_newest) & (at < first_of_newest + place.actors), (at + place.actors) % place.rows
            goes_on = goes_on & (ring.ends[at] == GOES_ON) & ~newest
            at = torch.where(goes_on, after, at)
        at = last
        discount = torch.where(ring.ends[at] == TERMINATED, 0.0, discount)
        return Transitions(ring.obs[row], ring.action[row], total, discount, ring.next_obs[at], torch.ones_like(total), row)

    def find(self, mass: torch.Tensor) -> torch.Tensor:
        """Return the rows whose interval of the cumulative priorities contains `mass`."""
        tree, node = self.tree, torch.zeros_like(mass, dtype=torch.int64)
        branches = torch.arange(BRANCHES, device=mass.device)
        below = [tree.sums[begin:end] for begin, end in self.levels]
        for values in [*reversed(below[:-1]), tree.priority]:
            share = values[node[:, None] * BRANCHES + branches].double()
            upto = share.cumsum(1)
            # The first branch that ends beyond the mass; if rounding leaves none, the last branch that is not empty.
            branch = (upto <= mass[:, None]).sum(1)
            last = (branches * (share > 0)).amax(1)
            branch = torch.minimum(branch, last)
            mass = mass - torch.where(branch > 0, upto.gather(1, (branch - 1).clamp(min=0)[:, None])[:, 0], 0.0)
            node = node * BRANCHES + branch
        return node

    def set_priorities(self, row: torch.Tensor, error: torch.Tensor, alpha: float, eps: float) -> None:
        """Set the priorities of rows [B]."""
        priority = ((error.double().abs() + eps) ** alpha).float()
        self.tree.priority[row] = priority
        self.tree.largest.copy_(torch.maximum(self.tree.largest, priority.max()))
        sum_up(self.tree, self.levels, row)


def levels_of(tree: Tree[torch.Tensor]) -> list[tuple[int, int]]:
    """Return begin and end of each level in the sums."""
    return list(pairwise(tree.levels.tolist()))


def sum_up(tree: Tree[torch.Tensor], levels: list[tuple[int, int]], row: torch.Tensor) -> None:
    """Compute the sums above rows again from all their summands: adding differences would accumulate rounding errors."""
    below, node = tree.priority, row
    for begin, end in levels:
        node = node // BRANCHES
        own = tree.sums[begin:end]
        own[node] = below.view(-1, BRANCHES)[node].double().sum(1)
        below = own
