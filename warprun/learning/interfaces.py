"""What an agent is, and what it is built with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from warprun.concurrency.communicator import Communicator
from warprun.kernels.mlp import Network
from warprun.plan import Fusion, Plan
from warprun.simulation.trajectory import Trajectory
from warprun.spec import Box, Discrete, MultiDiscrete, Spec
from warprun.state import Stateful

Metrics = Mapping[str, torch.Tensor | float]
"""Name -> a number or a tensor []; names are such as `loss/value`, of several groups `loss/GROUP/value`."""
Settings = TypeVar("Settings", contravariant=True)


@dataclass(frozen=True)
class Requirements:
    """What an agent needs of the groups that it acts for."""

    spaces: tuple[type, ...] = (Discrete, MultiDiscrete, Box)
    """Action spaces that it can act in."""
    masks: bool = True
    """Whether it keeps to action masks; if not, it cannot act for a group that has one."""
    bounded: bool = False
    """Whether the bounds of a Box must be finite, because the agent acts within -1..1."""


@dataclass(frozen=True)
class Context:
    """What an agent is built with, beside its settings and the spec of the environment."""

    device: torch.device
    n_envs: int
    """Environments of the rollouts that it will learn from."""
    threads: int
    """CPU threads."""
    seed: int
    plan: Plan
    communicator: Communicator


class Agent(Stateful, Protocol):
    """A policy for each group, and how they learn from rollouts.

    The life of an agent: `act` for each step of a rollout (not at all if the plan is fused), then `update`, in every iteration. An agent
    reads and writes the tensors of a `Trajectory` and knows nothing of the simulator behind it.
    """

    exploration: Mapping[str, torch.Tensor] | None
    """Per group, [3] float32, how actions are drawn around the policy's output (`kernels.sampling.explore_real`); None: policies give
    distributions, from which actions are sampled."""
    n_parameters: int
    """Numbers that are trained."""
    learning_starts: int
    """Environment steps before the first gradient step."""

    def act(self, trajectory: Trajectory, row: int) -> None:
        """Write every group's `policy_output`, and `value[row]` if it has one, for the observations of row `row`."""

    def update(self, trajectory: Trajectory, progress: float) -> Metrics:
        """Learn from a rollout at `progress`, 0 to 1, of the run; return metrics, which hold until the next update."""

    def networks(self) -> Mapping[str, Network]:
        """Return each group's acting network on the memory of its parameters, for a fused rollout. Only if the plan is fused."""

    def flops_per_env_step(self) -> float | None:
        """Return the floating-point operations of the matrix products of an environment step with training; None if not known."""

    def diagnostics(self, trajectory: Trajectory) -> Metrics:
        """Return metrics that are too slow for every update, computed when metrics are logged; it changes nothing."""


class AgentClass(Protocol[Settings]):
    """The class of an agent, as the registry has it: what is known of it before it is built."""

    Config: type
    """Dataclass of its settings, see `learning.settings.AgentConfig`."""
    requirements: Requirements
    """What it can act in."""
    explores: bool
    """Whether it gives values or actions around which `sample` explores, not distributions: see `Agent.exploration`."""

    def check_settings(self, config: Settings, key: str) -> None:
        """Raise UserError, which begins with `key`.SETTING, for a value that cannot work; `key` is `agent` or `agent.groups.NAME`."""

    def check_run(self, config: Settings, spec: Spec, n_envs: int, total_steps: int) -> None:
        """Raise UserError if a run of `total_steps` environment steps of `n_envs` environments cannot work with these settings."""

    def replay_bytes(self, config: Settings, spec: Spec) -> int:
        """Return the bytes that kept transitions take, or slightly less; 0 for an agent that keeps none."""

    def __call__(self, settings: Settings, spec: Spec, context: Context) -> Agent:
        """Build an untrained agent. Raises UserError for settings that cannot work."""

    def fusion(self, settings: Settings, spec: Spec) -> Fusion:
        """Return what kernels can compute of an agent with these settings."""
