"""The data of replay memory: transitions in a ring, priorities in a sum tree, and batches."""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

from warprun.simulation.trajectory import GroupTrajectory, Trajectory

GOES_ON, TERMINATED, TRUNCATED = 0, 1, 2
"""Values of Ring.ends."""
BRANCHES = 16
"""Children of a node of the sum tree: the float32 numbers in a cache line."""

A = TypeVar("A")
"""torch.Tensor, or numpy.ndarray on the same memory for kernels."""


class Ring(NamedTuple, Generic[A]):
    """The transitions; R rows, F features, C components."""

    obs: A
    """[R, F] float32."""
    next_obs: A
    """[R, F] float32: the final observation if the episode was truncated; not defined if it terminated."""
    action: A
    """[R, C] float32 or int32."""
    reward: A
    """[R] float32."""
    ends: A
    """[R] uint8."""


class Tree(NamedTuple, Generic[A]):
    """Priorities and their sums over subtrees; sampling by priority descends from the total to a row."""

    priority: A
    """[R, padded to BRANCHES] float32: (|TD error| + eps)^alpha, 0 for a row without a transition; [0] for uniform sampling."""
    sums: A
    """[S] float64: sums over BRANCHES neighbours, level after level, each level padded to BRANCHES; the last number is the total."""
    levels: A
    """[L + 1] int64, on the CPU: the first index of each level in `sums`, and the length of `sums`."""
    largest: A
    """[1] float32: the largest priority so far; new transitions get it."""


class Place(NamedTuple, Generic[A]):
    """The filled part of the ring."""

    actors: int
    """Actors of all environments: rows of one step."""
    rows: int
    """Rows in use when the ring is full: a multiple of `actors`."""
    steps: A
    """[] int64: steps of all environments so far; step s is in rows (s * actors) % rows and the following."""
    following: A
    """[rows / actors] int32: the step that follows step s of the same source is in rows following[s % length] * actors and the next ones;
    -1 if it is not there. [0] with one source whose rollouts follow each other: it is the next step then."""
    newest: A
    """[sources] int64: the newest step of each source, -1 without one; [0] as above."""


class Transitions(NamedTuple, Generic[A]):
    """A batch, [B, ...]."""

    obs: A
    action: A
    reward: A
    """[B]: sum of up to n discounted rewards."""
    discount: A
    """[B]: discount of the value of `next_obs`: gamma^h after h rewards, 0 if the episode terminated."""
    next_obs: A
    weight: A
    """[B]: weight in the loss; the largest of a batch is 1."""
    row: A
    """[B] int64."""


class Operations(Protocol):
    """The operations on one ring; kernels compute them on a CPU, torch on other devices, with the same results."""

    def store(self, trajectory: Trajectory, group: GroupTrajectory) -> None:
        """Write the rollout, which `Place.steps` already includes; new transitions get the largest priority."""

    def draw(self, seed: int, number: torch.Tensor, beta: torch.Tensor, n_step: int, gamma: float) -> Transitions[torch.Tensor]:
        """Return batch `number` ([] int64) of the random stream `seed`, drawn with replacement.

        Uniformly without priorities. With priorities (Schaul et al. 2016, section 3.3 and algorithm 1), B equal shares of their total give
        one row each, and weights are (N P)^-beta (`beta` [] float64) divided by the largest of the batch.
        """

    def gather(self, row: torch.Tensor, n_step: int, gamma: float) -> Transitions[torch.Tensor]:
        """Return the transitions of up to n steps that begin in rows [B], with weights 1.

        They end with the episode and at the newest step; the discount counts the rewards that were summed (Sutton & Barto 2018, eq. 7.1).
        """

    def find(self, mass: torch.Tensor) -> torch.Tensor:
        """Return the rows, [B] int64, whose interval of the cumulative priorities contains `mass` [B] float64."""

    def set_priorities(self, row: torch.Tensor, error: torch.Tensor, alpha: float, eps: float) -> None:
        """Set the priorities of rows [B] to (|error| + eps)^alpha and update their sums."""


def make_tree(rows: int, device: torch.device) -> Tree[torch.Tensor]:
    """Return the tree of `rows` rows without transitions."""
    begins, nodes, padded = [0], -(-rows // BRANCHES), -(-rows // BRANCHES) * BRANCHES
    while nodes > 1:
        begins.append(begins[-1] + -(-nodes // BRANCHES) * BRANCHES)
        nodes = -(-nodes // BRANCHES)
    begins.append(begins[-1] + 1)
    sums = torch.zeros(begins[-1], dtype=torch.float64, device=device)
    return Tree(torch.zeros(padded, device=device), sums, torch.tensor(begins), torch.ones(1, device=device))
