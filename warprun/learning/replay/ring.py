"""What replay memory consists of: transitions in a ring, their priorities in a tree of sums, and a batch of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

GOES_ON, TERMINATED, TRUNCATED = 0, 1, 2
"""What Ring.ends holds."""
BRANCHES = 16
"""Children of a node of the tree of sums: as many float32 as a cache line has."""


class Ring(NamedTuple):
    """The transitions; R rows, F features, C components."""

    obs: torch.Tensor
    """[R, F] float32."""
    next_obs: torch.Tensor
    """[R, F] float32: where the episode ended, its final observation (any other where it terminated)."""
    action: torch.Tensor
    """[R, C] float32 or int32."""
    reward: torch.Tensor
    """[R] float32."""
    ends: torch.Tensor
    """[R] uint8."""


class Tree(NamedTuple):
    """Priorities and their sums, by which to find a row from a share of the total."""

    priority: torch.Tensor
    """[R, padded to BRANCHES] float32: (|TD error| + eps)^alpha, 0 where there is no transition; [0] if all rows are alike."""
    sums: torch.Tensor
    """[S] float64: the sums of BRANCHES neighbours, level after level, each padded to BRANCHES; the last one is the total."""
    levels: torch.Tensor
    """[L + 1] int64, on the CPU: where the levels begin in `sums`, and its length."""
    largest: torch.Tensor
    """[1] float32: the largest priority so far, which new transitions get."""


class Place(NamedTuple):
    """Where the ring stands."""

    actors: int
    """Actors of all environments: rows of a step."""
    rows: int
    """Rows in use once the ring is full: a multiple of `actors`."""
    newest: Any
    """First row of the newest step; an int on CPU, else a tensor []."""
    size: Any
    """Rows that hold a transition, likewise."""


class Transitions(NamedTuple):
    """A batch, [B, ...]."""

    obs: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    """[B]: the sum of up to n discounted rewards."""
    discount: torch.Tensor
    """[B]: of the value of `next_obs`: gamma^h after h rewards, 0 where the episode terminated."""
    next_obs: torch.Tensor
    weight: torch.Tensor
    """[B]: of the loss; largest 1."""
    row: torch.Tensor
    """[B] int64."""


def make_tree(rows: int, device: torch.device) -> Tree:
    """Return the tree of `rows` rows without a transition."""
    begins, nodes, padded = [0], -(-rows // BRANCHES), -(-rows // BRANCHES) * BRANCHES
    while nodes > 1:
        begins.append(begins[-1] + -(-nodes // BRANCHES) * BRANCHES)
        nodes = -(-nodes // BRANCHES)
    begins.append(begins[-1] + 1)
    sums = torch.zeros(begins[-1], dtype=torch.float64, device=device)
    return Tree(torch.zeros(padded, device=device), sums, torch.tensor(begins), torch.ones(1, device=device))
