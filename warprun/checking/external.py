"""Checks of simulators that are not made of kernels: environments with the interface of Gymnasium, and any
`SimulatorFactory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from warprun.checking.experience import ROUNDING, gather, judge_experience
from warprun.checking.findings import Finding, Problem, doubt, judge
from warprun.checking.rolls import Make, SimulatorRolls, determinism, rate, seeds, steps_per_second
from warprun.errors import TrainingFailed, UserError, shown
from warprun.runs.build import Setup, make_external, prepare
from warprun.simulation.batch import BatchClass
from warprun.simulation.external import mpi
from warprun.simulation.external.recipe import Closes, ExternalEnvironment
from warprun.simulation.external.state_trial import try_state
from warprun.simulation.simulator import Simulator
from warprun.simulation.trial import Explorer
from warprun.user_code import errors_of_user

if TYPE_CHECKING:
    from gymnasium import Env, Space

STEPS_ALONE = 300
"""Steps of one environment by itself."""
ENVIRONMENTS, HORIZON = 8, 16
STEPS, SECONDS = 2_000, 8.0
"""Random steps of all environments, and their longest time."""


def single(environment: ExternalEnvironment) -> Iterator[Problem]:
    """Find observations outside their space, and rewards that are no numbers; each kind is told once.

    Raises what the methods raise.
    """
    env = mpi.make(environment.recipe)
    with closing(env) if isinstance(env, Closes) else nullcontext():
        yield from _tried(environment, env)


def _tried(environment: ExternalEnvironment, env: Env) -> Iterator[Problem]:
    title, space, choose = environment.title, env.observation_space, _chooser(environment, env)
    told: set[str] = set()

    def new(problems: Iterator[tuple[str, Problem]]) -> Iterator[Problem]:
        for kind, problem in problems:
            if kind not in told:
                told.add(kind)
                yield problem

    observation, info = _begun(env.reset(seed=0))
    yield from new(_seen(title, "reset", space, observation))
    again, info = _begun(env.reset(seed=0))
    if not _same(observation, again):
        yield Problem(f"{title}: reset(seed=0) gives another observation the second time; make the generator from the seed in reset")
    for _ in range(STEPS_ALONE):
        returned = env.step(choose(info))
        if not isinstance(returned, tuple) or len(returned) != 5:
            yield Problem(f"{title}: step must return (observation, reward, terminated, truncated, info), not {shown(returned)}")
            return
        observation, reward, terminated, truncated, info = returned
        yield from new(_seen(title, "step", space, observation))
        yield from new(_returned(title, reward, terminated, truncated))
        if terminated or truncated:
            _, info = _begun(env.reset())


def _begun(returned: object) -> tuple[object, object]:
    """Return the observation and the info that a reset gave."""
    return (returned[0], returned[1]) if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})


def _chooser(environment: ExternalEnvironment, env: Env) -> Callable[[object], object]:
    """Return the function that draws an action of an environment that its info allows."""
    from warprun.simulation.external.spaces import actions, mask_of  # imports gymnasium, an extra

    (group,), explorer, own = environment.spec.groups, Explorer(environment.spec, 1), actions(env.action_space)

    def choose(info: object) -> object:
        mask = mask_of(info, group.masked_actions)[None, None] if group.masked else None
        chosen = own.convert(explorer.choose({group.name: mask})[group.name][0])
        return chosen[0] if own.space.shape else int(chosen[0])

    return choose


def _returned(title: str, reward: object, terminated: object, truncated: object) -> Iterator[tuple[str, Problem]]:
    if isinstance(reward, bool) or not isinstance(reward, int | float | np.integer | np.floating):
        shape = np.asarray(reward).shape
        kind = f"an array of the shape {shape}" if shape else shown(reward)
        yield "reward", Problem(f"{title}: the reward must be a number; step returns {kind}")
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, bool | np.bool_):
            yield name, Problem(f"{title}: {name} must be True or False; step returns {shown(value)}")


def _seen(title: str, method: str, space: Space, observation: object) -> Iterator[tuple[str, Problem]]:
    """Find what is wrong with an observation; that of a `Dict` or `Tuple` is checked as a whole."""
    from gymnasium import spaces  # an extra, which other checks do without

    if not isinstance(space, spaces.Box):
        if not space.contains(observation):
            yield "space", Problem(f"{title}: the observation of {method} is not in {space}: {shown(observation)}")
        return
    given = np.asarray(observation)
    if given.shape != space.shape:
        yield "shape", Problem(f"{title}: the observation of {method} has the shape {given.shape}, and the observation space {space.shape}")
        return
    if given.dtype.kind not in "fiub":
        yield "dtype", Problem(f"{title}: the observation of {method} has no numbers: {shown(observation)}")
        return
    if given.dtype != space.dtype:
        yield (
            "dtype",
            doubt(f"{title}: the observation of {method} has dtype {given.dtype}, and the observation space {space.dtype}; convert it"),
        )
    if not np.isfinite(given).all():
        n = int(np.flatnonzero(~np.isfinite(given))[0])
        yield "finite", Problem(f"{title}: number {n} of the observation of {method} is {given.flat[n]}; look for divisions, log and sqrt")
        return
    slack = ROUNDING * np.maximum(1.0, np.abs(given))
    outside = np.flatnonzero((given < space.low - slack) | (given > space.high + slack))
    if outside.size:
        n = int(outside[0])
        bounds = f"{space.low.flat[n]:.6g} to {space.high.flat[n]:.6g}"
        yield "bounds", Problem(f"{title}: number {n} of the observation of {method} is {given.flat[n]:.6g}, beyond its bounds {bounds}")


def _same(one: object, other: object) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and all(_same(one[key], other.get(key)) for key in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and all(_same(a, b) for a, b in zip(one, other, strict=False))
    return bool(np.array_equal(np.asarray(one), np.asarray(other), equal_nan=np.asarray(one).dtype.kind == "f"))


def check_external(setup: Setup) -> list[Finding]:
    """Check a simulator through its interface. Raises UserError if it cannot be made."""
    with ExitStack() as open_simulators:

        def make(horizon: int, seed: int, threads: int) -> Simulator:
            made = make_external(setup, ENVIRONMENTS, horizon, seed, exploration=None)
            open_simulators.callback(made.close)
            prepare(setup, made)
            return made

        found = [*_alone(setup), *_state(setup)]
        if found and found[-1].check == "state" and found[-1].verdict == "failed":
            return found  # a simulator refuses it, too
        simulator = make(HORIZON, 0, 1)
        found.append(Finding("simulator", "passed", "has the methods, shapes and dtypes of its spec"))
        try:
            with errors_of_user(f"a rollout of {setup.config.env.module} fails"):
                found.extend(_rollouts(simulator, make))
        except (UserError, TrainingFailed) as error:
            found.append(Finding("rollouts", "failed", str(error)))
    return found


def _alone(setup: Setup) -> list[Finding]:
    """Return the findings about one environment by itself; none about a vectorized one or a simulator."""
    environment = setup.environment
    if not isinstance(environment, ExternalEnvironment) or environment.recipe.vector:
        return []
    problems: list[Problem] = []
    try:
        with errors_of_user(f"{environment.title} fails"):
            problems += single(environment)
    except UserError as error:
        problems.append(Problem(str(error)))
    return judge("environment", problems, "observations are in their space, the same seed gives the same reset")


def _state(setup: Setup) -> list[Finding]:
    """Return the finding about `get_state` and `set_state`; none of an environment without them."""
    environment = setup.environment
    if isinstance(environment, ExternalEnvironment | BatchClass) and environment.note:
        return [Finding("state", "note", environment.note)]
    if not isinstance(environment, ExternalEnvironment) or not environment.state:
        return []
    try:
        trial = try_state(environment, 0, STEPS, SECONDS)
    except UserError as error:
        return [Finding("state", "failed", str(error))]
    if trial.difference:
        return [Finding("state", "failed", trial.difference)]
    return [Finding("state", "passed", f"another environment with the state of the first goes on as it does, for {trial.steps:,} steps")]


def _rollouts(simulator: Simulator, make: Make) -> Iterator[Finding]:
    spec = simulator.spec
    met = gather(SimulatorRolls(simulator, Explorer(spec, ENVIRONMENTS)), spec, steps=STEPS, seconds=SECONDS)
    yield from judge_experience(met, None)
    if met.fault is not None:
        return  # which ends every rollout
    problems = [*determinism(make, spec, of_kernels=False), *seeds(make, spec)]
    yield from judge("determinism", problems, "the same seed gives the same bits, in rollouts of other lengths, too")
    speed = steps_per_second(SimulatorRolls(simulator, Explorer(spec, ENVIRONMENTS)).roll, ENVIRONMENTS * HORIZON)
    yield Finding("speed", "note", f"{rate(speed)} environment steps/s with {ENVIRONMENTS} environments in one process, random actions")
