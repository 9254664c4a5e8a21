"""Experience replay on the device: a ring of the last transitions, one array for each of their fields, drawn uniformly or by priority.

Rows of the ring are in the order of the steps of all actors: row = step * actors + actor, so the next step of the same actor is `actors`
rows further. If rollouts of several simulators take turns, a table says where the next step is. n-step returns are summed when a batch is
drawn, so a transition can be stored immediately, and n can change.
"""

from __future__ import annotations

import torch

from warprun.errors import UserError
from warprun.learning.device_scalar import DeviceScalar
from warprun.learning.off_policy_settings import ReplayConfig
from warprun.learning.replay.cpu_operations import CpuOperations
from warprun.learning.replay.ring import Operations, Place, Ring, Transitions, make_tree
from warprun.learning.replay.torch_operations import TorchOperations
from warprun.simulation.trajectory import GroupTrajectory, Trajectory
from warprun.spec import Box, GroupSpec


class Replay:
    """The last transitions of one group."""

    def __init__(
        self,
        config: ReplayConfig,
        group: GroupSpec,
        device: torch.device,
        *,
        n_envs: int,
        batch_size: int,
        n_step: int,
        gamma: float,
        seed: int,
        sources: int | None = None,
    ) -> None:
        """`sources`: simulators whose rollouts take turns, see `Context`."""
        self.config = config
        self.batch_size = batch_size
        self.n_step = n_step
        self.gamma = gamma
        self.seed = seed
        self.actors = n_envs * group.size
        """Actors of all environments."""
        if self.actors > config.capacity:
            raise UserError(f"agent.replay.capacity={config.capacity}: a single step of all environments has {self.actors} transitions")
        self._counts = torch.tensor([0, self.actors])
        """[2] int64 on the CPU: steps of all environments so far, and actors."""
        self._host_counts = self._counts.numpy()
        self._steps = DeviceScalar(0, device)
        self.beta = DeviceScalar(float(config.beta), device)
        """Current exponent of the importance-sampling weights."""
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
        steps = rows // self.actors
        following = torch.full((0 if sources is None else steps,), -1, dtype=torch.int32, device=device)
        newest = torch.full((sources or 0,), -1, dtype=torch.int64, device=device)
        self.place = Place(self.actors, steps * self.actors, self._steps.tensor, following, newest)
        operations = CpuOperations if device.type == "cpu" else TorchOperations
        self.operations: Operations = operations(self.ring, self.tree, self.place, batch_size)

    @property
    def steps(self) -> int:
        """Steps of all environments so far."""
        return int(self._host_counts[0])

    @property
    def size(self) -> int:
        """Transitions in the ring."""
        return min(self.steps * self.actors, self.place.rows)

    def advance(self, horizon: int) -> None:
        """Count the `horizon` steps that `store` writes next. This is the host's part of storing a rollout."""
        self._host_counts[0] += horizon
        self._steps.set(self.steps)

    def store(self, trajectory: Trajectory, group: GroupTrajectory) -> None:
        """Write a rollout; call `advance` first. This is the device's part of storing a rollout."""
        self.operations.store(trajectory, group)

    def schedule(self, progress: float) -> None:
        """Set `beta` for `progress`, 0 to 1, of the run."""
        self.beta.set(self.config.beta + (self.config.beta_end - self.config.beta) * progress)

    def draw(self, number: torch.Tensor) -> Transitions[torch.Tensor]:
        """Return batch `number` ([] int64), drawn with replacement; the next draw may overwrite it."""
        return self.operations.draw(self.seed, number, self.beta.tensor, self.n_step, self.gamma)

    def update_priorities(self, row: torch.Tensor, error: torch.Tensor) -> None:
        """Set the priorities of the transitions in `row` [B] by their temporal-difference errors [B]; no effect on uniform replay."""
        if self.config.prioritized:
            self.operations.set_priorities(row, error, self.config.alpha, self.config.eps)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        found = self.ring._asdict() | {"counts": self._counts}
        if len(self.place.newest):
            found |= {"following": self.place.following, "newest": self.place.newest}
        if self.config.prioritized:
            found |= {"priority": self.tree.priority, "sums": self.tree.sums, "largest": self.tree.largest}
        return found
