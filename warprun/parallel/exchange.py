"""The interface of protocols, by which rollouts get from actors to learners and weights back, and their buffers.

Rollouts and weights are each one flat buffer of a fixed layout. Nothing is pickled or copied twice.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Protocol

import numpy as np
import torch

from warprun.simulation.arrays import Layout, rollout_arrays
from warprun.simulation.simulator import Act, Episodes
from warprun.simulation.trajectory import GroupTrajectory, Trajectory
from warprun.spec import Spec
from warprun.state import State

ALIGNED = 64
"""Bytes that tensors within a buffer are aligned to."""
LOCAL = ("policy_output",)
"""Arrays of a trajectory that do not travel: what the policy computes for one step."""
SEEN = (".obs", ".mask")
"""Ends of the names of arrays that the policy sees."""
OVER = -1
"""Version of weights that says: the run is over."""
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
Part = tuple[int, int]
"""First byte and size of a part of a buffer."""


def header_type(groups: int) -> np.dtype[np.void]:
    """Return the type of the header of a rollout."""
    return np.dtype(
        [
            ("actor", "i8"),
            ("sequence", "i8"),  # number of the rollout among those of the actor
            ("version", "i8"),  # version of the weights that acted
            ("episodes", "i8"),  # that ended
            ("replaced", "i8"),  # environments
            ("episode_steps", "f8"),  # steps of the ended episodes
            ("waited_s", "f8"),  # seconds that the actor waited for others since its rollout before
            ("acted_s", "f8"),  # seconds that it spent otherwise
            ("returns", "f8", (groups,)),  # sum over ended episodes of the mean return of the actors of a group
        ]
    )


class RolloutBuffer:
    """A rollout of `n_envs` environments in one buffer: a header, and a trajectory whose tensors are views of it."""

    def __init__(self, spec: Spec, horizon: int, n_envs: int) -> None:
        self.spec, kind = spec, header_type(len(spec.groups))
        self._places, size = _places(spec, horizon, n_envs)
        self.memory: Bytes = np.zeros(size, np.uint8)
        """[bytes], what MPI sends."""
        self._headers = self.memory[: kind.itemsize].view(kind)
        self.header = self._headers[0]
        """A view of the buffer, see `header_type`."""
        whole = torch.from_numpy(self.memory)
        views = {name: _view(whole, begin, kept.shape, kept.dtype) for name, (begin, kept) in self._places.items()}
        sizes = [n_envs * group.size * group.action.outputs for group in spec.groups]
        self.outputs = np.zeros(sum(sizes), np.float32)
        """What the policy gives for one step, of all groups: their `policy_output`, flat."""
        groups = {}
        for group, outputs in zip(spec.groups, torch.from_numpy(self.outputs).split(sizes), strict=True):
            own = {field.name: views.get(f"{group.name}.{field.name}") for field in fields(GroupTrajectory)}
            own["policy_output"] = outputs.view(n_envs, group.size, group.action.outputs)
            groups[group.name] = GroupTrajectory(**own)  # type: ignore[arg-type]
        self.trajectory = Trajectory(views["terminated"], views["truncated"], groups)

    def fill(
        self,
        trajectory: Trajectory,
        ended: Episodes,
        *,
        actor: int,
        sequence: int,
        version: int,
        waited_s: float = 0.0,
        acted_s: float = 0.0,
    ) -> None:
        """Copy a trajectory of this size into the buffer, with its header."""
        copy(trajectory, self.trajectory)
        steps = ended.mean_length * ended.count if ended.count else 0.0
        returns = [ended.mean_return[g.name] * ended.count if ended.count else 0.0 for g in self.spec.groups]
        self._headers[0] = (actor, sequence, version, ended.count, ended.replaced, steps, waited_s, acted_s, returns)

    def fill_row(self, trajectory: Trajectory, row: int) -> None:
        """Copy what the policy sees at row `row` of a trajectory of this size."""
        for name, group in trajectory.groups.items():
            own = self.trajectory.groups[name]
            own.obs[row].copy_(group.obs[row])
            if own.mask is not None and group.mask is not None:
                own.mask[row].copy_(group.mask[row])

    def seen(self, row: int) -> list[Part]:
        """Return where the buffer has what the policy sees at row `row`."""
        rows = ((begin, kept.bytes // kept.shape[0]) for name, (begin, kept) in self._places.items() if name.endswith(SEEN))
        return [(begin + row * size, size) for begin, size in rows]

    def results(self) -> list[Part]:
        """Return where it has everything but what the learner has already: observations and masks of rows 0 to T-1, and values."""
        rest = ((name, *place) for name, place in self._places.items() if not name.endswith((*SEEN, ".value")))
        header = [(0, self._headers.nbytes), *self.seen(self.trajectory.horizon)]
        return header + [(begin, kept.bytes) for _, begin, kept in rest]


def fingerprint(spec: Spec, horizon: int, n_envs: int) -> str:
    """Return a text that differs if the layouts of two ranks differ."""
    return hashlib.sha256(repr((repr(spec), _places(spec, horizon, n_envs))).encode()).hexdigest()


def copy(source: Trajectory, target: Trajectory, first_env: int = 0) -> None:
    """Copy what travels of a rollout into the environments `first_env` and following of `target`."""
    envs = slice(first_env, first_env + source.n_envs)
    target.terminated[:, envs].copy_(source.terminated)
    target.truncated[:, envs].copy_(source.truncated)
    for name, group in source.groups.items():
        for key, tensor in vars(group).items():
            if tensor is not None and key not in LOCAL:
                vars(target.groups[name])[key][:, envs].copy_(tensor)


class WeightsBuffer:
    """All that acting needs, in one buffer: the version, then the tensors of an agent's `policy_state`."""

    def __init__(self, state: State) -> None:
        self._state = state
        begin, places = ALIGNED, []
        for tensor in state.values():
            places.append(begin)
            begin = _aligned(begin + tensor.numel() * tensor.element_size())
        self.memory: Bytes = np.zeros(begin, np.uint8)
        """[bytes], what MPI sends."""
        whole = torch.from_numpy(self.memory)
        self._views = [
            _view(whole, place, tensor.shape, str(tensor.dtype).removeprefix("torch."))
            for place, tensor in zip(places, state.values(), strict=True)
        ]
        self._version = self.memory[:8].view(np.int64)

    @property
    def version(self) -> int:
        """Number of updates that made these weights; or OVER."""
        return int(self._version[0])

    def pack(self, version: int) -> None:
        """Copy the weights of the agent into the buffer."""
        self._version[0] = version
        for view, tensor in zip(self._views, self._state.values(), strict=True):
            view.copy_(tensor)

    def unpack(self) -> None:
        """Copy the weights in the buffer to the agent."""
        for view, tensor in zip(self._views, self._state.values(), strict=True):
            tensor.copy_(view)


