"""`warprun check`: find mistakes in an environment before an agent trains on it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from warprun.checking.agreement import ENVIRONMENTS, MOST_STEPS, Steps, agreed, disagreements, take_steps, watched_run
from warprun.checking.effects import actions, constant_fields, resets, source
from warprun.checking.experience import gather, judge_experience
from warprun.checking.external import check_external
from warprun.checking.findings import Finding, Problem, judge
from warprun.checking.processes import Helper
from warprun.checking.rolls import KernelRolls, changing, determinism, digests, masks_of, put, rate, seeds, steps_per_second
from warprun.config.schema import Config, make_tables, parameters
from warprun.environment import Environment, arguments
from warprun.kernels import waiting
from warprun.runs.build import Setup, make_engine, set_up
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.kernel_module import read_only, typed, typed_tables
from warprun.simulation.plain import OfRun
from warprun.simulation.trial import Explorer

HORIZON = 16
LARGEST_ROLLOUT = 2**24
"""Most numbers in the observations of one rollout."""
SECONDS = 4.0
"""Longest time of the random actions."""
FAST = 8192
"""Most environments in the measurement of speed."""
UNEVEN = 100
"""Environments in the check of determinism: more than a tile, and no multiple of it."""


@dataclass(frozen=True)
class Begun:
    """An environment whose kernels are compiled, and the first steps that they took."""

    setup: Setup
    environment: Environment
    engine: KernelEngine
    steps: Steps
    seconds: float
    """Seconds that the compilation and the steps took."""


def begin(setup: Setup, environment: Environment) -> Begun:
    """Compile the kernels and take some steps. Raises UserError for functions that do not compile, or index beyond an array."""
    began = time.perf_counter()
    engine = make_engine(setup, _fitting(environment, 256), HORIZON, 0)
    engine.reset()
    steps = take_steps(make_engine(setup, ENVIRONMENTS, 1, 0), MOST_STEPS)
    return Begun(setup, environment, engine, steps, time.perf_counter() - began)


def check_kernels(setup: Setup, environment: Environment, overrides: Sequence[str]) -> list[Finding]:
    """Run every check; `overrides` compose the config of `setup` in other processes. Raises UserError as `begin` does."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        code = running.enter_context(Helper("machine_code", folder, *overrides))
        begun = begin(setup, environment)
        begun.steps.save(folder / "steps.npz")
        simulator = running.enter_context(Helper("simulated", folder, folder / "steps.npz", *overrides))
        found = list(check_here(begun))
        found += _simulated(simulator, digests(setup.tables))
        return found + list(_machine_code(code)) + list(_speed(setup, environment, code))


def check_here(begun: Begun) -> Iterator[Finding]:
    """Run the checks that need no other process."""
    setup, environment, engine = begun.setup, begun.environment, begun.engine
    yield Finding("compiles", "passed", f"for CPU, {begun.seconds:.1f} s")
    yield from judge("source", source(environment, engine.functions), "every parameter is read; no arrays of modules")
    yield from _plain(begun)
    limit = environment.time_limit or 1000
    rolls = KernelRolls(engine, Explorer(engine.spec, engine.n_envs))
    met = gather(rolls, engine.spec, steps=min(4000, max(1000, 2 * limit)), seconds=SECONDS)
    yield from judge_experience(met, environment)
    yield from judge("actions", actions(make_engine(setup, _fitting(environment, 64), 1, 0)), "every action does something of its own")
    yield from judge("state", _state(setup, environment), "reset sets every field, and every field changes")
    yield from judge("determinism", _determinism(setup, environment), "the same bits twice, with 2 threads, and in longer rollouts")
    made = digests(setup.tables)
    if made:
        again = digests(make_tables(environment, setup.config.env))
        yield from judge("tables", changing(made, again, "when it is made again"), f"{len(made)} tables, the same each time")


