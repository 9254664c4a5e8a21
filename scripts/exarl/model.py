"""A discrete-event model of the protocols: when learners and actors work and wait, from the times of what they do.

It assumes that every process has a core, that the network is never busy, that gradients of L learners are averaged in log2(L) rounds, and
that times vary by a lognormal factor. It knows nothing of learning.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import simpy

Steps = Generator[Any, Any, None]
WARM_UP = 0.2
"""Share of the updates before counting begins."""
LOOK_S = 1e-3
"""Seconds until a learner looks again at actors that have not shown their first rollout."""


@dataclass(frozen=True)
class Times:
    """Seconds."""

    train: float
    """An update of one learner without averaging gradients."""
    act: float
    """A rollout, beside what is below."""
    push: float = 0.0
    """Putting a rollout into the actor's own memory."""
    pop: float = 0.0
    """Taking one from an actor's memory."""
    show: float = 0.0
    """Showing weights in the learner's own memory."""
    read: float = 0.0
    """Reading them from there."""
    message: float = 0.0
    """A rollout or weights from rank to rank, from the call that sends to the end of the call that receives."""
    average: float = 0.0
    """A round of averaging gradients."""
    pause: float = 1e-3
    """Longest sleep of a rank that waits; it looks after sleeps that grow to a third of the time that it has waited."""
    spread: float = 0.0
    """Standard deviation of the logarithm of `train` and `act`."""


class Outcome(NamedTuple):
    """What happened after the warm-up."""

    rate: float
    """Rollouts learned from per second, repetitions included."""
    unique: float
    """Rollouts learned from for the first time, per second."""
    lag: float
    """Mean number of updates between the weights that made a rollout and those that learn from it."""


class Rollout(NamedTuple):
    """A rollout on its way."""

    actor: int
    sequence: int
    version: int


class World:
    """What learners and actors of one simulated run share."""

    def __init__(self, times: Times, learners: int, actors: int, places: int, seed: int) -> None:
        """`places`: rollouts in the queue of an actor."""
        self.times, self.learners, self.actors = times, learners, actors
        self.env, self.rng = simpy.Environment(), np.random.default_rng(seed)
        self.version = 0
        """Updates so far; all learners have the same weights."""
        self.rings = [simpy.Store(self.env, places) for _ in range(actors)]
        self.newest: list[Rollout | None] = [None] * actors
        self.mail = [simpy.Store(self.env) for _ in range(learners)]
        self.weights = [simpy.Store(self.env) for _ in range(actors)]
        self.arrived = [self.env.event() for _ in range(learners)]
        self._together, self._there = self.env.event(), 0
        self._learned: list[tuple[float, int, Rollout]] = []
        """Time, version and rollout of what was learned from."""

    def own(self, learner: int) -> list[int]:
        """Return the actors of a learner."""
        return [actor for actor in range(self.actors) if self.learner_of(actor) == learner]

    def learner_of(self, actor: int) -> int:
        """Return the learner of an actor: equal shares, and the first learners have one more if they do not come out even."""
        share, more = divmod(self.actors, self.learners)
        large = more * (share + 1)
        return actor // (share + 1) if actor < large else more + (actor - large) // share

    def drawn(self, mean: float) -> float:
        """Return a time that varies."""
        spread = self.times.spread
        return mean * math.exp(self.rng.normal(-0.5 * spread * spread, spread)) if spread else mean

    def wait(self, event: Any) -> Steps:
        """Wait for an event as a rank does: it sleeps, and looks."""
        began = self.env.now
        value = yield event
        waited = self.env.now - began
        yield self.env.timeout(self.rng.uniform(0.0, min(self.times.pause, waited / 3.0)))
        return value

    def take(self, seconds: float) -> Any:
        """Return the event that `seconds` have passed."""
        return self.env.timeout(seconds)

    def note(self, rollout: Rollout) -> None:
        """Note that an update learns from a rollout."""
        self._learned.append((self.env.now, self.version, rollout))

    def update(self, rollout: Rollout) -> Steps:
        """Learn from a rollout, together with all other learners."""
        self.note(rollout)
        yield self.take(self.drawn(self.times.train))
        self._there += 1
        if self._there < self.learners:
            yield self._together
        else:
            together, self._together, self._there = self._together, self.env.event(), 0
            self.version += 1
            together.succeed()
        yield self.take(self.times.average * math.log2(self.learners))

    def tell(self, learner: int) -> None:
        """Tell a learner that something has arrived."""
        arrived, self.arrived[learner] = self.arrived[learner], self.env.event()
        arrived.succeed()

    def outcome(self) -> Outcome:
        """Return what happened after the warm-up."""
        first = int(WARM_UP * len(self._learned))
        seen = {(rollout.actor, rollout.sequence) for _, _, rollout in self._learned[:first]}
        counted = self._learned[first:]
        new = {(rollout.actor, rollout.sequence) for _, _, rollout in counted} - seen
        elapsed = counted[-1][0] - counted[0][0]
        share = (len(counted) - self.learners) / len(counted)
        lag = float(np.mean([version - rollout.version for _, version, rollout in counted]))
        return Outcome(len(counted) * share / elapsed, len(new) * share / elapsed, lag)

    @property
    def learned(self) -> int:
        """Rollouts learned from, repetitions included."""
        return len(self._learned)


