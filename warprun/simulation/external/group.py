"""Environments that are parallel programs: a group of ranks makes all calls of an environment together. No torch.

The first rank of a group leads: its code calls an environment as any other, and each call is made by all ranks of the group with the same
arguments. What the first one returns counts. The others serve: they wait for calls.

Every actor leads a group. Rank 0, which evaluates and learns the spaces of the environment, leads one too: itself and the ranks that serve
the first actor. These have two leaders, whose calls they make one after the other; the first of them decides on the order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI

from warprun.agreement import wait
from warprun.ranks import Layout
from warprun.simulation.external.recipe import Closes, Recipe, SavesState

T = TypeVar("T")
Wait = Callable[[Callable[[], bool]], None]
"""Waits until something is done, or raises because another rank has failed."""


class Call(NamedTuple):
    """What the ranks of a group do together; everything in it can be pickled."""

    environment: int
    """Its number among those of the leader; -1: the leader makes no more calls for now."""
    method: str
    """Empty: make it, with a `Recipe` as the only argument."""
    arguments: tuple[Any, ...]
    named: dict[str, int]


RELEASE = Call(-1, "", (), {})


class Group:
    """A leader and the ranks that serve it, on each of them; every one of them makes one."""

    def __init__(self, leader: int, servers: Sequence[int], tag: int) -> None:
        """Ranks are those of all processes. `tag`: no other group that is made has it."""
        world = MPI.COMM_WORLD
        self._comm = world.Create_group(world.group.Incl([leader, *servers]), tag)
        self._calls = MPI.Intracomm(self._comm.Dup())
        self._environments: dict[int, Any] = {}
        self._comms: dict[int, MPI.Intracomm] = {}

    def make(self, number: int, recipe: Recipe) -> Any:
        """Make an environment, together with the others; it gets a communicator of its own."""
        self._comms[number] = MPI.Intracomm(self._comm.Dup())
        made = recipe.make_with(self._comms[number])
        self._environments[number] = made
        return made

    def tell(self, call: Call) -> None:
        """Send a call to the first rank that serves, as the leader."""
        request = self._calls.isend(call, 1)
        wait(lambda: bool(request.Test()))

    def heard(self) -> Call | None:
        """Return the next call of the leader, on the first rank that serves; None if there is none yet."""
        message = self._calls.improbe(0)
        return None if message is None else message.recv()

    def execute(self, call: Call) -> None:
        """Make a call as one that serves."""
        if call.method:
            getattr(self._environments[call.environment], call.method)(*call.arguments, **call.named)
        else:
            self.make(call.environment, *call.arguments)
        if call.method == "close":
            self.forget(call.environment)

    def forget(self, number: int) -> None:
        """Give back the communicator of an environment that is closed."""
        self._environments.pop(number, None)
        self._comms.pop(number).Free()


class Led:
    """An environment of a group, as its leader sees it."""

    def __init__(self, group: Group, number: int, own: Any) -> None:
        """`own`: the part of the environment that this process has."""
        self._group, self._number, self._own = group, number, own
        self._failed = False
        self.observation_space, self.action_space = own.observation_space, own.action_space

    def reset(self, **seed: int) -> Any:
        return self._all("reset", **seed)

    def step(self, action: Any) -> Any:
        return self._all("step", action)

    def close(self) -> None:
        # After a failure the other ranks may still wait within the call, and would take a message of `close` for its answer.
        if isinstance(self._own, Closes) and not self._failed:
            self._all("close")
            self._group.forget(self._number)

    def _all(self, method: str, *arguments: Any, **named: int) -> Any:
        self._group.tell(Call(self._number, method, arguments, named))
        try:
            return getattr(self._own, method)(*arguments, **named)
        except BaseException:
            self._failed = True
            raise


class LedWithState(Led):
    """A `Led` that a resumed run continues exactly; what `get_state` returns on the leader is the state of all."""

    def get_state(self) -> np.ndarray:
        return np.asarray(self._all("get_state"))

    def set_state(self, state: np.ndarray) -> None:
        self._all("set_state", state)


class Place:
    """What this process is in the groups of a run, or of a command in which all others serve rank 0."""

    def __init__(self, layout: Layout, attended: bool) -> None:
        """Every process makes one at the same time. `attended`: the others serve rank 0 all the time."""
        self.layout, self.attended = layout, attended
        rank, first = MPI.COMM_WORLD.rank, layout.servers(0)
        self._rank = rank
        leaders = {layout.leader(actor): layout.servers(actor) for actor in range(layout.actors)}
        own: dict[int, Group] = {}
        # Rank 0 is the first actor itself if nobody learns.
        for leader, servers in ({0: first} | leaders).items():
            if rank == leader or rank in servers:
                own[leader] = Group(leader, servers, leader)
        self.led = own.get(rank)
        """The group that this process leads."""
        self._serves = {leader: group for leader, group in own.items() if leader != rank}
        self._numbers = itertools.count()
        self._together: MPI.Intracomm | None = None
        """Those that serve the same actor."""
        if self._serves:
            servers, world = layout.servers(layout.actor_of(rank)), MPI.COMM_WORLD
            self._together = world.Create_group(world.group.Incl(servers), layout.leader(layout.actor_of(rank)))

    @property
    def name(self) -> str:
        """This rank with its role, for messages."""
        return self.layout.name(self._rank)

    def lead(self, recipe: Recipe) -> Led:
        """Make an environment with the group that this process leads."""
        assert self.led is not None, "this process leads no group"
        number = next(self._numbers)
        self.led.tell(Call(number, "", (recipe,), {}))
        own = self.led.make(number, recipe)
        return (LedWithState if isinstance(own, SavesState) else Led)(self.led, number, own)

    def serves(self, leader: int) -> bool:
        """Return whether this process serves a leader."""
        return leader in self._serves

    def serve(self, leaders: Sequence[int] | None = None, patience: Wait = wait) -> None:
        """Make the calls of leaders, None: of all that this process serves, until each of them has said that it makes no more."""
        active = list(self._serves) if leaders is None else list(leaders)
        assert self._together is not None
        while active:
            leader, call = self._next(active, patience)
            if call == RELEASE:
                active.remove(leader)
            else:
                self._serves[leader].execute(call)

    def release(self) -> None:
        """Say, as a leader, that there are no more calls for now."""
        if self.led:
            self.led.tell(RELEASE)

    def _next(self, active: list[int], patience: Wait) -> tuple[int, Call]:
        """Return the next call and its leader: the first of those that serve takes one, in turn if there are several, and tells it."""
        together = self._together
        assert together is not None
        if together.rank:
            told: tuple[int, Call] = _first(lambda: together.improbe(0), patience).recv()
            return told
        leader, call = _first(lambda: self._heard(active), patience)
        requests = [together.isend((leader, call), rank) for rank in range(1, together.size)]
        patience(lambda: all(request.Test() for request in requests))
        active.append(active.pop(active.index(leader)))  # the others come first next time
        return leader, call

    def _heard(self, active: list[int]) -> tuple[int, Call] | None:
        calls = ((leader, self._serves[leader].heard()) for leader in active)
        return next(((leader, call) for leader, call in calls if call is not None), None)


def _first(look: Callable[[], T | None], patience: Wait) -> T:
    """Return the first result of `look` that is not None."""
    found: list[T] = []

    def has_come() -> bool:
        seen = look()
        if seen is not None:
            found.append(seen)
        return seen is not None

    patience(has_come)
    return found[0]
