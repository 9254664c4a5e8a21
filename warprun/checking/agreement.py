"""Check that compiled kernels, plain Python and the CUDA simulator take the same steps, and watch plain Python for
mistakes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Unpack

import numpy as np
import torch

from warprun.checking.findings import Problem, doubt, place_of, short
from warprun.checking.rolls import masks_of, put
from warprun.checking.watch import Watch
from warprun.environment import Environment
from warprun.errors import UserError, one_line
from warprun.simulation.comparison import first_unlike, results, sources
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.plain import OfSeededRun, PlainEnvironment, Rows, varied
from warprun.simulation.trial import Explorer, raised_in

ENVIRONMENTS = 4
MOST_STEPS = 400
SECONDS = 4.0
STEPS_WITH_DRAWS = 12
"""Steps in which every draw is looked at, which is slow."""


@dataclass
class Steps:
    """Steps that compiled kernels took: the state before each step and its results."""

    begun: list[Rows] = field(default_factory=list)
    given: list[Rows] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write the steps to a .npz file."""
        named = {f"{n}/begun/{k}": v for n, step in enumerate(self.begun) for k, v in step.items()}
        named |= {f"{n}/given/{k}": v for n, step in enumerate(self.given) for k, v in step.items()}
        np.savez(path, **named)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Steps:
        """Read what `save` wrote."""
        made = cls()
        with np.load(path) as file:
            for key in file.files:
                number, kind, name = key.split("/", 2)
                steps = made.begun if kind == "begun" else made.given
                while len(steps) <= int(number):
                    steps.append({})
                steps[int(number)][name] = file[key]
        return made


def take_steps(engine: KernelEngine, count: int) -> Steps:
    """Take `count` steps with random actions on an engine with horizon 1."""
    explorer, steps = Explorer(engine.spec, engine.n_envs, seed=1), Steps()
    engine.reset()
    for _ in range(count):
        put(engine.trajectory, 0, explorer.choose(masks_of(engine.trajectory, 0)))
        steps.begun.append(beginning(engine))
        engine.step(0)
        steps.given.append(outcome(engine))
        engine.carry_over()
    return steps


def repeat(take: Callable[[Rows], Rows], steps: Steps, seconds: float) -> Differences:
    """Repeat steps with another executor, each from the recorded beginning; `seconds` end it early, after at least one step."""
    found, end = Differences(), time.perf_counter() + seconds
    for begun, given in zip(steps.begun, steps.given, strict=True):
        found.compare(given, take(begun))
        if time.perf_counter() > end:
            break
    return found


def disagreements(found: Differences, who: str, environment: Environment) -> Iterator[Problem]:
    """Yield the differences between compiled kernels and `who`."""
    for name, count in found.counts.items():
        where = ", ".join(dict.fromkeys(place_of(function) for function in sources(environment, name)))
        text = f"compiled kernels and {who} differ in {name}, {where}, in {count} of {found.steps} steps ({found.examples[name]})"
        advice = "look for variables set in one branch only, int64 overflow, constants that change from import to import"
        if count == 1:
            yield doubt(f"{text}; a comparison at its threshold, which depends on rounding, or {advice}")
        else:
            yield Problem(f"{text}; {advice}")
        return  # the rest follows from the first


def agreed(compared: int, recorded: int) -> str:
    """Return the message of steps that agree: `compared` of the `recorded` ones, fewer if time was up."""
    rest = f"; time was up for {recorded - compared} more" if compared < recorded else ""
    return f"{compared} steps agree with compiled kernels{rest}"


def watched_run(
    environment: Environment, steps: Steps, functions: Sequence[FunctionType], **of_run: Unpack[OfSeededRun]
) -> tuple[Differences, list[Problem]]:
    """Repeat steps in plain Python; return the differences, and the problems that `Watch` noted.

    `functions` are those of the environment, `of_run` as for `PlainEnvironment`.
    """
    watch, found = Watch(environment), Differences()
    played = [PlainEnvironment(environment, number, call=watch.build, **of_run) for number in range(ENVIRONMENTS)]
    take = partial(stepped_plainly, played)
    with warnings.catch_warnings(), watch.float_errors():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            with watch.draws():
                for each in played:
                    each.reset()
                repeat(take, Steps(steps.begun[:STEPS_WITH_DRAWS], steps.given[:STEPS_WITH_DRAWS]), SECONDS / 4)
            found = repeat(take, steps, SECONDS)
        except UserError as error:
            return found, [Problem(str(error)), *watch.problems.values()]
        except Exception as error:  # functions of the user, in which anything can go wrong
            frame = raised_in(error, functions)
            if frame is None:
                raise
            where = f"{short(frame.filename)}:{frame.lineno} in {frame.name}"
            return found, [Problem(f"{where} fails as plain Python but not compiled: {one_line(error)}"), *watch.problems.values()]
    return found, list(watch.problems.values())