def message_actor(world: World, actor: int) -> Steps:
    """Wait for weights, make a rollout, send it."""
    sequence = 0
    while True:
        version = yield from world.wait(world.weights[actor].get())
        yield world.take(world.drawn(world.times.act))
        yield world.take(world.times.message)
        world.mail[world.learner_of(actor)].put(Rollout(actor, sequence, version))
        sequence += 1


def async_learner(world: World, learner: int) -> Steps:
    """Answer with weights, and take the next rollout."""
    answers = world.own(learner)
    while True:
        for actor in answers:
            yield world.take(world.times.message)
            world.weights[actor].put(world.version)
        rollout = yield from world.wait(world.mail[learner].get())
        answers = [rollout.actor]
        yield from world.update(rollout)


def central_actor(world: World, actor: int) -> Steps:
    """As `message_actor`, with learner 0."""
    sequence = 0
    while True:
        version = yield from world.wait(world.weights[actor].get())
        yield world.take(world.drawn(world.times.act))
        world.mail[0].put(Rollout(actor, sequence, version))
        sequence += 1


def central_learner(world: World, learner: int) -> Steps:
    """EXARL's `mlasync_learner`: learner 0 receives a rollout for each learner, passes them on, all train, and learner 0 answers."""
    if learner:
        while True:
            rollout = yield from world.wait(world.mail[learner].get())
            yield from world.update(rollout)
    answers = list(range(world.actors))
    while True:
        for actor in answers:
            yield world.take(world.times.message)
            world.weights[actor].put(world.version)
        batch = []
        while len(batch) < world.learners:
            batch.append((yield from world.wait(world.mail[0].get())))
            yield world.take(world.times.message)
        for other in range(1, world.learners):
            yield world.take(world.times.message)
            world.mail[other].put(batch[other])
        yield from world.update(batch[0])
        answers = [rollout.actor for rollout in batch]


def ring_actor(world: World, actor: int) -> Steps:
    """Read weights, make a rollout, push it as soon as there is room."""
    sequence, learner = 0, world.learner_of(actor)
    while True:
        yield world.take(world.times.read)
        version = world.version
        yield world.take(world.drawn(world.times.act) + world.times.push)
        yield from world.wait(world.rings[actor].put(Rollout(actor, sequence, version)))
        world.tell(learner)
        sequence += 1


def ring_learner(world: World, learner: int) -> Steps:
    """Take the oldest rollouts of the own actors in turn."""
    own, turn = world.own(learner), 0
    while True:
        yield world.take(world.times.show)
        while not any(world.rings[actor].items for actor in own):
            yield from world.wait(world.arrived[learner])
        while not world.rings[own[turn % len(own)]].items:
            turn += 1
        rollout = yield world.rings[own[turn % len(own)]].get()
        turn += 1
        yield world.take(world.times.pop)
        yield from world.update(rollout)


def showing_actor(world: World, actor: int) -> Steps:
    """Read weights, make a rollout, show it in the place of the one before."""
    sequence = 0
    while True:
        yield world.take(world.times.read)
        version = world.version
        yield world.take(world.drawn(world.times.act) + world.times.push)
        world.newest[actor] = Rollout(actor, sequence, version)
        sequence += 1


def reading_learner(world: World, choose: Callable[[], int]) -> Steps:
    """Read the newest rollout of the actor that `choose` gives for each try."""
    while True:
        yield world.take(world.times.show)
        while (rollout := world.newest[choose()]) is None:
            yield world.take(LOOK_S)
        yield world.take(world.times.pop)
        yield from world.update(rollout)


def range_learner(world: World, learner: int) -> Steps:
    """Read the newest rollouts of the own actors in turn."""
    turns = itertools.cycle(world.own(learner))
    yield from reading_learner(world, lambda: next(turns))


def random_learner(world: World, learner: int) -> Steps:
    """Read the newest rollout of any actor."""
    yield from reading_learner(world, lambda: int(world.rng.integers(world.actors)))


PROTOCOLS: dict[str, tuple[Callable[[World, int], Steps], Callable[[World, int], Steps]]] = {
    "async": (message_actor, async_learner),
    "exarl_async": (central_actor, central_learner),
    "queue": (ring_actor, ring_learner),
    "range": (showing_actor, range_learner),
    "random": (showing_actor, random_learner),
}
"""Name -> what an actor and a learner do. `queue`, `range` and `random` are those of `rma`."""


def simulate(protocol: str, learners: int, actors: int, times: Times, rollouts: int, places: int = 2, seed: int = 0) -> Outcome:
    """Return what happens until `rollouts` are learned from."""
    world = World(times, learners, actors, places, seed)
    act, learn = PROTOCOLS[protocol]
    for actor in range(actors):
        world.env.process(act(world, actor))
    for learner in range(learners):
        world.env.process(learn(world, learner))
    while world.learned < rollouts:
        world.env.step()
    return world.outcome()
