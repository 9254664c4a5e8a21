"""Make the plan, the agent and the simulators of a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from warprun.algorithms import agent_class
from warprun.config.environment_copy import Tables
from warprun.config.memory_estimate import workers
from warprun.config.planning import make_plan
from warprun.config.registry import Defined
from warprun.config.schema import Config, load_environment, make_tables, parameters
from warprun.environment import Environment
from warprun.errors import UserError
from warprun.kernels.mlp import Network
from warprun.kernels.repeat import Captured
from warprun.kernels.simd import COLUMNS
from warprun.learning.communicator import Communicator, SingleProcess
from warprun.learning.interfaces import Agent, Context, Draws
from warprun.learning.settings.plan import Choice, Plan
from warprun.processes import usable_cores
from warprun.simulation import members
from warprun.simulation.device import Device, choose
from warprun.simulation.exploration import Exploration
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.kernel_engine import KernelEngine, RollOut
from warprun.simulation.members import Joined
from warprun.simulation.simulator import Simulator
from warprun.simulation.simulator_check import CheckedSimulator, check_simulator
from warprun.user_code import errors_of_user

SINGLE = SingleProcess()


@dataclass(frozen=True)
class Setup:
    """A config with its device, environment, tables and plan; the agent and the simulators are made from it."""

    config: Config
    device: Device
    environment: Defined
    tables: Tables | None
    """The environment's tables, if it has any: read once, shared by all simulators of a run."""
    plan: Plan
    communicator: Communicator


