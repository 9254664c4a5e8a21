"""Compiles the kernels of an environment in another process, from the config alone, while the one that trains imports torch.

They are those that training calls first. If the run takes others in the end, for instance because the agent has more arrays, it compiles
them itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from warprun.config.planning import make_plan
from warprun.config.schema import Config, load_environment, make_tables, parameters
from warprun.environment import Environment
from warprun.kernels.kept import compile_here
from warprun.learning.settings.agent import group_config
from warprun.simulation import argument_types
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.targets import target_for
from warprun.simulation.kernel_module import make


def compile_kernels(config: Config) -> None:
    """Compile the kernels of an on-policy run on a CPU, unless another process does. Raises what they raise."""
    environment, _ = load_environment(config.env, config.concurrency.parallel)
    if not isinstance(environment, Environment):
        return
    vary = {name: (float(low), float(high)) for name, (low, high) in config.env.randomize.items()}
    target, replaces = target_for(environment, "cpu"), config.env.on_nan == "reset"
    run_plan, groups = make_plan(config, environment, "cpu"), [group.name for group in environment.groups]
    memory = tuple(name for name in groups if run_plan.fused and group_config(config.agent, name).network.remembers)
    given = config.n_envs, config.agent.horizon, tuple(vary)
    plan = ArrayPlan(environment, target, *given, replaces=replaces, staggered=config.staggered, memory=memory)
    tables = make_tables(environment, config.env)
    built = make(plan, config.env.name, "cpu", params=parameters(environment, config.env), tables=tables, vary=vary)
    assert built.module.__file__
    os.utime(Path(built.module.__file__).parent)  # newer than the sources, see `ahead.expect`
    of_step = argument_types.of_step(built, plan)
    if run_plan.fused:
        compile_here(built.module.rollout, argument_types.of_rollout(built, plan))
    else:
        compile_here(built.module.step, of_step)
        compile_here(built.module.sample, of_step)
    compile_here(built.module.reset, of_step)
