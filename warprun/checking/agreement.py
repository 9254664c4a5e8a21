"""Checks that compiled kernels, plain Python and the CUDA simulator take the same steps; plain Python is watched meanwhile."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from warprun.checking.findings import Problem, doubt
from warprun.checking.names import place_of, short
from warprun.checking.rolls import masks_of, put
from warprun.checking.steps import Arrays, Differences, beginning, outcome, stepped_plainly
from warprun.checking.watch import Watch
from warprun.environment import Environment
from warprun.errors import UserError, one_line
from warprun.simulation.comparison import sources
from warprun.simulation.explorer import Explorer
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.plain import PlainEnvironment

ENVIRONMENTS = 4
MOST_STEPS = 400
SECONDS = 4.0
STEPS_WITH_DRAWS = 12
"""Steps in which every draw is looked at, which is slow."""


@dataclass
class Steps:
    """Steps that compiled kernels took: what they began with and what they gave."""

    begun: list[Arrays] = field(default_factory=list)
    given: list[Arrays] = field(default_factory=list)

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


def repeat(take: Callable[[Arrays], Arrays], steps: Steps, seconds: float) -> Differences:
    """Repeat steps with another executor, each from the recorded beginning; `seconds` end it early, after at least one step."""
    found, end = Differences(), time.perf_counter() + seconds
    for begun, given in zip(steps.begun, steps.given, strict=True):
        found.compare(given, take(begun))
        if time.perf_counter() > end:
            break
    return found


def disagreements(found: Differences, who: str, environment: Environment) -> Iterator[Problem]:
    """Return what is wrong between compiled kernels and `who`."""
    for name, count, example in found.described():
        where = ", ".join(dict.fromkeys(place_of(function) for function in sources(environment, name)))
        text = f"compiled kernels and {who} differ in {name}, {where}, in {count} of {found.steps} steps ({example})"
        advice = "look for variables set in one branch only, int64 overflow, constants that change from import to import"
        if count == 1:
            yield doubt(f"{text}; a comparison at its threshold, which depends on rounding, or {advice}")
        else:
            yield Problem(f"{text}; {advice}")
        return  # the rest follows from the first


def agreed(compared: int, recorded: int) -> str:
    """Return what was tried if steps agree; `compared` of the `recorded` ones, fewer if time was up."""
    rest = f"; time was up for {recorded - compared} more" if compared < recorded else ""
    return f"{compared} steps agree with compiled kernels{rest}"


def watched_run(
    environment: Environment, steps: Steps, functions: Sequence[FunctionType], **of_run: Any
) -> tuple[Differences, list[Problem]]:
    """Repeat steps in plain Python; return the differences, and what the watch saw.

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
            files = {code.co_filename for code in (function.__code__ for function in functions)}
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
            if not frames:
                raise
            where = f"{short(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}"
            return found, [Problem(f"{where} fails as plain Python but not compiled: {one_line(error)}"), *watch.problems.values()]
    return found, list(watch.problems.values())
