"""The tensors of a rollout, allocated once: what the engine and the agents share."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch

from warprun.simulation.arrays import Layout, rollout_arrays
from warprun.spec import Spec


@dataclass(frozen=True)
class GroupTrajectory:
    """What one group of A actors did in T steps of N environments; F features, C components, P outputs, M mask entries."""

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
        index = self.alive[:-1].flatten().nonzero().squeeze(1)
        index = index if len(index) else index.new_zeros(1)
        return tuple(tensor.flatten(0, 2)[index] for tensor in tensors)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """T steps of N environments."""

    terminated: torch.Tensor
    """[T, N] bool: the episode ended in a terminal state; its value is 0."""
    truncated: torch.Tensor
    """[T, N] bool: the episode hit the time limit (and did not terminate); bootstrap from `final_obs`."""
    groups: dict[str, GroupTrajectory]
    source: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    """[] int64: which simulator made this rollout, if those of several take turns; else 0."""
    continues: torch.Tensor = field(default_factory=lambda: torch.ones((), dtype=torch.bool))
    """[] bool: the first step follows the last one of the rollout of the same source that the agent saw before."""

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
