"""Put the defaults that follow from a run, see `algorithms.defaults`, into its config."""

from __future__ import annotations

from dataclasses import replace

from warprun.algorithms.defaults import Size, derive
from warprun.config.batched import BatchedEnvironment
from warprun.config.checks import check_values
from warprun.config.registry import cuts_off
from warprun.config.schema import Config, free, load_environment, written
from warprun.environment import Environment
from warprun.learning.settings.agent import check_groups
from warprun.processes import fit, started


def with_defaults(config: Config) -> Config:
    """Return a config in which the settings of the agent that nobody has given follow from the run. Raises UserError."""
    names, parallel = free(config), config.concurrency.parallel
    if not names or (parallel.ranks_per_env > 1 and config.concurrency.starts()):  # the processes do it: this one has no communicator
        return config
    check_values(config)
    environment = load_environment(config.env, parallel)[0]
    spec = environment.spec
    check_groups(config.agent, [group.name for group in spec.groups])
    batched = isinstance(environment, Environment | BatchedEnvironment)
    size = Size(config.n_envs, learned_envs(config), config.total_steps, batched, spec.time_limit, cuts_off(environment))
    agent = derive(config.agent, names, spec, size)
    of_groups = [(f"groups.{group}.{name}", value) for group, own in agent.groups.items() for name, value in own.items() if name in names]
    found = [written(name, value) for name, value in [*((name, getattr(agent, name)) for name in names), *of_groups]]
    return replace(config, agent=agent, origin=replace(config.origin, derived=found))


def learned_envs(config: Config) -> int:
    """Return the environments that an update of one learner learns from, at least 1."""
    concurrency, n_envs = config.concurrency, config.n_envs
    size = concurrency.wanted or started()
    if not concurrency.has_actors:
        return max(1, n_envs // size)
    learners, ranks_per_env = concurrency.parallel
    if min(learners, ranks_per_env) < 1 or size < learners * (1 + ranks_per_env):
        return n_envs  # the check of the processes says what is wrong
    actors = fit(size, learners, ranks_per_env).actors
    together = 1 if concurrency.one_by_one else max(1, actors // learners)
    return max(1, n_envs // actors * together)
