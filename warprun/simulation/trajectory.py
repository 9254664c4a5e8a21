"""The tensors of a rollout, allocated once: what the engine and the agents share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch

from warprun.simulation.arrays import Layout, rollout_arrays
from warprun.spec import Spec
from warprun.state import State


@dataclass(frozen=True)
class GroupTrajectory:
    """Steps of one group of A actors, T in each of N environments; F features, C components, P outputs, M mask entries."""

    obs: torch.Tensor
    """[T+1, N, A, F] float32; row T is the observation after the last step, row 0 of the next rollout."""
    mask: torch.Tensor | None
    """[T+1, N, A, M] bool: which actions are allowed; None where all are."""
    policy_output: torch.Tensor
    """[N, A, P] float32: logits, or means and then log standard deviations; written by the agent at each step."""
    action: torch.Tensor
    """[T, N, A, C] int32, or float32 in the policy's units (-1..1 maps to the bounds)."""
    log_prob: torch.Tensor
    """[T, N, A] float32: log-probability of `action` under `policy_output`."""
    value: torch.Tensor
    """[T, N, A] float32: written by the agent at each step."""
    reward: torch.Tensor
    """[T, N, A] float32."""
    final_obs: torch.Tensor
    """[K, N, A, F] float32: the observation at the k-th truncation of each environment in this rollout."""
    alive: torch.Tensor | None = None
    """[T+1, N, A] bool: the actor is in the episode; None where none leaves before it ends. One that is not has no reward, and acts and
    observes nothing that counts."""
    final_alive: torch.Tensor | None = None
    """[K, N, A] bool: `alive` at the k-th truncation."""

    def seen(self) -> dict[str, torch.Tensor]:
        """Return what policies see, [T+1, N, A, ...] each: `obs`, and of a group that has them `mask` and `alive`."""
        named = {"obs": self.obs, "mask": self.mask, "alive": self.alive}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def rows(self) -> int:
        """Number of rows of `of_alive`; of a group whose actors can leave, the host waits for the device."""
        return self.reward.numel() if self.alive is None else max(1, int(self.alive[:-1].sum()))

    def of_alive(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the rows [R, ...] of each tensor [T, N, A, ...] that belong to actors in the episode, step after step.

        If there is none, the first row stands for them: for an actor that has left, advantage and return are 0.
        """
        if self.alive is None:
            return tuple(tensor.flatten(0, 2) for tensor in tensors)
        index = rows_of(self.alive[:-1].flatten())
        return tuple(tensor.flatten(0, 2)[index] for tensor in tensors)


def rows_of(alive: torch.Tensor) -> torch.Tensor:
    """Return the numbers of the rows whose actors are in the episode, [R] int64; 0 if there is none. `alive` is bool, one for each row."""
    index = alive.nonzero().squeeze(1)
    return index if len(index) else index.new_zeros(1)


class Carry(NamedTuple):
    """The memory of a policy of A actors: H numbers of the episodes for each actor, written by the agent, or by a fused rollout."""

    first: torch.Tensor
    """[N, A, H] float32: before row 0."""
    after: torch.Tensor
    """[T, N, A, H] float32: after each row, also after one that ended an episode. Fused rollouts write the last row, and others where an
    episode was cut off."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """T steps of N environments. Tensors are contiguous: kernels keep their addresses."""

    terminated: torch.Tensor
    """[T, N] bool: the episode ended in a terminal state; its value is 0."""
    truncated: torch.Tensor
    """[T, N] bool: the episode was cut off, at its time limit or before (and did not terminate); bootstrap from `final_obs`."""
    groups: dict[str, GroupTrajectory]
    source: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    """[] int64: which simulator made this rollout, if those of several take turns; else 0."""
    continues: torch.Tensor = field(default_factory=lambda: torch.ones((), dtype=torch.bool))
    """[] bool: the first step follows the last one of the rollout of the same source that the agent saw before."""
    carries: dict[str, Carry] = field(default_factory=dict)
    """The memory of policies, for every group whose policy has memory; see `remember`."""
    activations: dict[str, torch.Tensor] = field(default_factory=dict)
    """[tiles, T, rows, columns] float32 of groups of one actor: what the acting network computed in this rollout, from the normalised
    observation to the outputs (`kernels.mlp.Layer`), one column for each environment of a tile. The last tile has blocks of fewer columns,
    one after the other, if it has fewer environments (`kernels.mlp.infer`). See `keep`."""

    @property
    def horizon(self) -> int:
        return self.terminated.shape[0]

    @property
    def n_envs(self) -> int:
        return self.terminated.shape[1]

    def ends(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `terminated` and `truncated` for the actors of a group, [T, N, A] or [T, N, 1] bool.

        The step in which an actor leaves, and all later ones, are terminated for it: nothing follows.
        """
        terminated, truncated, group = self.terminated[..., None], self.truncated[..., None], self.groups[name]
        if group.alive is None or group.final_alive is None:
            return terminated, truncated
        slot = self.final_slot()[..., None].expand(-1, -1, group.alive.shape[-1])
        after = torch.where(truncated, group.final_alive.gather(0, slot), group.alive[1:])
        return terminated | ~after, truncated

    def final_slot(self) -> torch.Tensor:
        """Return [T, N] int64: k, the row of `final_obs`, where `truncated`; 0 elsewhere."""
        before = self.truncated.cumsum(0) - self.truncated.long()
        return before * self.truncated

    def remember(self, numbers: Mapping[str, int]) -> None:
        """Make place for what policies remember, once: group -> numbers of an actor, 0: the policy has no memory."""
        for name, size in numbers.items():
            if size and name not in self.carries:
                place = self.groups[name].value.new_zeros((*self.groups[name].value.shape, size))
                self.carries[name] = Carry(torch.zeros_like(place[0]), place)

    def keep(self, rows: Mapping[str, int], columns: int) -> None:
        """Make place for what networks compute in rollouts: group -> rows of a block; `columns`: environments of a tile."""
        for name, count in rows.items():
            self.activations[name] = self.groups[name].value.new_zeros((-(-self.n_envs // columns), self.horizon, count, columns))

    def forget(self) -> None:
        """Let all policies forget: every environment begins an episode. Simulators call this when they reset."""
        for carry in self.carries.values():
            carry.after[-1].zero_()
            # What is restored later was no end of an episode, but the step with which kernels are tried may have been one.
            self.terminated[-1].zero_()
            self.truncated[-1].zero_()

    def carry_before(self, name: str, row: int) -> torch.Tensor:
        """Return what a group's policy remembers before row `row`, [N, A, H]: after the row before, zeros where that ended an episode.

        The row before row 0 is the last row of the rollout before.
        """
        carry, ended = self.carries[name], self.terminated[row - 1] | self.truncated[row - 1]
        before = carry.after[row - 1].masked_fill(ended[:, None, None], 0.0)
        if row == 0:
            carry.first.copy_(before)
        return before

    def carry_at_truncations(self, name: str, most: int) -> torch.Tensor:
        """Return what a group's policy remembers before the first `most` rows of `final_obs`, [most, N, A, H]; any if fewer."""
        after, place = self.carries[name].after, self.truncated
        slot = torch.where(place, self.final_slot(), most)  # the last slot is for all other steps, and left out
        steps = torch.arange(len(place), device=place.device)[:, None].expand_as(slot)
        # The largest: of the steps of the last slot, a GPU would write any one last.
        step = slot.new_zeros((most + 1, place.shape[1])).scatter_reduce_(0, slot, steps, "amax")[:most]
        return after.gather(0, step[..., None, None].expand(-1, -1, *after.shape[2:]))

    def state(self) -> State:
        """Return what a checkpoint has to keep: what policies remember before the next rollout."""
        for name, carry in self.carries.items():
            carry.after[-1].copy_(self.carry_before(name, self.horizon))
        return {f"{name}/carry": carry.after[-1] for name, carry in self.carries.items()}


def allocate(spec: Spec, horizon: int, n_envs: int, device: torch.device) -> Trajectory:
    """Allocate the tensors of a rollout, zeroed."""

    def zeros(layout: Layout) -> torch.Tensor:
        return torch.zeros(layout.shape, dtype=getattr(torch, layout.dtype), device=device)

    common, groups = rollout_arrays(spec, n_envs, horizon)
    made = {}
    for name, layouts in groups.items():
        tensors = {f.name: zeros(layouts[f.name]) for f in fields(GroupTrajectory) if f.name in layouts}
        made[name] = GroupTrajectory(**{"mask": None, **tensors})  # type: ignore[arg-type]
    source, continues = torch.zeros((), dtype=torch.int64, device=device), torch.ones((), dtype=torch.bool, device=device)
    return Trajectory(zeros(common["terminated"]), zeros(common["truncated"]), made, source, continues)