def _fitting(environment: Environment, most: int) -> int:
    """Return a number of environments, at most `most`, whose rollouts are not larger than LARGEST_ROLLOUT."""
    numbers = HORIZON * sum(group.size * group.observation.size for group in environment.groups)
    return max(8, min(most, LARGEST_ROLLOUT // numbers))


def _plain(begun: Begun) -> Iterator[Finding]:
    setup, environment, steps = begun.setup, begun.environment, begun.steps
    of_run: OfRun = {
        "params": typed(parameters(environment, setup.config.env)),
        "tables": read_only(typed_tables(setup.tables)),
        "vary": {name: (float(low), float(high)) for name, (low, high) in setup.config.env.randomize.items()},
    }
    differences, problems = watched_run(environment, steps, begun.engine.functions, seed=0, **of_run)
    wrong = [*disagreements(differences, "plain Python", environment)]
    yield from judge(
        "plain Python",
        [*problems[:1], *wrong] if not differences.steps else wrong,
        agreed(differences.steps, len(steps.given)),
    )
    rest = problems if differences.steps else problems[1:]
    yield from judge("watched steps", rest, "indices, draws, writes and integers")


def _state(setup: Setup, environment: Environment) -> Iterator[Problem]:
    engine = make_engine(setup, _fitting(environment, 64), 1, 0)
    yield from resets(engine)
    yield from constant_fields(engine, KernelRolls(engine, Explorer(engine.spec, engine.n_envs, seed=5)).roll, 200)


def _determinism(setup: Setup, environment: Environment) -> Iterator[Problem]:
    def make(horizon: int, seed: int, threads: int) -> KernelEngine:
        config = replace(setup.config, concurrency=replace(setup.config.concurrency, threads=threads))
        return make_engine(replace(setup, config=config), UNEVEN, horizon, seed)

    yield from determinism(make, environment.spec, of_kernels=True)
    functions = [group.reset for group in environment.groups] + [phase.function for phase in environment.phases]
    if any("rng" in arguments(function) for function in functions):  # else nothing can depend on the seed, and `resets` tells
        yield from seeds(make, environment.spec)


def _simulated(simulator: Helper, made: dict[str, str]) -> Iterator[Finding]:
    found, problem = simulator.result()
    if problem:
        yield Finding("CUDA simulator", "failed", f"cannot run: {problem}")
        return
    problems = [Problem(message, verdict) for message, verdict in found["problems"]]
    yield from judge("CUDA simulator", problems, agreed(found["steps"], found["recorded"]))
    differing = list(changing(made, found["tables"], "in another process"))
    if differing:
        yield from judge("tables", differing, "")


def _machine_code(code: Helper) -> Iterator[Finding]:
    found, problem = code.result()
    if problem:
        yield Finding("CUDA code", "failed", f"cannot be made: {problem}")
        return
    lines = "; ".join(f"{function}: line {', '.join(map(str, at[:4]))}" for function, at in found["float64"].items())
    told = f"; float64 is computed in {lines}: write float literals (2.0), float32(n), and tables of float32" if lines else ""
    if found["no cuda"]:
        yield Finding("CUDA code", "note", f"not compiled, for no GPU code can be made here: {found['no cuda']}")
        if found["doubles in CPU code"]:
            yield Finding("float64", "failed", f"kernels compute in float64{told}")
        return
    problems = []
    for kernel, unwanted in found["unwanted"].items():
        for what in unwanted:
            advice = told if what == "float64" else "; arrays with computed indices in local variables, recursion or functions of libraries"
            problems.append(Problem(f"the kernel {kernel} has {what}, which is slow on a GPU{advice}"))
    yield from judge("CUDA code", problems, "compiled to PTX: no float64, no local memory, no calls")


def _speed(setup: Setup, environment: Environment, code: Helper) -> Iterator[Finding]:
    found, _ = code.result()
    engine = make_engine(setup, _fitting(environment, FAST), 1, 0)
    engine.reset()
    put(engine.trajectory, 0, Explorer(engine.spec, engine.n_envs).choose(masks_of(engine.trajectory, 0)))
    speed = steps_per_second(partial(engine.step, 0), engine.n_envs)
    yield Finding("speed", "note", f"{rate(speed)} environment steps/s on one thread, {engine.n_envs:,} environments, without a policy")
    for function, cause in found.get("loops", {}).items():
        yield Finding("vectors", "note", f"{function} is computed for one environment at a time: {cause}")


def check(config: Config, overrides: Sequence[str]) -> list[Finding]:
    """Check the environment of a config, which `overrides` compose. Raises UserError if it cannot run."""
    alone = replace(config.concurrency, threads=1, workers=0)
    config = replace(config, device="cpu", env=replace(config.env, on_nan="stop"), concurrency=alone)
    setup = set_up(config)
    with waiting.on("check", config.env.name):
        if isinstance(setup.environment, Environment):
            return check_kernels(setup, setup.environment, overrides)
        return check_external(setup)
