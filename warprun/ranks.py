"""Which process of a run does what. Light: no MPI, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from warprun.errors import UserError


@dataclass(frozen=True)
class Layout:
    """Processes 0 to learners - 1 learn. The others are groups of `ranks_per_env` consecutive ones: the first of a group is an actor, the
    rest of it serves its environments. Each learner gets the rollouts of its own actors.

    Processes are numbered as MPI does. Learners and actors among themselves, without those that serve, have the numbers of `rank`.
    """

    learners: int
    actors: int
    ranks_per_env: int = 1

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.learners + self.actors * self.ranks_per_env

    def name(self, process: int) -> str:
        """Return a process with its role, for messages: "rank 3 (actor 1)"."""
        if process < self.learners:
            return f"rank {process} (learner {process})"
        actor, place = divmod(process - self.learners, self.ranks_per_env)
        role = f"serves the environment of actor {actor}" if place else f"actor {actor}"
        return f"rank {process} ({role})"

    def serves(self, process: int) -> bool:
        """Return whether a process only serves the environments of an actor."""
        return process >= self.learners and (process - self.learners) % self.ranks_per_env > 0

    def leader(self, actor: int) -> int:
        """Return the process that an actor is."""
        return self.learners + actor * self.ranks_per_env

    def servers(self, actor: int) -> list[int]:
        """Return the processes that serve the environments of an actor."""
        return list(range(self.leader(actor) + 1, self.leader(actor) + self.ranks_per_env))

    def actor_of(self, process: int) -> int:
        """Return the actor that a process is, or serves."""
        return (process - self.learners) // self.ranks_per_env

    def actor(self, rank: int) -> int:
        """Return the number of the actor that `rank`, counted without processes that serve, is."""
        return rank - self.learners

    def rank(self, actor: int) -> int:
        """Return the rank of an actor, counted without processes that serve."""
        return self.learners + actor

    def actors_of(self, learner: int) -> range:
        """Return the actors of a learner: equal shares, of which the first ones have one more if they do not come out even."""
        share, more = divmod(self.actors, self.learners)
        begin = learner * share + min(learner, more)
        return range(begin, begin + share + (learner < more))

    def learner_of(self, actor: int) -> int:
        """Return the learner of an actor."""
        return next(learner for learner in range(self.learners) if actor in self.actors_of(learner))


def fit(size: int, learners: int, ranks_per_env: int) -> Layout:
    """Return the layout of `size` processes. Raises UserError if there is none."""
    actors, left = divmod(size - learners, ranks_per_env)
    if actors < learners:
        of_each = "" if ranks_per_env == 1 else f" of {ranks_per_env} processes"
        raise UserError(
            f"every learner needs an actor{of_each}, so concurrency.learners={learners} needs {learners * (1 + ranks_per_env)} processes or"
            f" more, not {size}"
        )
    if left:
        below = size - left
        raise UserError(
            f"concurrency.ranks_per_env={ranks_per_env}: {size} processes do not fit; with learners={learners} start {below} or"
            f" {below + ranks_per_env}"
        )
    return Layout(learners, actors, ranks_per_env)
