"""Experience replay on the device: a ring of the last transitions, in one array for each part, drawn alike or by priority.

Rows of the ring follow the steps of all actors: row = step * actors + actor, so the next step of the same actor is `actors` rows on. An
n-step return is therefore summed up when it is drawn: nothing has to wait to be stored, and n can change.

The operations are Numba's on CPU (`replay_cpu`) and torch's elsewhere (`replay_torch`); both give the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch

from warprun.environment import Box, Group
from warprun.errors import UserError
from warprun.learning.host_number import HostNumber
from warprun.learning.replay.cpu_operations import CpuOperations
from warprun.learning.replay.ring import Place, Ring, Transitions, make_tree
from warprun.learning.replay.torch_operations import TorchOperations
from warprun.learning.settings import ReplayConfig
from warprun.simulation.trajectory import GroupTrajectory, Trajectory


class Replay:
    """The last transitions of one group."""

    def __init__(
        self, config: ReplayConfig, group: Group, device: torch.device, *, batch_size: int, n_step: int, gamma: float, seed: int
    ) -> None:
        self.config = config
        self.n_step = n_step
        self.gamma = gamma
        self.seed = seed
        self.steps = 0
        """Steps of all environments so far."""
        self.actors = 0
        """Of all environments; known with the first of them."""
        self._first, self._newest, self._size = (HostNumber(0, device) for _ in range(3))
        """Of the last rollout: the first rows of its first and of its last step; and rows with a transition."""
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
        operations = CpuOperations if device.type == "cpu" else TorchOperations
        self.operations: CpuOperations | TorchOperations = operations(self.ring, self.tree, batch_size)

    @property
    def size(self) -> int:
        """Transitions that are kept now."""
        return min(self.steps * self.actors, self._rows) if self.steps else 0

    @property
    def place(self) -> Place:
        """Where the ring stands; there is a step in it."""
        return Place(self.actors, self._rows, self._newest.value, self._size.value)

    def advance(self, group: GroupTrajectory) -> None:
        """Count the steps of a rollout that `store` is to take in: what the host does of it."""
        horizon, n_envs, actors = group.reward.shape
        self.actors = n_envs * actors
        if self.actors > self.config.capacity:
            raise UserError(
                f"agent.replay.capacity={self.config.capacity}: a single step of all environments has {self.actors} transitions"
            )
        self._first.set(self.steps * self.actors % self._rows)
        self.steps += horizon
        self._find_place()

    def _find_place(self) -> None:
        written = self.steps * self.actors
        self._newest.set((written - self.actors) % self._rows)
        self._size.set(min(written, self._rows))

    @property
    def _rows(self) -> int:
        """Rows in use once the ring is full."""
        return self.config.capacity // self.actors * self.actors

    def store(self, trajectory: Trajectory, group: GroupTrajectory) -> None:
        """Take in a rollout after `advance`, without the last steps where the ring is full of later ones."""
        rows = self._rows
        for t in range(trajectory.horizon):
            newest = (self._first.value + t * self.actors) % rows
            self.operations.store(Place(self.actors, rows, newest, self._size.value), trajectory, group, t)

    def draw(self, number: Any, beta: Any) -> Transitions:
        """Return a batch drawn with replacement, the `number`-th, until the next one; `beta` is the exponent of the weights.

        Both are as `HostNumber` has them.
        """
        return self.operations.draw(self.place, self.seed, number, beta, self.n_step, self.gamma)

    def judge(self, row: torch.Tensor, error: torch.Tensor) -> None:
        """Give the transitions in `row` [B] priorities by their temporal-difference errors [B]."""
        if self.config.prioritized:
            self.operations.set_priorities(row, error, self.config.alpha, self.config.eps)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        found = dict(self.ring._asdict()) | {"counts": torch.tensor([self.steps, self.actors])}
        if self.config.prioritized:
            found |= {"priority": self.tree.priority, "sums": self.tree.sums, "largest": self.tree.largest}
        return found

    def load(self, counts: torch.Tensor) -> None:
        """Take over the counts of `tensors`; all else is copied in place."""
        self.steps, self.actors = (int(n) for n in counts)
        if self.steps:
            self._find_place()
