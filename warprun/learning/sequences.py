"""Sequences in replay memory, for policies with memory (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed RL", R2D2).

Beside each transition replay memory keeps what the policy remembered before it (their "stored state"). A drawn sequence
begins with steps from which memory is brought up to date by the weights of today ("burn-in"); gradients come from the
steps that follow. Any stored step can begin a sequence, if all steps of the sequence are there. Sequences go on over
the ends of episodes, where memory begins anew.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from warprun.learning.draws import random_bits
from warprun.learning.recurrent import Recurrent
from warprun.learning.replay import GOES_ON, Replay, TransitionBatch, Transitions
from warprun.learning.settings.off_policy import OffPolicyConfig
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
    counts: bool
    """Whether the last number of a carry counts the steps since it forgot, see `Recurrent.parts`."""

    def forgotten(self) -> History:
        """Return the sequences as a network sees them whose memory was not stored: it begins with zeros, and forgets at the same steps."""
        carry = torch.zeros_like(self.carry)
        if self.counts:
            carry[:, -1] = self.carry[:, -1]
        return self._replace(carry=carry)


def recall(memory: Recurrent | None, batch: TransitionBatch, history: History | None) -> torch.Tensor:
    """Return what a memory gives for the observations of a batch, [R, U]; the observations themselves without memory."""
    if memory is None or history is None:
        return batch.obs
    rows, _ = _trace(memory, history)
    return rows[: len(history.last)].flatten(0, 1)


@torch.no_grad()
def recall_next(memory: Recurrent | None, batch: TransitionBatch, history: History | None) -> torch.Tensor:
    """Return what a memory gives for the observations that follow, [R, U], without gradients."""
    if memory is None or history is None:
        return batch.next_obs
    _, carries = _trace(memory, history)
    return _next_rows(memory, batch, history, carries)


def recall_both(memory: Recurrent | None, batch: TransitionBatch, history: History | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `recall` and `recall_next` do, of the same weights, for the work of one."""
    if memory is None or history is None:
        return batch.obs, batch.next_obs
    rows, carries = _trace(memory, history)
    return rows[: len(history.last)].flatten(0, 1), _next_rows(memory, batch, history, carries)


def _trace(memory: Recurrent, history: History) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a memory gives for the learned steps and those after them, and the carries after each; none of burn-in's gradients."""
    carry, first = history.carry, history.burn_in
    if first:
        with torch.no_grad():
            _, carry = memory.unroll(history.obs[:first], carry, history.begins[:first])
    return memory.trace(history.obs[first:], carry, history.begins[first:])


@torch.no_grad()
def _next_rows(memory: Recurrent, batch: TransitionBatch, history: History, carries: torch.Tensor) -> torch.Tensor:
    """Return what a memory gives for the next observations [R, F] of a batch, after the carries of the steps before them."""
    at = (history.last - history.burn_in)[..., None].expand(-1, -1, carries.shape[-1])
    none = torch.zeros(1, len(batch.next_obs), dtype=torch.bool, device=carries.device)
    rows, _ = memory.unroll(batch.next_obs[None], carries.gather(0, at).flatten(0, 1), none)
    return rows[0]


class Sequences:
    """Draws sequences from replay memory, and keeps what the policy remembered, H numbers of an actor."""

    def __init__(self, replay: Replay, config: OffPolicyConfig) -> None:
        """`replay`: of one source, whose rollouts follow each other, with room for a sequence (`OffPolicyConfig.check_run`)."""
        self.replay = replay
        self.steps, self.burn_in = config.replay.sequence, config.replay.burn_in
        self.wide = config.steps_drawn()
        """Steps of a sequence with all that its returns need."""
        self.kept = replay.place.rows // replay.place.actors
        """Steps of the ring."""
        assert not len(replay.place.newest) and self.kept >= self.wide
        self.counts = config.network.sequence is not None
        device = replay.ring.reward.device
        self.carry = torch.zeros(len(replay.ring.reward), config.network.carry(), device=device)
        """[R, H]: before each transition of the ring."""
        self._actors = torch.arange(replay.place.actors, device=device)

    def store(self, trajectory: Trajectory, name: str) -> None:
        """Write what the policy of group `name` remembered in a rollout that `Replay.store` has written."""
        for t in range(trajectory.horizon):
            step = self.replay.place.steps - trajectory.horizon + t
            before = trajectory.carries[name].first if t == 0 else trajectory.carry_before(name, t)
            self.carry.index_copy_(0, self._rows(step), before.flatten(0, 1))
            if self.replay.config.prioritized:
                self._prioritize(step)

    def _rows(self, step: torch.Tensor) -> torch.Tensor:
        """Return the rows of a step [] of all actors."""
        return step * len(self._actors) % self.replay.place.rows + self._actors

    def _prioritize(self, newest: torch.Tensor) -> None:
        """Give the sequence that ends with step `newest` [] the largest priority, as it is complete; the one that begins there gets 0."""
        tree, whole = self.replay.tree, newest - self.wide + 1
        begins = self._rows(whole.clamp(min=0))
        tree.priority.index_fill_(0, self._rows(newest), 0.0)
        tree.priority[begins] = torch.where(whole >= 0, tree.largest, tree.priority[begins])
        for rows in (begins, self._rows(newest)):
            self.replay.sum_up(rows)

    def draw(self, number: torch.Tensor) -> tuple[TransitionBatch, History]:
        """Return batch `number` ([] int64) of B sequences: the T * B transitions to learn, and their history.

        `row` [B], of their first steps, is what `Replay.update_priorities` takes.
        """
        ring, place = self.replay.ring, self.replay.place
        begin, weights = self._begin(number)
        ages = torch.arange(self.wide, device=begin.device)[:, None]
        rows = (begin // place.actors + ages) % self.kept * place.actors + begin % place.actors
        ended = ring.ends[rows] != GOES_ON
        begins = torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))

        chosen = rows[self.burn_in : self.burn_in + self.steps]
        total, discount, last = self.replay.returns(chosen)
        parts = (
            self.replay.observed(ring.obs, chosen),
            ring.action[chosen],
            total,
            discount,
            self.replay.observed(ring.next_obs, last),
            weights.expand(self.steps, -1),
        )
        obs, action, total, discount, next_obs, weight = (part.flatten(0, 1) for part in parts)
        batch = Transitions(obs, action, total, discount, next_obs, weight, begin)
        steps = (last // place.actors - begin // place.actors) % self.kept
        return batch, History(self.replay.observed(ring.obs, rows), begins, self.carry[begin], steps, self.burn_in, self.counts)

    def _begin(self, number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of the first steps of batch `number`, [B] int64, and the weights of its sequences [B]."""
        place, count = self.replay.place, self.replay.batch_size
        if self.replay.config.prioritized:
            drawn = self.replay.draw(number)
            return drawn.row, drawn.weight
        steps = place.steps.clamp(max=self.kept)
        possible = (steps - self.wide + 1) * place.actors
        after_oldest = random_bits(count, self.replay.seed, number) * possible >> 32
        rows = ((place.steps - steps) * place.actors + after_oldest) % place.rows
        return rows, torch.ones(count, device=rows.device)

    def errors(self, error: torch.Tensor, history: History) -> torch.Tensor:
        """Return the errors of sequences [B] from those of their transitions [T * B]: eta max |e| + (1 - eta) mean |e|; section 2.3."""
        error, eta = error.view(history.last.shape).abs(), self.replay.config.eta
        return eta * error.amax(0) + (1.0 - eta) * error.mean(0)
