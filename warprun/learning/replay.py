"""Experience replay: a ring of the last transitions, an array for each of their fields, drawn uniformly or by priority.

Rows of the ring are in the order of the steps of all actors: row = step * actors + actor, so the next step of the same
actor is `actors` rows further. If rollouts of several simulators take turns, a table says where the next step is.
n-step returns are summed when a batch is drawn, so a transition can be stored immediately, and n can change.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

from warprun.errors import UserError
from warprun.learning.descent import DeviceScalar
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.simulation.trajectory import GroupTrajectory, Trajectory
from warprun.spec import BYTE, GroupSpec

GOES_ON, TERMINATED, TRUNCATED = 0, 1, 2
"""Values of Ring.ends."""
BRANCHES = 16
"""Children of a node of the sum tree: the float32 numbers in a cache line."""

A = TypeVar("A")
"""torch.Tensor, or numpy.ndarray on the same memory for kernels."""


class Ring(NamedTuple, Generic[A]):
    """The transitions; R rows, F features, C components."""

    obs: A
    """[R, F] float32, or uint8 if bytes hold what is observed (`spec.Box.bytes`): x as 255 x."""
    next_obs: A
    """[R, F], as `obs`: the final observation if the episode was truncated; not defined if it terminated."""
    action: A
    """[R, C] float32 or int32."""
    reward: A
    """[R] float32."""
    ends: A
    """[R] uint8."""


class Tree(NamedTuple, Generic[A]):
    """Priorities and their sums over subtrees; sampling by priority descends from the total to a row."""

    prioritized: bool
    """Whether there are any."""
    priority: A
    """[R, padded to BRANCHES] float32: (|TD error| + eps)^alpha, 0 for a row without a transition; [0] for uniform sampling."""
    sums: A
    """[S] float64: sums over BRANCHES neighbours, level after level, each level padded to BRANCHES; the last number is the total."""
    levels: A
    """[L + 1] int64, on the CPU: the first index of each level in `sums`, and the length of `sums`."""
    largest: A
    """[1] float32: the largest priority so far; new transitions get it."""


class RingPosition(NamedTuple, Generic[A]):
    """The filled part of the ring."""

    actors: int
    """Actors of all environments: rows of one step."""
    rows: int
    """Rows in use when the ring is full: a multiple of `actors`."""
    linked: bool
    """Whether `following` says where the next step is; else rollouts of one source follow each other, and it is the next one."""
    steps: A
    """[] int64: steps of all environments so far; step s is in rows (s * actors) % rows and the following."""
    following: A
    """[rows / actors] int32: the step that follows step s of the same source is in rows following[s % length] * actors and the next ones;
    -1 if it is not there. [0] unless `linked`."""
    newest: A
    """[sources] int64: the newest step of each source, -1 without one; [0] unless `linked`."""


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


TransitionBatch = Transitions[torch.Tensor]


def make_tree(rows: int, device: torch.device) -> Tree[torch.Tensor]:
    """Return the tree of `rows` rows without transitions."""
    begins, nodes, padded = [0], -(-rows // BRANCHES), -(-rows // BRANCHES) * BRANCHES
    while nodes > 1:
        begins.append(begins[-1] + -(-nodes // BRANCHES) * BRANCHES)
        nodes = -(-nodes // BRANCHES)
    begins.append(begins[-1] + 1)
    sums = torch.zeros(begins[-1], dtype=torch.float64, device=device)
    return Tree(rows > 0, torch.zeros(padded, device=device), sums, torch.tensor(begins), torch.ones(1, device=device))


class ReplayOperations(Protocol):
    """The operations on replay memory, by kernels (`CpuReplay`, `CudaReplay`); none waits for the device."""

    def store(self, trajectory: Trajectory, group: GroupTrajectory) -> None:
        """See `Replay.store`."""

    def draw(self, number: torch.Tensor) -> TransitionBatch:
        """Draw with replacement, uniformly or by priority (Schaul et al. 2016, section 3.3 and algorithm 1).

        By priority, B equal shares of their total give one row each, and weights are (N P)^-beta divided by the largest of the batch.
        """

    def update_priorities(self, row: torch.Tensor, error: torch.Tensor) -> None:
        """Set priorities to (|error| + eps)^alpha, the largest of a row's errors."""