def _places(spec: Spec, horizon: int, n_envs: int) -> tuple[dict[str, tuple[int, Layout]], int]:
    """Return array -> (first byte, layout) of a rollout, and its bytes."""
    common, groups = rollout_arrays(spec, n_envs, horizon)
    named = {name: common[name] for name in ("terminated", "truncated")}
    travel = [field.name for field in fields(GroupTrajectory) if field.name not in LOCAL]
    for group, layouts in groups.items():
        named |= {f"{group}.{name}": layouts[name] for name in travel if name in layouts}
    begin, places = _aligned(header_type(len(spec.groups)).itemsize), {}
    for name, layout in named.items():
        places[name] = (begin, layout)
        begin = _aligned(begin + layout.bytes)
    return places, begin


def _view(whole: torch.Tensor, begin: int, shape: Sequence[int], dtype: str) -> torch.Tensor:
    kind = getattr(torch, dtype)
    size = int(np.prod(shape)) * kind.itemsize
    return whole[begin : begin + size].view(kind).view(tuple(shape))


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


class ActorExchange(Protocol):
    """A protocol at an actor."""

    def act(self, trajectory: Trajectory, row: int) -> None:
        """Write what the policy gives for the observations of row `row`, see `simulator.Act`.

        The policy is the copy of this rank, or that of the learner.
        """

    def latest(self) -> bool:
        """Bring the newest weights into the buffer, waiting if the protocol does; return whether to make a rollout."""

    def send(self, rollout: RolloutBuffer) -> None:
        """Give a rollout to the learner; the buffer can be used again afterwards."""


class LearnerExchange(ABC):
    """A protocol at a learner."""

    def begin(self, rollouts: int) -> None:  # noqa: B027, most protocols need no count
        """Begin: all actors of the run make `rollouts` rollouts from now on, unless `close` is called before."""

    @abstractmethod
    def publish(self, weights: WeightsBuffer) -> None:
        """Make weights available to actors; the buffer can be used again afterwards."""

    @abstractmethod
    def receive(self, into: Sequence[RolloutBuffer], act: Act) -> int:
        """Bring the next rollout into each buffer; return how many came: fewer than asked for at the end of the run.

        `act` is the policy of this learner, for protocols in which the learner acts.
        """

    def made(self) -> int | None:
        """Return how many rollouts the actors have made since `begin`; None: as many as were received."""
        return None

    def metrics(self) -> Mapping[str, float]:
        """Return metrics that only this protocol has, since the last call."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """End the run for the actors of this learner."""
