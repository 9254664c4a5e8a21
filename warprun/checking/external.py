"""The checks of simulators that are not made of kernels: environments with the interface of Gymnasium, and any `SimulatorFactory`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from warprun.checking.determinism import determinism, seeds
from warprun.checking.experience import gather
from warprun.checking.findings import Finding, Problem, judge
from warprun.checking.met import judge_experience
from warprun.checking.rolls import SimulatorRolls, rate, steps_per_second
from warprun.config.registry import errors_of_user
from warprun.environment import Environment
from warprun.errors import TrainingFailed, UserError
from warprun.runs.build import Setup
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.simulator import Simulator
from warprun.simulation.simulator_check import check_simulator
from warprun.simulation.trial import Explorer

ENVIRONMENTS, HORIZON = 8, 16
STEPS, SECONDS = 2_000, 8.0


def check_external(setup: Setup) -> list[Finding]:
    """Check a simulator through its interface. Raises UserError if it cannot be made."""
    with ExitStack() as open_simulators:

        def make(horizon: int, seed: int, threads: int) -> Simulator:
            made = _made(setup, horizon, seed)
            open_simulators.callback(made.close)
            with errors_of_user(f"prepare of {setup.config.env.module} fails"):
                made.prepare()
            return made

        found = _alone(setup)
        simulator = make(HORIZON, 0, 1)
        found.append(Finding("simulator", "passed", "has the methods, shapes and dtypes of its spec"))
        for check in (_experience, _determinism, _speed):
            try:
                with errors_of_user(f"a rollout of {setup.config.env.module} fails"):
                    found += check(setup, simulator, make)
            except (UserError, TrainingFailed) as error:
                return [*found, Finding("rollouts", "failed", str(error))]
    return found


def _made(setup: Setup, horizon: int, seed: int) -> Simulator:
    """Return a simulator; those with the interface of Gymnasium step in this process."""
    environment, device = setup.environment, setup.device
    assert not isinstance(environment, Environment)
    if isinstance(environment, ExternalEnvironment):
        sizes = {"n_envs": ENVIRONMENTS, "horizon": horizon, "seed": seed}
        from warprun.simulation.external.simulator import ExternalSimulator  # imports gymnasium, which is an extra

        return ExternalSimulator(environment, **sizes, device=device, exploration=None, workers=0, replaces=False)
    make = environment.make_simulator
    with errors_of_user(f"make_simulator of {setup.config.env.module} fails"):
        made = make(n_envs=ENVIRONMENTS, first_env=0, horizon=horizon, seed=seed, device=device, exploration=None)
        check_simulator(made, make, environment.spec, ENVIRONMENTS, horizon)
        return made


def _alone(setup: Setup) -> list[Finding]:
    """Return the findings about one environment by itself, if there is such a thing."""
    environment = setup.environment
    if not isinstance(environment, ExternalEnvironment) or environment.recipe.vector:
        return []
    from warprun.checking.single import single  # imports Gymnasium, an extra

    problems: list[Problem] = []
    try:
        with errors_of_user(f"{environment.title} fails"):
            problems += single(environment)
    except UserError as error:
        problems.append(Problem(str(error)))
    return judge("environment", problems, "observations are in their space, the same seed gives the same reset")


def _experience(setup: Setup, simulator: Simulator, make: Callable[[int, int, int], Simulator]) -> list[Finding]:
    spec = simulator.spec
    met = gather(SimulatorRolls(simulator, Explorer(spec, ENVIRONMENTS)), spec, steps=STEPS, seconds=SECONDS)
    return list(judge_experience(met, None))


def _determinism(setup: Setup, simulator: Simulator, make: Callable[[int, int, int], Simulator]) -> list[Finding]:
    def problems() -> Iterator[Problem]:
        yield from determinism(make, simulator.spec, of_kernels=False)
        yield from seeds(make, simulator.spec)

    return judge("determinism", problems(), "the same seed gives the same bits, in rollouts of other lengths, too")


def _speed(setup: Setup, simulator: Simulator, make: Callable[[int, int, int], Simulator]) -> list[Finding]:
    rolls = SimulatorRolls(simulator, Explorer(simulator.spec, ENVIRONMENTS))
    speed = steps_per_second(rolls.roll, ENVIRONMENTS * HORIZON)
    return [Finding("speed", "note", f"{rate(speed)} environment steps/s with {ENVIRONMENTS} environments in one process, random actions")]
