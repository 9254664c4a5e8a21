"""Which rank of a run does what. Light: no MPI, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from warprun.config.schema import AsyncConfig, Config, load_environment
from warprun.errors import UserError


@dataclass(frozen=True)
class Layout:
    """Ranks 0 to learners - 1 learn, the others act; each learner gets the rollouts of its own actors."""

    learners: int
    actors: int

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.learners + self.actors

    def name(self, rank: int) -> str:
        """Return a rank with its role, for messages: "rank 3 (actor 1)"."""
        role = f"learner {rank}" if rank < self.learners else f"actor {self.actor(rank)}"
        return f"rank {rank} ({role})"

    def actor(self, rank: int) -> int:
        """Return the number of the actor that `rank` is."""
        return rank - self.learners

    def rank(self, actor: int) -> int:
        """Return the rank of an actor."""
        return self.learners + actor

    def actors_of(self, learner: int) -> range:
        """Return the actors of a learner: equal shares, of which the first ones have one more if they do not come out even."""
        share, more = divmod(self.actors, self.learners)
        begin = learner * share + min(learner, more)
        return range(begin, begin + share + (learner < more))

    def learner_of(self, actor: int) -> int:
        """Return the learner of an actor."""
        return next(learner for learner in range(self.learners) if actor in self.actors_of(learner))


def layout(config: Config, size: int) -> Layout:
    """Return the layout of a run of `size` ranks. Raises UserError if they do not fit the settings."""
    concurrency, n_envs = config.concurrency, config.n_envs
    learners = concurrency.learners
    actors = size - learners
    if actors < learners:
        raise UserError(
            f"concurrency={concurrency.name}: every learner needs an actor, so concurrency.learners={learners} needs {2 * learners}"
            f" processes or more, not {size}"
        )
    if n_envs % actors:
        fitting = max(1, round(n_envs / actors)) * actors
        raise UserError(f"n_envs={n_envs} cannot be shared out evenly to {actors} actors; n_envs={fitting} can")
    if not isinstance(concurrency, AsyncConfig) and actors % learners:
        fewer, more = actors - actors % learners, actors // learners * learners + learners
        raise UserError(
            f"concurrency={concurrency.name}: {actors} actors cannot be shared out evenly to {learners} learners; {fewer} or {more} actors"
            f" can: start {fewer + learners} or {more + learners} processes"
        )
    config.agent.check_run(load_environment(config.env)[0].spec, envs_per_update(config, actors), config.total_steps)
    return Layout(learners, actors)


def envs_per_update(config: Config, actors: int) -> int:
    """Return the environments whose rollouts a learner takes in an update: those of all its actors (sync, seed), else of one."""
    return config.n_envs // (actors if isinstance(config.concurrency, AsyncConfig) else config.concurrency.learners)
