"""The interface of agents, and the context in which they are built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from warprun.kernels.mlp import Network
from warprun.learning.communicator import Communicator
from warprun.learning.settings.plan import Plan
from warprun.simulation.exploration import Exploration
from warprun.simulation.trajectory import Trajectory
from warprun.spec import Spec
from warprun.state import State, Stateful, derived_seed

Metrics = Mapping[str, torch.Tensor | float]
"""Name -> a number or a tensor []; names are such as `loss/value`, of several groups `loss/GROUP/value`."""
Settings = TypeVar("Settings", contravariant=True)
T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """The context of an agent: all that it is built with beside its settings and the spec of the environment."""

    device: torch.device
    n_envs: int
    """Environments of the rollouts that it will learn from."""
    threads: int
    """CPU threads."""
    seed: int
    plan: Plan
    communicator: Communicator
    sources: int | None = None
    """Simulators whose rollouts take turns, perhaps with gaps (`Trajectory.source` and `continues`); None: one, and every rollout continues
    the one before."""


class Draws(Protocol):
    """The part of an agent that a simulator needs to draw actions."""

    @property
    def exploration(self) -> Exploration | None:
        """That of `Agent`."""

    @property
    def carry(self) -> Mapping[str, int]:
        """That of `Agent`."""

    def networks(self) -> Mapping[str, Network]:
        """Return each group's acting network on the memory of its parameters, for a fused rollout. Only if the plan is fused."""


def own_seed(context: Context, seed: int, purpose: str) -> int:
    """Return a seed for `purpose` that no other process of the run has: each draws from replay memory of its own."""
    rank = context.communicator.rank
    return derived_seed(seed, purpose, rank) if rank else derived_seed(seed, purpose)


class Agent(Stateful, Protocol):
    """A policy for each group, and how they learn from rollouts.

    The life of an agent: `act` for each step of a rollout (not at all if the plan is fused), then `update`, in every iteration. An agent
    reads and writes the tensors of a `Trajectory` and knows nothing of the simulator behind it.
    """

    exploration: Exploration | None
    """How actions are drawn (`kernels.sampling.explore_real`); None: policies give distributions, from which actions are sampled."""
    carry: Mapping[str, int]
    """Per group, how many numbers its policy remembers of an episode, for each actor (`Trajectory.carries`); 0, or no entry: none."""
    kept: Mapping[str, int]
    """Groups whose activations of a rollout on CPU `update` takes instead of computing them again, and the rows of their network
    (`Trajectory.activations`)."""
    learning_starts: int
    """Environment steps before the first gradient step."""

    def act(self, trajectory: Trajectory, row: int) -> None:
        """Write every group's `policy_output`, and `value[row]` if it has one, for the observations of row `row`."""

    def update(self, trajectory: Trajectory, progress: float) -> Metrics:
        """Learn from a rollout at `progress`, 0 to 1, of the run; return the metrics of this update, which may be none.

        The next update may overwrite their tensors.
        """

    def policy_state(self) -> State:
        """Return the part of `state` that `act` and `networks` need; more of it is allowed."""

    def networks(self) -> Mapping[str, Network]:
        """Return each group's acting network on the memory of its parameters, for a fused rollout. Only if the plan is fused."""

    def flops_per_env_step(self) -> float | None:
        """Return the floating-point operations of the matrix products of an environment step with training; None if not known."""

    def diagnostics(self, trajectory: Trajectory) -> Metrics:
        """Return metrics that are too slow for every update, computed when metrics are logged; it changes nothing."""


class AgentClass(Protocol[Settings]):
    """The class of an agent, as the registry has it."""

    Config: type
    """Dataclass of its settings, see `learning.settings.agent.AgentConfig`."""

    def __call__(self, settings: Settings, spec: Spec, context: Context) -> Agent:
        """Build an untrained agent, of settings that have passed their checks."""


def by_group(found: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """Return the metrics of all groups in one dict: `kind/name` for a single group, `kind/GROUP/name` for several."""
    if len(found) == 1:
        return dict(next(iter(found.values())))
    named = {}
    for group, metrics in found.items():
        for name, value in metrics.items():
            kind, _, rest = name.partition("/")
            named[f"{kind}/{group}/{rest}"] = value
    return named
