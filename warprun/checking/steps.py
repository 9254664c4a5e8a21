"""Single steps from the same state by two executors, compared: engines, and environments in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.plain import PlainEnvironment

Arrays = dict[str, np.ndarray]
TOLERANCE = 1e-3
"""Relative to 1 + |value|. Compiled code fuses multiplications and additions, which plain Python rounds apart."""


def beginning(engine: KernelEngine) -> Arrays:
    """Return all that the next step depends on, apart from the seed, in shapes that every target shares: [N, ...]."""
    found = {"clock": engine.arrays.common["clock"].flatten()[: engine.n_envs].numpy().copy(), "steps": np.array(engine.steps)}
    if "varied" in engine.arrays.common:
        found["varied"] = engine.arrays.common["varied"].permute(0, 2, 1).flatten(0, 1)[: engine.n_envs].numpy().copy()
    for group in engine.spec.groups:
        found |= {f"{group.name}.state.{name}": value.numpy().copy() for name, value in engine.state_of(group.name).items()}
        found[f"{group.name}.action"] = engine.trajectory.groups[group.name].action[0].numpy().copy()
    return found


def stepped(engine: KernelEngine, at: Arrays) -> Arrays:
    """Take a step of an engine from the state of `beginning`; return the `outcome`."""
    _place(engine, at)
    engine.step(0)
    return outcome(engine)


def stepped_plainly(played: Sequence[PlainEnvironment], at: Arrays) -> Arrays:
    """Take the same step in plain Python, one object for each environment, and return the same arrays."""
    taken = []
    for n, each in enumerate(played):
        each.steps, each.clock = int(at["steps"]), int(at["clock"][n])
        if "varied" in at:
            each.params = each.params._replace(**dict(zip(each.vary, at["varied"][n], strict=True)))
        for group in each.environment.groups:
            for f in group.fields:
                each.put(group, f, at[f"{group.name}.state.{f.name}"][n])
        taken.append(each.step({group.name: at[f"{group.name}.action"][n] for group in each.environment.groups}))
    found = {"terminated": np.array([one.terminated for one in taken]), "truncated": np.array([one.truncated for one in taken])}
    for group in played[0].environment.groups:
        found |= {f"{group.name}.state.{f.name}": np.stack([each.field(group, f) for each in played]) for f in group.fields}
        found[f"{group.name}.reward"] = np.stack([one.reward[group.name] for one in taken])
        found[f"{group.name}.observation"] = np.stack([one.seen.observation[group.name] for one in taken])
        if group.mask:
            found[f"{group.name}.mask"] = np.stack([one.seen.mask[group.name] for one in taken])
    return found


def _place(engine: KernelEngine, at: Arrays) -> None:
    """Put an engine into the state of `beginning`, with its actions in row 0."""
    engine.steps = int(at["steps"])
    _fill(engine, "clock", at["clock"][:, None])
    if "varied" in at:
        _fill(engine, "varied", at["varied"])
    for group in engine.spec.groups:
        first = f"{group.name}.state."
        values = {name.removeprefix(first): torch.from_numpy(value.copy()) for name, value in at.items() if name.startswith(first)}
        engine.set_state(group.name, **values)
        engine.trajectory.groups[group.name].action[0].copy_(torch.from_numpy(at[f"{group.name}.action"]))


def outcome(engine: KernelEngine) -> Arrays:
    """Return what the last step, with row 0, gave, by name."""
    taken = engine.trajectory
    found = {"terminated": taken.terminated[0], "truncated": taken.truncated[0]}
    for name, group in taken.groups.items():
        found |= {f"{name}.state.{field}": value for field, value in engine.state_of(name).items()}
        found |= {f"{name}.reward": group.reward[0], f"{name}.observation": group.obs[1]}
        if group.mask is not None:
            found[f"{name}.mask"] = group.mask[1]
    return {name: value.numpy().copy() for name, value in found.items()}


class Differences:
    """Counts, for every array, the steps in which two engines differ."""

    def __init__(self) -> None:
        self.steps = 0
        self.counts: dict[str, int] = {}
        self.examples: dict[str, str] = {}

    def compare(self, expected: Arrays, found: Arrays) -> None:
        """Compare the outcomes of one step. After an end that differs, the rest differs, too."""
        self.steps += 1
        for name, one in expected.items():
            at = _first_difference(one, found[name])
            if at is not None:
                self.counts[name] = self.counts.get(name, 0) + 1
                self.examples.setdefault(name, f"{_shown(one[at])} and {_shown(found[name][at])}")
                if name in ("terminated", "truncated"):
                    return

    def described(self) -> Iterator[tuple[str, int, str]]:
        """Yield array, number of steps in which it differs, and the first two values."""
        for name, count in self.counts.items():
            yield name, count, self.examples[name]


def _first_difference(one: np.ndarray, other: np.ndarray) -> tuple[int, ...] | None:
    if one.dtype.kind == "f":
        with np.errstate(all="ignore"):
            same = np.isclose(other, one, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    else:
        same = one == other
    wrong = np.argwhere(~same)
    return tuple(int(n) for n in wrong[0]) if len(wrong) else None


def _shown(value: np.generic) -> str:
    return f"{float(value):.6g}" if value.dtype.kind == "f" else str(value.item())


def _fill(engine: KernelEngine, name: str, values: np.ndarray) -> None:
    """Write values [N, V] into an array of tiles [tile, V, lane] or [tile, lane]."""
    array = engine.arrays.common[name]
    tiles, lanes = array.shape[0], array.shape[-1]
    padded = torch.zeros((tiles * lanes, values.shape[1]), dtype=array.dtype)
    padded[: engine.n_envs] = torch.from_numpy(values)
    array.copy_(padded.reshape(tiles, lanes, -1).permute(0, 2, 1).reshape(array.shape))
