"""Experience replay by torch, written without regard to speed: what kernels must compute."""

import torch

from warprun.learning.draws import random_bits
from warprun.learning.replay import BRANCHES, GOES_ON, TERMINATED, TRUNCATED, Replay, TransitionBatch, Transitions
from warprun.simulation.trajectory import GroupTrajectory, Trajectory
from warprun.spec import BYTE


class TorchReplay:
    """The operations on replay memory."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    def store(self, trajectory: Trajectory, group: GroupTrajectory) -> None:
        """Write a rollout that `advance` has counted; new transitions get the largest priority."""
        for t in range(trajectory.horizon):
            self._store_step(trajectory, group, t)

    def _store_step(self, trajectory: Trajectory, group: GroupTrajectory, t: int) -> None:
        ring, tree, place = self.replay.ring, self.replay.tree, self.replay.place
        step = place.steps - trajectory.horizon + t
        first = step * place.actors % place.rows
        continues = trajectory.continues
        if place.linked:
            self._link(step, trajectory.source, continues if t == 0 else torch.ones_like(continues))
        elif t == 0:
            before = (step - 1) * place.actors % place.rows + torch.arange(place.actors, device=ring.reward.device)
            ends = ring.ends[before]
            ring.ends[before] = torch.where((ends == GOES_ON) & ~continues, TRUNCATED, ends)  # its next observation is there already
        rows = first + torch.arange(place.actors, device=ring.reward.device)
        truncated = trajectory.truncated[t]
        slot = trajectory.final_slot()[t].view(1, -1, 1, 1).expand(1, *group.obs.shape[1:])
        next_obs = torch.where(truncated[:, None, None], group.final_obs.gather(0, slot)[0], group.obs[t + 1])
        ring.obs[rows] = self._held(group.obs[t].flatten(0, 1))
        ring.next_obs[rows] = self._held(next_obs.flatten(0, 1))
        ring.action[rows] = group.action[t].flatten(0, 1)
        ring.reward[rows] = group.reward[t].flatten()
        ends = TERMINATED * trajectory.terminated[t].byte() + TRUNCATED * truncated.byte()
        ring.ends[rows] = ends.repeat_interleave(group.reward.shape[-1])
        if self.replay.config.prioritized:
            tree.priority[rows] = tree.largest
            self.replay.sum_up(rows)

    def _link(self, step: torch.Tensor, source: torch.Tensor, continues: torch.Tensor) -> None:
        """Let `step` follow the newest step of its source, if that one is still there."""
        following, newest = self.replay.place.following, self.replay.place.newest
        kept, source = len(following), source.view(1)
        before, at = newest[source], (step % kept).view(1)
        following.index_fill_(0, at, -1)
        is_there = (before >= 0) & (step - before < kept) & continues
        place = torch.where(before >= 0, before % kept, at)
        following.index_copy_(0, place, torch.where(is_there, at, following[place]).to(following.dtype))
        newest.index_copy_(0, source, step.view(1))

    def draw(self, number: torch.Tensor) -> TransitionBatch:
        """Return batch `number` ([] int64), drawn with replacement; the next draw may overwrite it.

        Uniformly without priorities. With priorities (Schaul et al. 2016, section 3.3 and algorithm 1), B equal shares
        of their total give one row each, and weights are (N P)^-beta divided by the largest of the batch.
        """
        tree, count = self.replay.tree, self.replay.batch_size
        bits = random_bits(count, self.replay.seed, number)
        size = (self.replay.place.steps * self.replay.place.actors).clamp(max=self.replay.place.rows)
        if not self.replay.config.prioritized:
            return self.gather(bits * size >> 32)
        shares = torch.arange(count, device=bits.device, dtype=torch.float64) + bits * 2.0**-32
        mass = shares * (tree.sums[-1] / count)
        row = self.find(mass)
        weight = (size * tree.priority[row].double() / tree.sums[-1]) ** -self.replay.beta.tensor
        return self.gather(row)._replace(weight=(weight / weight.max()).float())

    def gather(self, row: torch.Tensor) -> TransitionBatch:
        """Return the transitions of up to n steps that begin in rows [B], with weights 1."""
        ring, (total, discount, last) = self.replay.ring, self.replay.returns(row)
        next_obs, weight = self.replay.observed(ring.next_obs, last), torch.ones_like(total)
        return Transitions(self.replay.observed(ring.obs, row), ring.action[row], total, discount, next_obs, weight, row)

    def _held(self, obs: torch.Tensor) -> torch.Tensor:
        """Return observations as the ring holds them."""
        return (obs * BYTE).round().byte() if self.replay.ring.obs.dtype == torch.uint8 else obs

    def find(self, mass: torch.Tensor) -> torch.Tensor:
        """Return the rows, [B] int64, whose interval of the cumulative priorities contains `mass` [B] float64."""
        tree, node = self.replay.tree, torch.zeros_like(mass, dtype=torch.int64)
        branches = torch.arange(BRANCHES, device=mass.device)
        below = [tree.sums[begin:end] for begin, end in self.replay._levels]
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

    def update_priorities(self, row: torch.Tensor, error: torch.Tensor) -> None:
        """Set the priorities of rows [B], in the order of a draw, to (|error| + eps)^alpha of errors [B], the largest of a row's errors.

        Only if `prioritized`.
        """
        priority = ((error.double().abs() + self.replay.config.eps) ** self.replay.config.alpha).float()
        # A batch may have a row more than once, and a GPU writes in any order.
        self.replay.tree.priority.scatter_reduce_(0, row, priority, "amax", include_self=False)
        self.replay.tree.largest.copy_(torch.maximum(self.replay.tree.largest, priority.max()))
        self.replay.sum_up(row)
