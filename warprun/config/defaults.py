"""Put the defaults that follow from a run, see `algorithms.defaults`, into its config."""

from __future__ import annotations

from dataclasses import replace

from warprun.algorithms.defaults import derive
from warprun.config.checks import check_values
from warprun.config.schema import Config, free, load_environment
from warprun.learning.settings import check_groups, check_settings


def with_defaults(config: Config) -> Config:
    """Return a config in which the settings of the agent that nobody has given follow from the run. Raises UserError."""
    names, parallel = free(config), config.concurrency.parallel
    if not names or (parallel.ranks_per_env > 1 and config.concurrency.starts()):  # the processes do it: this one has no communicator
        return config
    check_values(config)
    check_settings(config.agent)
    spec = load_environment(config.env, parallel)[0].spec
    check_groups(config.agent, [group.name for group in spec.groups])
    agent = derive(config.agent, names, spec, config.n_envs, config.total_steps)
    of_groups = [(f"groups.{group}.{name}", value) for group, own in agent.groups.items() for name, value in own.items() if name in names]
    found = [f"agent.{name}={value}" for name, value in [*((name, getattr(agent, name)) for name in names), *of_groups]]
    return replace(config, agent=agent, origin=replace(config.origin, derived=found))
