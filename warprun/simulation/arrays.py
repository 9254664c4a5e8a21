"""The table of all arrays that kernels use: allocation, kernel arguments, views, the memory estimate and docs follow from it. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from warprun.environment import Environment, Group, Index, arguments
from warprun.simulation.codegen.targets import Target
from warprun.spec import GroupSpec, PolicyKind, Spec

NOT_BY_CALLER = frozenset(
    {"cuts", "ended", "ended_steps", "ended_return", "episode_return", "fault", "any_fault", "policy_output", "log_prob", "value"}
    | {"alive", "final_alive"}
)
"""Arrays that kernels for callers of their own (`ArrayPlan.by_caller`) do not use."""
ONLY_BY_CALLER = frozenset({"final_mask"})
"""Arrays that only those kernels use."""

SCRATCH = frozenset({"f_before", "i_before", "sum", "max", "place", "first", "actor", "copies"})
"""Arrays that kernels write in every step before they read them."""

Owner = Literal["kernels", "agent", "host"]

FAULT_NUMBERS = 4
"""Numbers that kernels record about a fault: code, step, place, value."""
REPLACED_NUMBERS = 2
"""Numbers per environment about replacements: how often it was replaced, and whether it was in this step."""


class Array(NamedTuple):
    """The description of an array, independent of the sizes of a run."""

    name: str
    axes: tuple[str, ...]
    """Symbols or numbers, see AXES. The array does not exist if an axis has size 0."""
    dtype: str
    content: str
    writer: Owner = "kernels"

    @property
    def tiled(self) -> bool:
        """Whether the first axis counts tiles of environments."""
        return self.axes[0] == "tiles"

    @property
    def rows(self) -> bool:
        """Whether each entry of the first axis is a row with all environments, which kernels take flat."""
        return self.axes[0] in ("T", "T+1", "K")


AXES = {
    "T": "steps of a rollout (`agent.horizon`)",
    "N": "environments",
    "A": "actors of the group",
    "A leaving": "A if the actors of the group can leave an episode (`Group.alive`), else 0",
    "F": "features of an observation",
    "C": "components of an action",
    "P": "policy outputs of an actor",
    "M": "mask entries of an actor; 0 without a mask",
    "K": "truncations that an environment can have in a rollout, at least 1",
    "tiles": "tiles: N / lanes, rounded up",
    "lanes": "environments of a tile: 64 or 16 on CPU; on CUDA 32, or 1 if a group has several actors",
    "f": "float32 slots of the state of an actor, at least 1",
    "i": "int32 slots of the state of an actor, at least 1",
    "f copies": "f if a phase reads its own group, of several actors or with array fields, else 0",
    "i copies": "i under the same condition",
    "sums": "fields that the group sums",
    "maxima": "fields whose maximum the group offers",
    "noise": "C if the agent explores with noise and the actions are real numbers, else 0",
    "varied": "randomized parameters",
    "indexed": "actors of all groups of an index",
    "cells + 2": "cells of an index, and two more entries",
    "copied": "fields that an index copies",
    "replaced": f"{REPLACED_NUMBERS} with `env.on_nan=reset`, else 0",
    "staggered": "1 with `agent.staggered`, else 0",
    "exploration": "3 if the agent explores, else 0",
}
"""Symbols in `Array.axes` -> what they count."""

COMMON = (
    Array("began", ("1",), "int64", "step at which the rollout began; kernels add it to the offset that they are launched with", "host"),
    Array("clock", ("tiles", "lanes"), "int32", "steps since the environment was reset"),
    Array("cuts", ("tiles", "lanes"), "int32", "truncations so far in this rollout"),
    Array("cut_at", ("tiles", "staggered", "lanes"), "int64", "step that cuts off an episode before its limit; -1: none", "host"),
    Array("ended", ("tiles", "lanes"), "int32", "episodes that ended since they were last counted"),
    Array("ended_steps", ("tiles", "lanes"), "int32", "steps of these episodes"),
    Array("fault", ("tiles", str(FAULT_NUMBERS), "lanes"), "int32", "first fault since the last reset: code, step, place, value"),
    Array("any_fault", ("1",), "int32", "1 if any environment has a fault"),
    Array(
        "replaced",
        ("tiles", "replaced", "lanes"),
        "int32",
        "[0]: how often the environment was reset because of a fault; [1]: 1 if in this step",
    ),
    Array("varied", ("tiles", "varied", "lanes"), "float32", "randomized parameters of this episode"),
    Array("vary_bounds", ("varied", "2"), "float32", "low and high of every randomized parameter", "host"),
    Array("terminated", ("T", "N"), "bool", "whether the episode ended in a terminal state at this step"),
    Array("truncated", ("T", "N"), "bool", "whether the episode was cut off, at its limit or staggered; never with `terminated`"),
)
"""Arrays that all groups share."""

PER_GROUP = (
    Array("f", ("tiles", "f", "A", "lanes"), "float32", "float32 fields of the state"),
    Array("i", ("tiles", "i", "A", "lanes"), "int32", "int32 fields of the state"),
    Array("f_before", ("tiles", "f copies", "A", "lanes"), "float32", "`f` before a phase that reads its own group"),
    Array("i_before", ("tiles", "i copies", "A", "lanes"), "int32", "`i` before a phase that reads its own group"),
    Array("episode_return", ("tiles", "2", "A", "lanes"), "float32", "sum of rewards of the episode so far, and its excess by rounding"),
    Array("ended_return", ("tiles", "2", "A", "lanes"), "float32", "sum of the returns of ended episodes, and its excess by rounding"),
    Array("sum", ("tiles", "sums", "lanes"), "float32", "sums over actors"),
    Array("max", ("tiles", "maxima", "lanes"), "float32", "maxima over actors"),
    Array("noise", ("tiles", "noise", "A", "lanes"), "float32", "exploration noise of the last step"),
    Array("exploration", ("exploration",), "float32", "share of uniform actions; standard deviation and reversion of the noise", "agent"),
    Array("obs", ("T+1", "N", "A", "F"), "float32", "observations; row T becomes row 0 of the next rollout"),
    Array("mask", ("T+1", "N", "A", "M"), "bool", "which actions are allowed"),
    Array(
        "policy_output",
        ("N", "A", "P"),
        "float32",
        "logits, or means and log standard deviations; of policies that are explored, values or actions",
        "agent",
    ),
    Array("action", ("T", "N", "A", "C"), "action", "int32, or float32 in the units of the policy (-1..1 maps to the bounds)"),
    Array("log_prob", ("T", "N", "A"), "float32", "log-probability of the action"),
    Array("value", ("T", "N", "A"), "float32", "estimate of the return", "agent"),
    Array("reward", ("T", "N", "A"), "float32", "reward"),
    Array("final_obs", ("K", "N", "A", "F"), "float32", "observation at the k-th truncation of the environment in this rollout"),
    Array("final_mask", ("K", "N", "A", "M"), "bool", "`mask` at the end of an episode; not in rollouts, see `VectorEngine`"),
    Array("alive", ("T+1", "N", "A leaving"), "bool", "whether the actor is in the episode; row T as in `obs`"),
    Array("final_alive", ("K", "N", "A leaving"), "bool", "`alive` at the k-th truncation, as `final_obs`"),
)
"""Arrays that every group has."""

PER_INDEX = (
    Array(
        "place",
        ("tiles", "indexed", "lanes"),
        "int32",
        "position of each actor in `actor`, -1 if it is in no cell; while sorting, its cell",
    ),
    Array("first", ("tiles", "cells + 2", "lanes"), "int32", "first place of each cell"),
    Array("actor", ("tiles", "indexed", "lanes"), "int32", "actors in the order of their cells"),
    Array("copies", ("tiles", "copied", "indexed", "lanes"), "float32", "fields of the actors in this order"),
)
"""Arrays that every index has; among the arrays of the environment, as INDEX_NAME."""


class Layout(NamedTuple):
    """An array with the sizes of a run."""

    array: Array
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ArrayPlan:
    """The settings that determine the arrays of a run and their sizes."""

    environment: Environment
    target: Target
    n_envs: int
    horizon: int
    vary: tuple[str, ...] = ()
    """Randomized parameters."""
    policies: PolicyKind = "sampled"
    """The kind of policy outputs, from which `sample` draws actions."""
    replaces: bool = False
    """Whether an environment with a fault ends its episode, which does not count, and begins a new one in the same step."""
    by_caller: bool = False
    """Whether a caller gives single steps (`vector_engine.py`): actions in the environment's units, one row of every rollout array."""
    network_rows: int = 0
    """Rows of a block of activations of the largest network of a fused rollout."""
    staggered: bool = False
    """Whether one of the first episodes of every environment is cut off, so that later ones do not end together."""
    memory: tuple[str, ...] = ()
    """Groups whose networks in a fused rollout have memory."""

    @property
    def explores(self) -> bool:
        """Whether there is exploration besides what policies give."""
        return self.policies != "sampled"

    def common(self) -> dict[str, Layout]:
        """Return the arrays of the environment by name."""
        arrays = self._used(_laid_out(COMMON, self._sizes(), ""))
        for index in self.environment.indices:
            arrays |= {f"{index.name}_{name}": layout for name, layout in self.of_index(index).items()}
        return arrays

    def of_index(self, index: Index) -> dict[str, Layout]:
        """Return the arrays of an index by name."""
        sizes = {
            "indexed": sum(group.size for group in self.environment.indexed(index)),
            "cells + 2": index.cells + 2,
            "copied": len(index.fields),
        }
        return _laid_out(PER_INDEX, self._sizes() | sizes, "")

    def of_group(self, group: Group) -> dict[str, Layout]:
        """Return the arrays of a group by name."""
        return self._used(_laid_out(PER_GROUP, self._sizes() | self._sizes_of(group), group.action.dtype))

    def bytes_needed(self) -> int:
        """Return the bytes of all arrays."""
        return sum(layout.bytes for layout in self._all())

    def _used(self, layouts: dict[str, Layout]) -> dict[str, Layout]:
        unused = NOT_BY_CALLER if self.by_caller else ONLY_BY_CALLER
        return {name: layout for name, layout in layouts.items() if name not in unused}

    def _all(self) -> Iterator[Layout]:
        yield from self.common().values()
        for group in self.environment.groups:
            yield from self.of_group(group).values()

    def _sizes(self) -> dict[str, int]:
        lanes = self.target.lanes(self.environment)
        rows = {"T": 1, "T+1": 1, "N": self.n_envs, "K": 1}
        return (rows if self.by_caller else rollout_sizes(self.environment.spec, self.n_envs, self.horizon)) | {
            "tiles": -(-self.n_envs // lanes),
            "lanes": lanes,
            "varied": len(self.vary),
            "replaced": REPLACED_NUMBERS if self.replaces else 0,
            "staggered": int(self.staggered),
            "exploration": 3 if self.explores else 0,
        }

    def _sizes_of(self, group: Group) -> dict[str, int]:
        # An empty array has no address that a kernel could get.
        floats = max(1, sum(f.slots for f in group.fields if not f.integer))
        integers = max(1, sum(f.slots for f in group.fields if f.integer))
        # Of a group of one actor a phase gets numbers, which do not change while it runs, and views of array fields, which do.
        changes = group.size > 1 or any(f.length for f in group.fields)
        copies = changes and any(p.group == group.name and group.name in arguments(p.function) for p in self.environment.phases)
        return group_sizes(group.spec) | {
            "f": floats,
            "i": integers,
            "f copies": floats if copies else 0,
            "i copies": integers if copies else 0,
            "sums": len(group.sums),
            "maxima": len(group.maxima),
            "noise": group.action.reals if self.explores else 0,
        }


def rollout_arrays(spec: Spec, n_envs: int, horizon: int) -> tuple[dict[str, Layout], dict[str, dict[str, Layout]]]:
    """Return the arrays of a `Trajectory` by name: those of the environment, and those of each group."""
    sizes = rollout_sizes(spec, n_envs, horizon)
    groups = {group.name: _laid_out(_rollout(PER_GROUP), sizes | group_sizes(group), group.action.dtype) for group in spec.groups}
    return _laid_out(_rollout(COMMON), sizes, ""), groups


def rollout_bytes(spec: Spec, n_envs: int, horizon: int) -> int:
    """Return the bytes of a `Trajectory`."""
    common, groups = rollout_arrays(spec, n_envs, horizon)
    return sum(layout.bytes for named in (common, *groups.values()) for layout in named.values())


def rollout_sizes(spec: Spec, n_envs: int, horizon: int) -> dict[str, int]:
    """Return the sizes of axes that all groups share."""
    limit = 1 if spec.early_truncation else spec.time_limit
    return {"T": horizon, "T+1": horizon + 1, "N": n_envs, "K": 1 + (horizon - 1) // limit if limit else 1}


def group_sizes(group: GroupSpec) -> dict[str, int]:
    """Return the sizes of axes that depend on the spaces of a group."""
    return {
        "A": group.size,
        "F": group.observation.size,
        "C": group.action.components,
        "P": group.action.outputs,
        "M": group.masked_actions,
        "A leaving": group.size if group.leaves else 0,
    }


def _rollout(table: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the arrays of `table` that agents see."""
    return tuple(array for array in table if "N" in array.axes and array.name not in ONLY_BY_CALLER)


def describe() -> str:
    """Return the tables of arrays and axes as Markdown, for docs/architecture.md."""
    lines = ["| array | shape | dtype | written by | content |", "|---|---|---|---|---|"]
    named = [(array.name, array) for array in COMMON]
    named += [(f"INDEX_{array.name}", array) for array in PER_INDEX]
    named += [(f"GROUP.{array.name}", array) for array in PER_GROUP]
    for name, array in named:
        dtype = "int32 or float32" if array.dtype == "action" else array.dtype
        lines.append(f"| `{name}` | [{', '.join(array.axes)}] | {dtype} | {array.writer} | {array.content} |")
    lines += ["", "| size | counts |", "|---|---|", *(f"| {symbol} | {meaning} |" for symbol, meaning in AXES.items())]
    return "\n".join(lines)


def _laid_out(table: tuple[Array, ...], sizes: dict[str, int], action_dtype: str) -> dict[str, Layout]:
    found = {}
    for array in table:
        shape = tuple(int(axis) if axis.isdigit() else sizes[axis] for axis in array.axes)
        if all(shape):
            found[array.name] = Layout(array, shape, action_dtype if array.dtype == "action" else array.dtype)
    return found
