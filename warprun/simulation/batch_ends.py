"""Ends of the episodes of a batch: what a trajectory has of them, and the numbers of the episodes that go on and that have ended."""

from __future__ import annotations

import numpy as np
import torch

from warprun.kernels.bound import Call, kernel_module
from warprun.kernels.compile import merged_function
from warprun.simulation.trajectory import Trajectory

NEVER = 2**62
"""The time limit of environments that have none."""


def account_step(at, limit, seen, gained, ends, cuts, obs, reward, terminated, truncated, clock, returns, over, late, counts):
    """Write what a step of all environments gave, and count it; write to `over` [N] where an episode has ended.

    It gave `seen` [N, F], `gained`, `ends` and `cuts` [N]; `truncated` is where an episode was cut off and not terminated. `at` [row];
    `late` [N]: the time limit alone ended it; `counts` [2]: how many `over` and `late` have.
    """
    row, features = at[0], seen.shape[1]
    counts[:] = 0
    for e in range(over.size):
        for f in range(features):
            obs[row + 1, e, f] = seen[e, f]
        reward[row, e] = gained[e]
        clock[e] += 1
        returns[e] += gained[e]
        ended, cut = ends[e], cuts[e]
        late[e] = clock[e] >= limit and not (ended or cut)
        over[e] = ended or cut or late[e]
        terminated[row, e] = ended
        truncated[row, e] = (cut or late[e]) and not ended
        counts[0] += over[e]
        counts[1] += late[e]


def renew_episodes(at, over, fresh, obs, final, truncated, cuts, clock, returns, ended):
    """Keep the final observations of truncated episodes, add those that ended to `ended` [3], and begin others with `fresh` [N, F]."""
    row, features = at[0], fresh.shape[1]
    for e in range(over.size):
        if over[e]:
            if truncated[row, e]:
                slot = min(cuts[e], final.shape[0] - 1)
                for f in range(features):
                    final[slot, e, f] = obs[row + 1, e, f]
                cuts[e] += 1
            ended[0] += 1.0
            ended[1] += clock[e]
            ended[2] += returns[e]
            clock[e] = 0
            returns[e] = 0.0
            for f in range(features):
                obs[row + 1, e, f] = fresh[e, f]


class Episodes:
    """The numbers of the episodes of a batch, and what of its trajectory their ends are written to."""

    def __init__(self, trajectory: Trajectory, name: str, time_limit: int | None) -> None:
        """`name`: of the group."""
        group, n_envs = trajectory.groups[name], trajectory.n_envs
        self.obs, self.final, self.reward = group.obs[:, :, 0], group.final_obs[:, :, 0], group.reward[:, :, 0]
        self.terminated, self.truncated, place = trajectory.terminated, trajectory.truncated, group.obs.device
        self.limit = NEVER if time_limit is None else time_limit
        self.clock = torch.zeros(n_envs, dtype=torch.int64, device=place)
        self.returns = torch.zeros(n_envs, dtype=torch.float64, device=place)
        self.ended = torch.zeros(3, dtype=torch.float64, device=place)
        """Episodes since they were last taken, their steps, and their rewards."""
        self.cuts = torch.zeros(n_envs, dtype=torch.int64, device=place)
        """Truncations in this rollout."""
        self._everyone = torch.arange(n_envs, device=place)

    def begin(self) -> None:
        """Forget the episodes that go on."""
        self.clock.zero_()
        self.returns.zero_()


class Ends(Episodes):
    """The ends of episodes by torch, on any device; nothing waits for a GPU."""

    def account(self, row: int, seen: torch.Tensor, gained: torch.Tensor, ends: torch.Tensor, cuts: torch.Tensor) -> torch.Tensor:
        """Write what a step gave, observations [N, ...] and its rewards and ends [N], and count it; return where an episode ended [N]."""
        after, ended, cut = self.obs[row + 1], self.terminated[row], self.truncated[row]
        if seen.data_ptr() != after.data_ptr():
            after.copy_(seen.reshape(after.shape))
        self.reward[row].copy_(gained)
        ended.copy_(ends)
        cut.copy_(cuts)
        self.clock += 1
        cut |= self.clock >= self.limit
        cut &= ~ended
        self.returns += self.reward[row]
        return ended | cut

    def renew(self, row: int, over: torch.Tensor, fresh: torch.Tensor) -> None:
        """Keep final observations, count the episodes that ended, and begin the next ones with observations `fresh` [N, F]."""
        after, cut = self.obs[row + 1], self.truncated[row]
        slot = self.cuts.clamp(max=len(self.final) - 1), self._everyone
        self.final[slot] = torch.where(cut[:, None], after, self.final[slot])
        returns = torch.where(over, self.returns, 0.0)
        self.ended += torch.stack((over.sum(dtype=torch.float64), (self.clock * over).sum(dtype=torch.float64), returns.sum()))
        self.cuts += cut
        self.clock.masked_fill_(over, 0)
        self.returns.masked_fill_(over, 0.0)
        after.copy_(torch.where(over[:, None], fresh.to(after.dtype), after))


class KernelEnds(Episodes):
    """The same by one kernel each, on the host."""

    def __init__(self, trajectory: Trajectory, name: str, time_limit: int | None) -> None:
        super().__init__(trajectory, name, time_limit)
        self.over = torch.zeros_like(trajectory.terminated[0])
        self.late = torch.zeros_like(self.over)
        """Where the time limit alone ended an episode in the last step."""
        self.counts = np.zeros(2, np.int64)
        """Episodes that ended in the last step, and those that are `late`."""
        self._at = np.zeros(1, np.int64)
        module = kernel_module("ends", {"account": [account_step], "renew": [renew_episodes]}, merged_function)
        fresh, given = self.obs[0].numpy(), (self.obs[0], self.reward[0], self.terminated[0], self.truncated[0])
        numbers = (self.obs, self.reward, self.terminated, self.truncated, self.clock, self.returns, self.over, self.late)
        self._account = Call(module.account, self._at, self.limit, *(each.numpy() for each in (*given, *numbers)), self.counts)
        after = (self.obs, self.final, self.truncated, self.cuts, self.clock, self.returns, self.ended)
        self._renew = Call(module.renew, self._at, self.over.numpy(), fresh, *(each.numpy() for each in after))

    def account(self, row: int, seen: np.ndarray, gained: np.ndarray, ends: np.ndarray, cuts: np.ndarray) -> None:
        """Do the same with contiguous arrays, [N, F] and [N] float32, [N] bool; sets `over`, `late` and `counts`."""
        self._at[0] = row
        self._account.move(seen=seen, gained=gained, ends=ends, cuts=cuts)
        self._account.run(0, 1, 0)

    def renew(self, row: int, fresh: np.ndarray) -> None:
        """Renew where the last `account` has found ends, with contiguous observations [N, F] float32."""
        self._at[0] = row
        self._renew.move(fresh=fresh)
        self._renew.run(0, 1, 0)
