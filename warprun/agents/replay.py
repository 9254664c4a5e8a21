"""Experience replay on the device: a ring of the last transitions, in one array for each part, drawn alike or by priority.

Rows of the ring follow the steps of all actors: row = step * actors + actor, so the next step of the same actor is `actors` rows on. An
n-step return is therefore summed up when it is drawn: nothing has to wait to be stored, and n can change.

The operations are Numba's on CPU (`replay_cpu`) and torch's elsewhere (`replay_torch`); both give the same numbers.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch

from warprun.agents import replay_cpu, replay_torch
from warprun.agents.config import ReplayConfig
from warprun.engine.trajectory import GroupTrajectory, Trajectory
from warprun.environment import Box, Group
from warprun.errors import UserError

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
    newest: int
    """First row of the newest step."""
    size: int
    """Rows that hold a transition."""


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


class Replay:
    """The last transitions of one group."""

    def __init__(
        self, config: ReplayConfig, group: Group, device: torch.device, *, batch_size: int, n_step: int, gamma: float, seed: int
    ) -> None:
        self.config = config
        self.n_step = n_step
        self.gamma = gamma
        self.seed = seed
        self.batch_size = batch_size
        self.steps = 0
        """Steps of all environments so far."""
        self.actors = 0
        """Of all environments; known with the first of them."""
        self.operations: ModuleType = replay_cpu if device.type == "cpu" else replay_torch
        rows, features, components = config.capacity, group.observation.size, group.action.components
        kind = torch.float32 if isinstance(group.action, Box) else torch.int32
        self.ring = Ring(
            obs=torch.zeros(rows, features, device=device),
            next_obs=torch.zeros(rows, features, device=device),
            action=torch.zeros(rows, components, dtype=kind, device=device),
            reward=torch.zeros(rows, device=device),
            ends=torch.zeros(rows, dtype=torch.uint8, device=device),
        )
        self.tree = make_tree(rows if config.prioritized else 0, device)

    @property
    def place(self) -> Place:
        steps = self.config.capacity // self.actors
        newest = (self.steps - 1) % steps
        return Place(self.actors, steps * self.actors, newest * self.actors, min(self.steps, steps) * self.actors)

    def store(self, trajectory: Trajectory, group: GroupTrajectory) -> None:
        """Take in a rollout, without the last steps where the ring is full of later ones."""
        horizon, n_envs, actors = group.reward.shape
        self.actors = n_envs * actors
        if self.actors > self.config.capacity:
            raise UserError(
                f"agent.replay.capacity={self.config.capacity}: a single step of all environments has {self.actors} transitions"
            )
        for t in range(horizon):
            self.steps += 1
            self.operations.store(self.ring, self.tree, self.place, trajectory, group, t)

    def draw(self, number: int, beta: float) -> Transitions:
        """Return a batch drawn with replacement, the `number`-th; `beta` is the exponent of the weights."""
        place = self.place
        if self.config.prioritized:
            row, weight = self.operations.draw_by_priority(self.tree, place, self.batch_size, self.seed, number, beta)
        else:
            row, weight = self.operations.draw_alike(place, self.batch_size, self.seed, number, self.ring.reward.device)
        obs, action, reward, discount, next_obs = self.operations.gather(self.ring, place, row, self.n_step, self.gamma)
        return Transitions(obs, action, reward, discount, next_obs, weight, row)

    def judge(self, row: torch.Tensor, error: torch.Tensor) -> None:
        """Give the transitions in `row` [B] priorities by their temporal-difference errors [B]."""
        if self.config.prioritized:
            self.operations.set_priorities(self.tree, row, error, self.config.alpha, self.config.eps)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        found = dict(self.ring._asdict()) | {"counts": torch.tensor([self.steps, self.actors])}
        if self.config.prioritized:
            found |= {"priority": self.tree.priority, "sums": self.tree.sums, "largest": self.tree.largest}
        return found

    def load(self, counts: torch.Tensor) -> None:
        """Take over the counts of `tensors`; all else is copied in place."""
        self.steps, self.actors = (int(n) for n in counts)


def make_tree(rows: int, device: torch.device) -> Tree:
    """Return the tree of `rows` rows without a transition."""
    begins, nodes, padded = [0], -(-rows // BRANCHES), -(-rows // BRANCHES) * BRANCHES
    while nodes > 1:
        begins.append(begins[-1] + -(-nodes // BRANCHES) * BRANCHES)
        nodes = -(-nodes // BRANCHES)
    begins.append(begins[-1] + 1)
    sums = torch.zeros(begins[-1], dtype=torch.float64, device=device)
    return Tree(torch.zeros(padded, device=device), sums, torch.tensor(begins), torch.ones(1, device=device))