def set_up(config: Config, communicator: Communicator = SINGLE) -> Setup:
    """Choose the device, load the environment and its tables, and plan how the run executes. Raises UserError."""
    device = choose(config.device)
    if device.kind == "cuda":
        # For the whole process: torch has no narrower setting.
        torch.set_float32_matmul_precision("high" if config.engine.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = config.engine.tf32
        torch.backends.cudnn.deterministic = True
        # Imports Numba's CUDA part, which may be absent where there is no GPU.
        from warprun.simulation.cuda_layers import tensor_core_error, verify

        verify("layers", tensor_core_error)
    environment, _ = load_environment(config.env, config.concurrency.parallel)
    tables = make_tables(environment, config.env) if isinstance(environment, Environment) else None
    plan = make_plan(config, environment, device.kind)
    if device.kind == "cuda" and plan.recurrent.by == "kernels":
        from warprun.learning.kernels.cuda.recurrent_check import verify_layers

        verify_layers(config.agent.recurrent_layers(environment.spec))
        plan = make_plan(config, environment, device.kind)  # which knows what they found
    if plan.repeated.by == "graphs" and members.inside():
        plan = replace(plan, repeated=Choice("members"))
    return Setup(config, device, environment, tables, plan, communicator)


def make_agent(setup: Setup, n_envs: int | None = None, sources: int | None = None) -> Agent:
    """Return an untrained agent for rollouts of `n_envs` environments (None: all of the run), see `Context`."""
    config = setup.config
    context = Context(setup.device.torch, n_envs or config.n_envs, threads(config), config.seed, setup.plan, setup.communicator, sources)
    return agent_class(config.agent.name)(config.agent, setup.environment.spec, context)


def make_simulator(
    setup: Setup,
    n_envs: int,
    horizon: int,
    seed: int,
    agent: Draws,
    announce: Callable[[str], None] = lambda line: None,
    first_env: int = 0,
    kept: Mapping[str, int] | None = None,
    compares: bool = False,
    staggered: bool = False,
) -> Simulator:
    """Return a simulator for an agent, of the environments `first_env` and following of a run; `announce` gets one line if kernels have
    to be compiled, `kept` is that of the agent, `compares` and `staggered` are those of `KernelEngine`. Raises UserError."""
    simulator: Simulator
    if isinstance(setup.environment, Environment):
        networks = agent.networks() if setup.plan.fused else None
        simulator = make_engine(
            setup,
            n_envs,
            horizon,
            seed,
            first_env=first_env,
            exploration=agent.exploration,
            networks=networks,
            kept=kept,
            compares=compares,
            staggered=staggered,
            announce=announce,
        )
    else:
        simulator = make_external(setup, n_envs, horizon, seed, agent.exploration, first_env)
        simulator.trajectory.keep(kept or {}, COLUMNS)
    simulator.trajectory.remember(agent.carry)
    return simulator


def make_training_simulator(
    setup: Setup, agent: Agent, announce: Callable[[str], None] = lambda line: None, first_env: int = 0
) -> Simulator:
    """Return the simulator whose rollouts `agent` learns from, each before the next one; as `make_simulator`. Raises UserError."""
    config = setup.config
    return make_simulator(
        *(setup, config.n_envs, config.agent.horizon, config.seed, agent, announce, first_env, agent.kept),
        *(config.engine.compare, config.staggered),
    )


def make_external(setup: Setup, n_envs: int, horizon: int, seed: int, exploration: Exploration | None, first_env: int = 0) -> Simulator:
    """Return the simulator of an environment that is not made of kernel functions. Raises UserError for all that its code raises."""
    config, environment = setup.config, setup.environment
    assert not isinstance(environment, Environment)
    if isinstance(environment, ExternalEnvironment):
        from warprun.simulation.external.pool import external_simulator  # imports gymnasium, which is an extra

        return external_simulator(
            environment,
            n_envs=n_envs,
            first_env=first_env,
            horizon=horizon,
            seed=seed,
            device=setup.device,
            exploration=exploration,
            workers=workers(config, environment),
            replaces=config.env.on_nan == "reset",
        )
    make = environment.make_simulator
    with errors_of_user(f"make_simulator of {config.env.module} fails"):
        made = make(n_envs=n_envs, first_env=first_env, horizon=horizon, seed=seed, device=setup.device, exploration=exploration)
        check_simulator(made, make, environment.spec, n_envs, horizon)
        return CheckedSimulator(made, first_env)


def prepare(setup: Setup, simulator: Simulator) -> None:
    """Prepare a simulator. Raises UserError, also for any exception of a simulator of the user."""
    if isinstance(setup.environment, Environment | ExternalEnvironment):
        simulator.prepare()
        return
    with errors_of_user(f"prepare of {setup.config.env.module} fails"):
        simulator.prepare()


def note_on_resume(setup: Setup) -> str:
    """Return why a resumed run will not continue exactly, as a trial of `get_state` and `set_state` shows, empty if it does not; no trial
    without these methods. Raises UserError for what they raise."""
    environment = setup.environment
    if not isinstance(environment, ExternalEnvironment) or not environment.resumes:
        return ""
    from warprun.simulation.external.state_trial import known_trial  # imports gymnasium, which is an extra

    difference = known_trial(environment, workers(setup.config, environment)).difference
    return difference and f"resume will not continue exactly: {difference}"


def make_engine(
    setup: Setup,
    n_envs: int,
    horizon: int,
    seed: int,
    *,
    first_env: int = 0,
    exploration: Exploration | None = None,
    networks: Mapping[str, Network] | None = None,
    kept: Mapping[str, int] | None = None,
    compares: bool = False,
    staggered: bool = False,
    auto_reset: bool = True,
    announce: Callable[[str], None] = lambda line: None,
) -> KernelEngine:
    """Return a kernel engine; `exploration` and, for fused rollouts, `networks` are those of the agent, `kept` and `compares`
    are those of `KernelEngine`; with `staggered` first episodes are cut off, see there.

    Without `auto_reset` an environment whose episode has ended stays in its final state. Raises UserError.
    """
    config, environment = setup.config, setup.environment
    if not isinstance(environment, Environment):
        raise UserError(f"env={config.env.name}: the environment is not made of kernel functions, which this needs")
    return KernelEngine(
        environment,
        config.env.name,
        device=setup.device,
        n_envs=n_envs,
        first_env=first_env,
        horizon=horizon,
        seed=seed,
        params=parameters(environment, config.env),
        tables=setup.tables,
        vary={name: (float(low), float(high)) for name, (low, high) in config.env.randomize.items()},
        threads=threads(config),
        announce=announce,
        auto_reset=auto_reset,
        exploration=exploration,
        networks=networks,
        kept=kept,
        compares=compares,
        repeats=repeats(setup),
        debug=config.engine.debug,
        staggered=config.staggered and auto_reset,
        whole=not staggered,
        replaces=config.env.on_nan == "reset" and auto_reset,
    )


def repeats(setup: Setup) -> Callable[[RollOut], RollOut] | None:
    """Return what makes of a rollout on a GPU what repeats it as the plan says, or None."""
    by = setup.plan.repeated.by
    return Captured if by == "graphs" else partial(Joined, device=setup.device.torch) if by == "members" else None


def uncaptured(setup: Setup) -> Setup:
    """Return the same set-up without CUDA graphs, for simulators that run now and then."""
    return replace(setup, plan=replace(setup.plan, repeated=Choice("Python"))) if setup.plan.repeated.by == "graphs" else setup


def threads(config: Config) -> int:
    """Return how many CPU threads a run uses: what the config says, else the cores that this process may use."""
    return config.concurrency.threads or usable_cores()
