"""Sequences in replay memory, for policies with memory (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed RL", R2D2).

Beside each transition replay memory keeps what the policy remembered before it (their "stored state"). A drawn sequence begins with steps
from which memory is brought up to date by the weights of today ("burn-in"); gradients come from the steps that follow. Any stored step can
begin a sequence. Sequences go on over the ends of episodes, where memory begins anew.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from warprun.learning.recurrent import Recurrent
from warprun.learning.replay.replay import Replay
from warprun.learning.replay.ring import GOES_ON, TERMINATED, Transitions
from warprun.simulation.trajectory import Trajectory


class History(NamedTuple):
    """Where the transitions of a batch come from: W steps in a row of B actors, of which T are learned, W >= T.

    Row t * B + b of the batch is step `burn_in` + t of sequence b.
    """

    obs: torch.Tensor
    """[W, B, F]."""
    begins: torch.Tensor
    """[W, B] bool: an episode begins with this step, after the first one of the sequence."""
    carry: torch.Tensor
    """[B, H]: what the policy remembered before the first step."""
    last: torch.Tensor
    """[T, B] int64: the step whose `next_obs` ends the n-step return of each learned one."""
    burn_in: int
    """Steps before the first learned one."""

    def forgotten(self) -> History:
        """Return the sequences as a network sees them whose memory was not stored: it begins with zeros."""
        return self._replace(carry=torch.zeros_like(self.carry))


class Seen(NamedTuple):
    """What the head of a network gets for the rows of a batch."""

    obs: torch.Tensor
    """[R, U]: for the observations, with gradients."""
    next_obs: torch.Tensor
    """[R, U]: for the observations that follow, without gradients."""


def recall(memory: Recurrent | None, batch: Transitions[torch.Tensor], history: History | None) -> Seen:
    """Return what a memory makes of the observations of a batch; the observations themselves without memory."""
    if memory is None or history is None:
        return Seen(batch.obs, batch.next_obs)
    (steps, count), first = history.last.shape, history.burn_in
    before, learned, after = slice(first), slice(first, first + steps), slice(first + steps, None)
    carry = history.carry
    with torch.no_grad():
        if first:
            _, carry = memory.unroll(history.obs[before], carry, history.begins[before])
    rows, carries = memory.trace(history.obs[learned], carry, history.begins[learned])
    with torch.no_grad():
        if len(history.obs) > first + steps:
            _, later = memory.trace(history.obs[after], carries[-1], history.begins[after])
            carries = torch.cat((carries, later))
        at = (history.last - first)[..., None].expand(-1, -1, carries.shape[-1])
        none = torch.zeros(1, steps * count, dtype=torch.bool, device=rows.device)
        next_rows, _ = memory.unroll(batch.next_obs[None], carries.gather(0, at).flatten(0, 1), none)
    return Seen(rows.flatten(0, 1), next_rows[0])


class Sequences:
    """Draws sequences from replay memory, and keeps what the policy remembered, H numbers of an actor."""

    def __init__(self, replay: Replay, carry: int, n_step: int, gamma: float) -> None:
        """`replay`: of one source, whose rollouts follow each other."""
        assert not len(replay.place.newest)
        self.replay, self.n_step, self.gamma = replay, n_step, gamma
        self.steps, self.burn_in = replay.config.sequence, replay.config.burn_in
        self.carry = torch.zeros(len(replay.ring.reward), carry, device=replay.ring.reward.device)
        """[R, H]: before each transition of the ring."""

    def store(self, trajectory: Trajectory, name: str) -> None:
        """Write what the policy of group `name` remembered in a rollout that `Replay.store` has written."""
        place, device = self.replay.place, self.carry.device
        actors = torch.arange(place.actors, device=device)
        for t in range(trajectory.horizon):
            before = trajectory.carries[name].first if t == 0 else trajectory.carry_before(name, t)
            step = place.steps - trajectory.horizon + t
            self.carry.index_copy_(0, step * place.actors % place.rows + actors, before.flatten(0, 1))

    def draw(self, number: torch.Tensor) -> tuple[Transitions[torch.Tensor], History]:
        """Return batch `number` ([] int64) of B sequences: the T * B transitions to learn, and their history.

        `row` [B] is what `Replay.update_priorities` takes. Only if replay memory holds a whole sequence, see `OffPolicyConfig.check_run`.
        """
        ring, place, drawn = self.replay.ring, self.replay.place, self.replay.draw(number)
        wide = self.burn_in + self.steps + self.n_step - 1
        kept = place.rows // place.actors
        count = place.steps.clamp(max=kept)
        oldest = place.steps - count
        age = (drawn.row // place.actors - oldest) % kept  # steps after the oldest
        begin = torch.minimum(age, count - wide)  # the last sequence ends with the newest step
        ages = begin + torch.arange(wide, device=begin.device)[:, None]
        rows = (oldest + ages) % kept * place.actors + drawn.row % place.actors
        ended = ring.ends[rows] != GOES_ON
        begins = torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))

        learned = slice(self.burn_in, self.burn_in + self.steps)
        total, discount, last = self._returns(ring.reward[rows], ended)
        ends_at, chosen = ring.ends[rows].gather(0, last), rows[learned]
        discount = torch.where(ends_at == TERMINATED, 0.0, discount)
        weight = drawn.weight.expand(self.steps, -1)
        next_obs = ring.next_obs[rows.gather(0, last)]
        parts = (ring.obs[chosen], ring.action[chosen], total, discount, next_obs, weight)
        obs, action, total, discount, next_obs, weight = (part.flatten(0, 1) for part in parts)
        batch = Transitions(obs, action, total, discount, next_obs, weight, drawn.row)
        return batch, History(ring.obs[rows], begins, self.carry[rows[0]], last, self.burn_in)

    def _returns(self, reward: torch.Tensor, ended: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sums of up to n rewards, discounts after them and the last steps of the learned steps, see `Operations.gather`."""
        first = torch.arange(self.burn_in, self.burn_in + self.steps, device=reward.device)[:, None]
        last = first.expand(-1, reward.shape[1])
        total, discount = torch.zeros_like(last, dtype=reward.dtype), torch.ones_like(last, dtype=reward.dtype)
        goes_on = torch.ones_like(last, dtype=torch.bool)
        for n in range(self.n_step):
            at = slice(self.burn_in + n, self.burn_in + n + self.steps)
            total = torch.where(goes_on, total + discount * reward[at], total)
            discount = torch.where(goes_on, discount * self.gamma, discount)
            last = torch.where(goes_on, first + n, last)
            goes_on = goes_on & ~ended[at]
        return total, discount, last

    def errors(self, error: torch.Tensor, history: History) -> torch.Tensor:
        """Return the errors of sequences [B] from those of their transitions [T * B]: eta max |e| + (1 - eta) mean |e|; section 2.3."""
        error, eta = error.view(history.last.shape).abs(), self.replay.config.eta
        return eta * error.amax(0) + (1.0 - eta) * error.mean(0)