class Replay:
    """The last transitions of one group."""

    def __init__(
        self,
        config: OffPolicyConfig,
        group: GroupSpec,
        device: torch.device,
        n_envs: int,
        seed: int,
        sources: int | None,
        operations: Callable[[Replay], ReplayOperations],
    ) -> None:
        """`sources`: simulators whose rollouts take turns, see `Context`. `operations` makes those on this memory."""
        self.batch_size, self.n_step, self.gamma, self.seed = config.batch_size, config.n_step, config.gamma, seed
        self.config = own = config.replay
        self.actors = n_envs * group.size
        """Actors of all environments."""
        if self.actors > own.capacity:
            too_small = f"agent.replay.capacity={own.capacity}"
            raise UserError(f"{too_small}: a single step of all environments has {self.actors} transitions")
        self._counts = torch.tensor([0, self.actors])
        """[2] int64 on the CPU: steps of all environments so far, and actors."""
        self._host_counts = self._counts.numpy()
        self._steps = DeviceScalar(0, device)
        self.beta = DeviceScalar(float(own.beta), device)
        """Current exponent of the importance-sampling weights."""
        rows, features, components = own.capacity, group.observation.size, group.action.components
        seen = torch.uint8 if group.observation.bytes else torch.float32
        self._byte = torch.tensor(BYTE, device=device)  # a GPU would multiply by the inverse of a number, which is not exact
        self.ring = Ring(
            obs=torch.zeros(rows, features, dtype=seen, device=device),
            next_obs=torch.zeros(rows, features, dtype=seen, device=device),
            action=torch.zeros(rows, components, dtype=getattr(torch, group.action.dtype), device=device),
            reward=torch.zeros(rows, device=device),
            ends=torch.zeros(rows, dtype=torch.uint8, device=device),
        )
        self.tree = make_tree(rows if own.prioritized else 0, device)
        self._levels = list(pairwise(self.tree.levels.tolist()))
        """Begin and end of each level in the sums."""
        steps = rows // self.actors
        following = torch.full((0 if sources is None else steps,), -1, dtype=torch.int32, device=device)
        newest = torch.full((sources or 0,), -1, dtype=torch.int64, device=device)
        self.place = RingPosition(self.actors, steps * self.actors, sources is not None, self._steps.tensor, following, newest)
        self.operations = operations(self)

    def batch_memory(self) -> TransitionBatch:
        """Return memory for a batch, with weights 1."""
        count, like = self.batch_size, self.ring.reward
        obs, next_obs = (like.new_empty(count, part.shape[1]) for part in self.ring[:2])
        action = self.ring.action.new_empty(count, self.ring.action.shape[1])
        row = torch.zeros(count, dtype=torch.int64, device=like.device)
        return Transitions(obs, action, like.new_empty(count), like.new_empty(count), next_obs, like.new_ones(count), row)

    @property
    def steps(self) -> int:
        """Steps of all environments so far."""
        return int(self._host_counts[0])

    @property
    def size(self) -> int:
        """Transitions in the ring."""
        return min(self.steps * self.actors, self.place.rows)

    def schedule(self, progress: float) -> None:
        """Set `beta` for `progress`, 0 to 1, of the run."""
        self.beta.set(self.config.beta + (self.config.beta_end - self.config.beta) * progress)

    def advance(self, horizon: int) -> None:
        """Count the `horizon` steps that `store` writes next. This is the host's part of storing a rollout."""
        steps = self.steps + horizon
        self._host_counts[0] = steps
        self._steps.set(steps)

    def store(self, trajectory: Trajectory, group: GroupTrajectory) -> None:
        """Write a rollout that `advance` has counted; new transitions get the largest priority."""
        self.operations.store(trajectory, group)

    def draw(self, number: torch.Tensor) -> TransitionBatch:
        """Return batch `number` ([] int64), which the next draw overwrites."""
        return self.operations.draw(number)

    def update_priorities(self, row: torch.Tensor, error: torch.Tensor) -> None:
        """Set the priorities of rows [B] of a draw by the largest of their temporal-difference errors [B]; only if `prioritized`."""
        self.operations.update_priorities(row, error)

    def observed(self, held: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """Return the observations [..., F] float32 in `held`, an array of the ring, of rows [...]."""
        return held[row].float() / self._byte if held.dtype == torch.uint8 else held[row]

    def returns(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sums of up to n rewards from rows [B] on, discounts after them and rows of the last steps, [B] each.

        They end with the episode and at the newest step; the discount counts the rewards that were summed (Sutton &
        Barto 2018, eq. 7.1).
        """
        ring, place, at, last, goes_on = self.ring, self.place, row, row, torch.ones_like(row, dtype=torch.bool)
        first_of_newest = (place.steps - 1) * place.actors % place.rows
        total, discount = torch.zeros(row.shape, device=row.device), torch.ones(row.shape, device=row.device)
        for _ in range(self.n_step):
            total = torch.where(goes_on, total + discount * ring.reward[at], total)
            discount = torch.where(goes_on, discount * self.gamma, discount)
            last = torch.where(goes_on, at, last)
            if place.linked:
                step = place.following[at // place.actors].long()
                newest, after = step < 0, step * place.actors + at % place.actors
            else:
                newest = (at >= first_of_newest) & (at < first_of_newest + place.actors)
                after = (at + place.actors) % place.rows
            goes_on = goes_on & (ring.ends[at] == GOES_ON) & ~newest
            at = torch.where(goes_on, after, at)
        return total, torch.where(ring.ends[last] == TERMINATED, 0.0, discount), last

    def sum_up(self, row: torch.Tensor) -> None:
        """Compute the sums above rows again from all their summands: differences would accumulate rounding errors."""
        below, node = self.tree.priority, row
        for begin, end in self._levels:
            node = node // BRANCHES
            own = self.tree.sums[begin:end]
            own[node] = below.view(-1, BRANCHES)[node].double().sum(1)
            below = own

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        found = self.ring._asdict() | {"counts": self._counts}
        if self.place.linked:
            found |= {"following": self.place.following, "newest": self.place.newest}
        if self.config.prioritized:
            found |= {"priority": self.tree.priority, "sums": self.tree.sums, "largest": self.tree.largest}
        return found
