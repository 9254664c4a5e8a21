"""`concurrency=rma`: one-sided memory. Actors show rollouts in their own memory; learners take them, and show weights.

Neither side waits for the other's code: an actor only for room in its ring, a learner only for a rollout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from warprun.parallel.exchange import LearnerExchange, RolloutBuffer, WeightsBuffer
from warprun.parallel.window import WORD, Board, Ring, Window, bit_words, bits
from warprun.parallel.world import World
from warprun.simulation.simulator import Act

TICKETS, LIMIT, MADE, OVER, ENDED = (WORD * n for n in range(5))
"""Words of rank 0: rollouts that actors have begun; how many they shall make; how many they have made; 1 if the run is
over; a bit for each actor that makes no more."""
ROOT = 0
"""The rank that has these words."""
Takes = Callable[[RolloutBuffer], bool | None]
"""How a learner takes a rollout: returns False if there is none now, and None if there will be none any more."""


class Shared:
    """The memory of all ranks of a run."""

    def __init__(self, world: World, weights_bytes: int, rollout_bytes: int, places: int) -> None:
        """`places`: those of a ring; 0: actors show only their newest rollout."""
        self.world, self.layout = world, world.layout
        control = WORD * (5 + bit_words(self.layout.actors))
        of_learner = control + Board.bytes(weights_bytes)
        of_actor = Ring.bytes(places, rollout_bytes) if places else Board.bytes(rollout_bytes)
        self.window = Window(world.comm, of_learner if world.is_learner else of_actor)
        world.shared.callback(self.window.free)
        self.weights = Board(self.window, control, weights_bytes)
        self.ring = Ring(self.window, 0, places, rollout_bytes)
        self.newest = Board(self.window, 0, rollout_bytes)
        if places and not world.is_learner:
            self.ring.begin()
        world.barrier()

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return bool(self.window.read(ROOT, OVER))

    def ended(self) -> list[bool]:
        """Return, for each actor, whether it makes no more rollouts; all that it has made can be seen then."""
        return bits(self.window, ROOT, ENDED, self.layout.actors)


Shows = Callable[[Shared, int, RolloutBuffer], None]
"""How an actor shows its rollout with a number, counted from 0, to the learners."""


def push(shared: Shared, number: int, rollout: RolloutBuffer) -> None:
    """Push a rollout to the ring as soon as there is room; at the end of the run throw it away."""
    shared.world.wait(lambda: shared.ring.has_room(number) or shared.is_over)
    if not shared.is_over:
        shared.ring.push(number, rollout.memory)


def replace(shared: Shared, number: int, rollout: RolloutBuffer) -> None:
    """Show a rollout in the place of the one before."""
    shared.newest.show(number + 1, rollout.memory)


class RmaActor:
    """An `ActorExchange` that shows its rollouts in its own memory."""

    def __init__(self, shared: Shared, weights: WeightsBuffer, act: Act, show: Shows) -> None:
        self._shared, self._weights, self.act, self._show = shared, weights, act, show
        self._actor = shared.world.actor
        self._learner = shared.layout.learner_of(self._actor)
        self._made = 0
        self._number = 0
        """Of the weights in the buffer."""

    def latest(self) -> bool:
        """Bring the newest weights, waiting only for the first ones."""
        shared, board = self._shared, self._shared.weights
        shared.world.wait(lambda: self._number > 0 or board.number(self._learner) > 0)
        if shared.is_over or shared.window.add(ROOT, TICKETS, 1) >= shared.window.read(ROOT, LIMIT):
            shared.window.set_bit(ROOT, ENDED, self._actor)
            return False
        if board.number(self._learner) != self._number:
            shared.world.wait(self._read)
        return True

    def send(self, rollout: RolloutBuffer) -> None:
        """Show a rollout to the learners."""
        self._show(self._shared, self._made, rollout)
        self._made += 1
        self._shared.window.add(ROOT, MADE, 1)

    def _read(self) -> bool:
        number = self._shared.weights.read(self._learner, self._weights.memory)
        self._number = number or self._number
        return number > 0


class RmaLearner(LearnerExchange):
    """Takes rollouts from the memory of actors."""

    def __init__(self, shared: Shared, take: Takes, consumes: bool) -> None:
        """`consumes`: whether a rollout is taken once only."""
        self._shared, self._take, self._consumes = shared, take, consumes
        self._version = -1

    def begin(self, rollouts: int) -> None:
        """Say how many rollouts the actors shall make."""
        if self._shared.world.rank == ROOT:
            self._shared.window.write(ROOT, LIMIT, rollouts)
        self._shared.world.wait(self._shared.world.peers.Ibarrier().Test)

    def publish(self, weights: WeightsBuffer) -> None:
        if weights.version != self._version:
            self._version = weights.version
            self._shared.weights.show(weights.version + 1, weights.memory)

    def receive(self, into: Sequence[RolloutBuffer], act: Act) -> int:
        """Take rollouts, waiting for them; fewer than asked for if no actor makes any more and all have been taken."""
        for found, rollout in enumerate(into):
            taken: bool | None = False

            def arrived(rollout: RolloutBuffer = rollout) -> bool:
                nonlocal taken
                taken = self._take(rollout)
                return taken is not False

            self._shared.world.wait(arrived)
            if taken is None:
                return found
        return len(into)

    def made(self) -> int | None:
        """Return how many rollouts the actors have made, if they are not all received."""
        return None if self._consumes else self._shared.window.read(ROOT, MADE)

    def close(self) -> None:
        """Say that the run is over."""
        if self._shared.world.rank == ROOT:
            self._shared.window.write(ROOT, OVER, 1)


class FromRings:
    """Take the oldest rollouts of the own actors in turn, and, when these make no more, those of all others."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._own = list(shared.layout.actors_of(shared.world.rank))
        self._all = range(shared.layout.actors)
        self._turn = 0

    def __call__(self, into: RolloutBuffer) -> bool | None:
        if self._pop(self._own, into):
            return True
        # Read before the second look: what an actor makes before its end can be seen then.
        ended = self._shared.ended()
        if not all(ended[actor] for actor in self._own):
            return False
        if self._pop(self._all, into):
            return True
        return None if all(ended) else False

    def _pop(self, actors: Sequence[int], into: RolloutBuffer) -> bool:
        for n in range(len(actors)):
            turn = (self._turn + n) % len(actors)
            if self._shared.ring.pop(self._shared.layout.rank(actors[turn]), into.memory):
                self._turn = turn + 1
                return True
        return False


def takes(window: str, shared: Shared, seed: int) -> Takes:
    """Return how a learner takes rollouts by the setting `concurrency.window`; `seed`: of what it draws."""
    if window == "queue":
        return FromRings(shared)
    rng, own = np.random.default_rng(seed), itertools.cycle(shared.layout.actors_of(shared.world.rank))
    actor = (lambda: int(rng.integers(shared.layout.actors))) if window == "random" else own.__next__
    return lambda into: shared.newest.read(shared.layout.rank(actor()), into.memory) > 0