def beginning(engine: KernelEngine) -> Rows:
    """Return all that the next step depends on, apart from the seed, in shapes that every target shares: [N, ...]."""
    found = {"clock": engine.arrays.common["clock"].flatten()[: engine.n_envs].numpy().copy(), "steps": np.array(engine.steps)}
    if "varied" in engine.arrays.common:
        found["varied"] = engine.arrays.common["varied"].permute(0, 2, 1).flatten(0, 1)[: engine.n_envs].numpy().copy()
    for group in engine.spec.groups:
        found |= {f"{group.name}.state.{name}": value.numpy().copy() for name, value in engine.state_of(group.name).items()}
        found[f"{group.name}.action"] = engine.trajectory.groups[group.name].action[0].numpy().copy()
    return found


def stepped(engine: KernelEngine, at: Rows) -> Rows:
    """Take a step of an engine from the state of `beginning`; return the `outcome`."""
    _place(engine, at)
    engine.step(0)
    return outcome(engine)


def stepped_plainly(played: Sequence[PlainEnvironment], at: Rows) -> Rows:
    """Take the same step in plain Python, one object for each environment, and return the same arrays."""
    taken = []
    for n, each in enumerate(played):
        each.steps, each.clock = int(at["steps"]), int(at["clock"][n])
        if "varied" in at:
            each.params = varied(each.params, dict(zip(each.vary, at["varied"][n], strict=True)))
        for group in each.environment.groups:
            for f in group.fields:
                each.put(group, f, at[f"{group.name}.state.{f.name}"][n])
        taken.append(results(each.step({group.name: at[f"{group.name}.action"][n] for group in each.environment.groups})))
    found = {name: np.stack([one[name] for one in taken]) for name in taken[0]}
    for group in played[0].environment.groups:
        found |= {f"{group.name}.state.{f.name}": np.stack([each.field(group, f) for each in played]) for f in group.fields}
    return found


def _place(engine: KernelEngine, at: Rows) -> None:
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


def outcome(engine: KernelEngine) -> Rows:
    """Return the results of the last step, which are in row 0, by name."""
    taken = engine.trajectory
    found = {"terminated": taken.terminated[0], "truncated": taken.truncated[0]}
    for name, group in taken.groups.items():
        found |= {f"{name}.state.{field}": value for field, value in engine.state_of(name).items()}
        found |= {f"{name}.reward": group.reward[0], f"{name}.observation": group.obs[1]}
        if group.mask is not None:
            found[f"{name}.mask"] = group.mask[1]
    return {name: value.numpy().copy() for name, value in found.items()}


class Differences:
    """The steps in which two engines differ, by the names of arrays."""

    def __init__(self) -> None:
        self.steps = 0
        self.counts: dict[str, int] = {}
        """How many steps differ."""
        self.examples: dict[str, str] = {}
        """The first two values that differ."""

    def compare(self, expected: Rows, found: Rows) -> None:
        """Compare the outcomes of one step. After an end that differs, the rest differs, too."""
        self.steps += 1
        for name, one in expected.items():
            other = found[name].astype(one.dtype)
            at = first_unlike(one, other)
            if at is not None:
                self.counts[name] = self.counts.get(name, 0) + 1
                self.examples.setdefault(name, f"{_shown(one[at])} and {_shown(other[at])}")
                if name in ("terminated", "truncated"):
                    return


def _shown(value: np.generic) -> str:
    return f"{float(value):.6g}" if value.dtype.kind == "f" else str(value.item())


def _fill(engine: KernelEngine, name: str, values: np.ndarray) -> None:
    """Write values [N, V] into an array of tiles [tile, V, lane] or [tile, lane]."""
    array = engine.arrays.common[name]
    tiles, lanes = array.shape[0], array.shape[-1]
    padded = torch.zeros((tiles * lanes, values.shape[1]), dtype=array.dtype)
    padded[: engine.n_envs] = torch.from_numpy(values)
    array.copy_(padded.reshape(tiles, lanes, -1).permute(0, 2, 1).reshape(array.shape))
