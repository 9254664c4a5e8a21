"""Whether the settings of a run fit its processes. Light: no MPI, no torch."""

from __future__ import annotations

from warprun.config.schema import AsyncConfig, Config, SyncConfig, load_environment
from warprun.errors import UserError
from warprun.ranks import Layout, fit


def layout(config: Config, size: int) -> Layout:
    """Return the layout of a run of `size` processes. Raises UserError if they do not fit the settings."""
    concurrency, n_envs = config.concurrency, config.n_envs
    assert isinstance(concurrency, SyncConfig)
    learners = concurrency.learners
    found = fit(size, learners, concurrency.ranks_per_env)
    actors = found.actors
    if n_envs % actors:
        fitting = concurrency.shareable(n_envs, size)
        raise UserError(f"n_envs={n_envs} cannot be shared out evenly to {actors} actors; n_envs={fitting} can")
    if not isinstance(concurrency, AsyncConfig) and actors % learners:
        few, many = actors // learners * learners, (actors // learners + 1) * learners
        start = [learners + count * concurrency.ranks_per_env for count in (few, many)]
        raise UserError(
            f"concurrency={concurrency.name}: {actors} actors cannot be shared out evenly to {learners} learners; {few} or {many} actors"
            f" can: start {start[0]} or {start[1]} processes"
        )
    config.agent.check_run(load_environment(config.env, concurrency.parallel)[0].spec, envs_per_update(config, actors), config.total_steps)
    return found


def envs_per_update(config: Config, actors: int) -> int:
    """Return the environments whose rollouts a learner takes in an update: those of all its actors (sync, seed), else of one."""
    return config.n_envs // (actors if isinstance(config.concurrency, AsyncConfig) else config.concurrency.learners)
