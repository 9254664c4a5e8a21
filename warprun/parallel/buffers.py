"""What travels between ranks, each in one flat buffer of a fixed layout: rollouts and weights. Nothing is pickled or copied twice."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch

from warprun.simulation.arrays import Layout, rollout_arrays
from warprun.simulation.simulator import Episodes
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
COUNTS = ("actor", "sequence", "version", "episodes", "replaced")
"""Whole numbers of a rollout: the actor, the number of its rollout, the version of the weights that acted, ended episodes, replacements."""
MEASURES = ("episode_steps", "waited_s", "acted_s")
"""Real numbers of a rollout: steps of the ended episodes, and seconds that the actor waited and acted since its rollout before."""


class Origin(NamedTuple):
    """Where a rollout comes from."""

    actor: int
    sequence: int
    """Number of the rollout among those of the actor."""
    version: int
    """Version of the weights that acted."""
    waited_s: float
    """Seconds that the actor has waited for others since its rollout before."""
    acted_s: float
    """Seconds that it has spent otherwise."""


class Part(NamedTuple):
    """A part of a buffer."""

    begin: int
    size: int
    """Bytes."""


class RolloutBuffer:
    """A rollout of `n_envs` environments in one buffer: a header, and a trajectory whose tensors are views of the buffer."""

    def __init__(self, spec: Spec, horizon: int, n_envs: int, memory: np.ndarray[Any, Any] | None = None) -> None:
        """`memory`: `rollout_bytes` bytes to take, uint8; None: new ones."""
        places, size = _places(spec, horizon, n_envs)
        self.memory = np.zeros(size, np.uint8) if memory is None else memory
        """[bytes] uint8, what MPI sends."""
        whole = torch.from_numpy(self.memory)
        views = {name: _view(whole, begin, layout.shape, layout.dtype) for name, (begin, layout) in places.items()}
        sizes = [n_envs * group.size * group.action.outputs for group in spec.groups]
        self.outputs = np.zeros(sum(sizes), np.float32)
        """What the policy gives for one step, of all groups: their `policy_output`, flat."""
        groups = {}
        for group, outputs in zip(spec.groups, torch.from_numpy(self.outputs).split(sizes), strict=True):
            own = {field.name: views.get(f"{group.name}.{field.name}") for field in fields(GroupTrajectory)}
            own["policy_output"] = outputs.view(n_envs, group.size, group.action.outputs)
            groups[group.name] = GroupTrajectory(**own)  # type: ignore[arg-type]
        self.trajectory = Trajectory(views["terminated"], views["truncated"], groups)
        self.spec = spec
        self.names = tuple(group.name for group in spec.groups)
        self._places = places
        self._counts = self.memory[: 8 * len(COUNTS)].view(np.int64)
        self._measures = self.memory[8 * len(COUNTS) :][: 8 * (len(MEASURES) + len(self.names))].view(np.float64)

    def fill(self, trajectory: Trajectory, ended: Episodes, origin: Origin) -> None:
        """Copy a trajectory of this size into the buffer, with its header."""
        copy(trajectory, self.trajectory)
        self._counts[:] = (origin.actor, origin.sequence, origin.version, ended.count, ended.replaced)
        steps = ended.mean_length * ended.count if ended.count else 0.0
        returns = [ended.mean_return[name] * ended.count if ended.count else 0.0 for name in self.names]
        self._measures[:] = (steps, origin.waited_s, origin.acted_s, *returns)

    def fill_row(self, trajectory: Trajectory, row: int) -> None:
        """Copy what the policy sees at row `row` of a trajectory of this size."""
        for name, group in trajectory.groups.items():
            own = self.trajectory.groups[name]
            own.obs[row].copy_(group.obs[row])
            if own.mask is not None and group.mask is not None:
                own.mask[row].copy_(group.mask[row])

    def seen(self, row: int) -> list[Part]:
        """Return where the buffer has what the policy sees at row `row`."""
        found = []
        for name, (begin, layout) in self._places.items():
            if name.endswith(SEEN):
                size = layout.bytes // layout.shape[0]
                found.append(Part(begin + row * size, size))
        return found

    def results(self) -> list[Part]:
        """Return where it has all that the policy neither sees at the rows before the last one nor gives."""
        found = [Part(0, self._counts.nbytes + self._measures.nbytes), *self.seen(self.trajectory.horizon)]
        return found + [Part(begin, layout.bytes) for name, (begin, layout) in self._places.items() if not name.endswith((*SEEN, ".value"))]

    def count(self, name: str) -> int:
        """Return one of COUNTS."""
        return int(self._counts[COUNTS.index(name)])

    def measure(self, name: str) -> float:
        """Return one of MEASURES."""
        return float(self._measures[MEASURES.index(name)])

    def returns(self) -> np.ndarray[Any, Any]:
        """Return, per group, the sum over ended episodes of the mean return of its actors, [G]."""
        return self._measures[len(MEASURES) :]


def rollout_bytes(spec: Spec, horizon: int, n_envs: int) -> int:
    """Return the bytes of a `RolloutBuffer`."""
    return _places(spec, horizon, n_envs)[1]


def fingerprint(spec: Spec, horizon: int, n_envs: int) -> bytes:
    """Return 32 bytes that differ if the layouts of two ranks differ."""
    return hashlib.sha256(repr((repr(spec), _places(spec, horizon, n_envs))).encode()).digest()


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
        self.memory = np.zeros(begin, np.uint8)
        """[bytes] uint8, what MPI sends."""
        whole = torch.from_numpy(self.memory)
        names = (str(tensor.dtype).removeprefix("torch.") for tensor in state.values())
        self._views = [_view(whole, *place) for place in zip(places, (t.shape for t in state.values()), names, strict=True)]
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
    for group, layouts in groups.items():
        named |= {f"{group}.{f.name}": layouts[f.name] for f in fields(GroupTrajectory) if f.name in layouts and f.name not in LOCAL}
    begin, places = _aligned(8 * (len(COUNTS) + len(MEASURES) + len(spec.groups))), {}
    for name, layout in named.items():
        places[name] = (begin, layout)
        begin = _aligned(begin + layout.bytes)
    return places, begin


def _view(whole: torch.Tensor, begin: int, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    kind = getattr(torch, dtype)
    size = int(np.prod(shape)) * kind.itemsize
    return whole[begin : begin + size].view(kind).view(shape)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
