"""The tensors of a rollout, allocated once: what the engine and the agents share."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from warprun.environment import Box, Environment, Group


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


@dataclass(frozen=True, eq=False)
class Trajectory:
    """T steps of N environments."""

    terminated: torch.Tensor
    """[T, N] bool: the episode ended in a terminal state; its value is 0."""
    truncated: torch.Tensor
    """[T, N] bool: the episode hit the time limit (and did not terminate); bootstrap from `final_obs`."""
    groups: dict[str, GroupTrajectory]

    @property
    def horizon(self) -> int:
        return self.terminated.shape[0]

    @property
    def n_envs(self) -> int:
        return self.terminated.shape[1]

    def final_slot(self) -> torch.Tensor:
        """Return [T, N] int64: k, the row of `final_obs`, where `truncated`; 0 elsewhere."""
        before = self.truncated.cumsum(0) - self.truncated.long()
        return before * self.truncated


def shapes(environment: Environment, group: Group, horizon: int, n_envs: int) -> dict[str, tuple[tuple[int, ...], torch.dtype] | None]:
    """Return (shape, dtype) of every tensor of a group, or None for an absent mask."""
    actors = (n_envs, group.size)
    slots = final_slots(environment.time_limit, horizon)
    action_dtype = torch.float32 if isinstance(group.action, Box) else torch.int32
    features, masked = group.observation.size, group.masked_actions
    return {
        "obs": ((horizon + 1, *actors, features), torch.float32),
        "mask": ((horizon + 1, *actors, masked), torch.bool) if masked else None,
        "policy_output": ((*actors, group.action.outputs), torch.float32),
        "action": ((horizon, *actors, group.action.components), action_dtype),
        "log_prob": ((horizon, *actors), torch.float32),
        "value": ((horizon, *actors), torch.float32),
        "reward": ((horizon, *actors), torch.float32),
        "final_obs": ((slots, *actors, features), torch.float32),
    }


def final_slots(time_limit: int | None, horizon: int) -> int:
    """Return how often one environment can be truncated in `horizon` steps, at least 1."""
    return 1 + (horizon - 1) // time_limit if time_limit else 1


def bytes_needed(environment: Environment, horizon: int, n_envs: int) -> int:
    """Return the size of all tensors of a rollout, before any is made."""
    total = 2 * horizon * n_envs
    for group in environment.groups:
        for entry in shapes(environment, group, horizon, n_envs).values():
            if entry:
                count = 1
                for n in entry[0]:
                    count *= n
                total += count * entry[1].itemsize
    return total


def allocate(environment: Environment, horizon: int, n_envs: int, device: torch.device) -> Trajectory:
    """Allocate the tensors of a rollout, zeroed (masks: all allowed)."""

    def zeros(entry: tuple[tuple[int, ...], torch.dtype] | None) -> torch.Tensor | None:
        return torch.zeros(entry[0], dtype=entry[1], device=device) if entry else None

    groups = {}
    for group in environment.groups:
        made = {name: zeros(entry) for name, entry in shapes(environment, group, horizon, n_envs).items()}
        groups[group.name] = GroupTrajectory(**{f.name: made[f.name] for f in fields(GroupTrajectory)})  # type: ignore[arg-type]
    flags = ((horizon, n_envs), torch.bool)
    return Trajectory(zeros(flags), zeros(flags), groups)  # type: ignore[arg-type]
