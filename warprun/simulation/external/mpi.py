"""Environments that are MPI programs: a group of ranks makes all calls of an environment together. No torch.

The first rank of a group leads: its code calls an environment as any other, and all ranks of the group make each call
with the same arguments. What the first one returns counts. The others serve: they wait for calls.

Every actor leads a group. Rank 0, which evaluates and learns the spaces of the environment, leads one too: itself and
the ranks that serve the first actor. These have two leaders, whose calls they make one after the other; the first of
them decides on the order. MPI is imported only where a process joins a group: most processes are in none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from warprun import processes
from warprun.errors import UserError, one_line
from warprun.processes import Layout, MpiRanks, fit, wait
from warprun.simulation.external.recipe import Closes, ExternalEnvironment, Recipe, SavesState, Stepped, told

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
Wait = Callable[[Callable[[], bool]], object]
"""Waits until something is done, or raises because another rank has failed."""


class Call(NamedTuple):
    """A call that the ranks of a group make together; everything in it can be pickled."""

    environment: int
    """Its number among those of the leader; -1: the leader makes no more calls for now."""
    method: str = ""
    """Empty: make it, with a `Recipe` as the only argument."""
    arguments: tuple[Any, ...] = ()
    named: dict[str, int] = {}  # noqa: RUF012


RELEASE = Call(-1)


class Group:
    """A leader and the ranks that serve it, on each of them; every one of them makes one."""

    def __init__(self, world: MPI.Intracomm, leader: int, servers: Sequence[int]) -> None:
        """Ranks are those of `world`."""
        self._comm = world.Create_group(world.group.Incl([leader, *servers]), leader)
        self._calls = self._comm.Dup()
        self._made: dict[int, tuple[Stepped, MPI.Intracomm]] = {}
        """Environments that are not closed, each with its communicator."""

    def make(self, number: int, recipe: Recipe) -> Stepped:
        """Make an environment, together with the others; it gets a communicator of its own."""
        comm = self._comm.Dup()
        made = recipe.make_with(comm)
        self._made[number] = made, comm
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
            getattr(self._made[call.environment][0], call.method)(*call.arguments, **call.named)
        else:
            self.make(call.environment, *call.arguments)
        if call.method == "close":
            self.forget(call.environment)

    def forget(self, number: int) -> None:
        """Give back the communicator of an environment that is closed."""
        self._made.pop(number)[1].Free()


class Led:
    """An environment of a group, as its leader sees it."""

    def __init__(self, group: Group, number: int, own: Stepped) -> None:
        """`own`: the part of the environment that this process has."""
        self._group, self._number, self._own = group, number, own
        self._failed = False
        self.observation_space, self.action_space = own.observation_space, own.action_space

    def reset(self, **seed: int) -> tuple[object, dict[str, object]]:
        return self._all("reset", **seed)

    def step(self, action: object) -> tuple[object, float, bool, bool, dict[str, object]]:
        return self._all("step", action)

    def close(self) -> None:
        # After a failure the others may still wait within the call, and would take a message of `close` for its answer.
        if isinstance(self._own, Closes) and not self._failed:
            self._all("close")
            self._group.forget(self._number)

    def _all(self, method: str, *arguments: object, **named: int) -> Any:
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


class MpiRole:
    """The part of this process in the groups of a run, or of a command in which all others serve rank 0."""

    def __init__(self, world: MPI.Intracomm, layout: Layout, attended: bool = False) -> None:
        """Every process makes one at the same time. `attended`: the others serve rank 0 all the time."""
        self.layout, self.attended, self._rank = layout, attended, world.rank
        # Rank 0 is the first actor itself if nobody learns.
        groups = {0: layout.servers(0)} | {layout.leader(actor): layout.servers(actor) for actor in range(layout.actors)}
        own = {leader: Group(world, leader, servers) for leader, servers in groups.items() if self._rank == leader or self._rank in servers}
        self.led = own.pop(self._rank, None)
        """The group that this process leads."""
        self._serves, self._numbers = own, itertools.count()
        if own:
            actor = layout.actor_of(self._rank)
            self._together = world.Create_group(world.group.Incl(layout.servers(actor)), layout.leader(actor))
            """Those that serve the same actor."""

    @property
    def name(self) -> str:
        """This rank with its role, for messages."""
        return self.layout.name(self._rank)

    def lead(self, recipe: Recipe) -> Led:
        """Make an environment with the group that this process leads."""
        assert self.led is not None, "this process leads no group"
        number = next(self._numbers)
        self.led.tell(Call(number, arguments=(recipe,)))
        own = self.led.make(number, recipe)
        return (LedWithState if isinstance(own, SavesState) else Led)(self.led, number, own)

    def serves(self, leader: int) -> bool:
        """Return whether this process serves a leader."""
        return leader in self._serves

    def serve(self, leaders: Sequence[int] | None = None, patience: Wait = wait) -> None:
        """Make the calls of leaders, None: of all that this process serves, until each says that it makes no more."""
        active = list(self._serves if leaders is None else leaders)
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
        """Return the next call and its leader: the first of those that serve takes calls in turn, and tells them."""
        together = self._together
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


here: MpiRole | None = None
"""The role of this process in the groups of a run or command; None if there are none."""


def attend() -> MpiRole:
    """Let all processes be the group of rank 0 from now on; every process calls this."""
    global here
    from mpi4py import MPI

    here = MpiRole(MPI.COMM_WORLD, Layout(0, 1, MPI.COMM_WORLD.size), attended=True)
    return here


def make(recipe: Recipe, **num_envs: int) -> Any:
    """Return a new environment, made with the group that this process leads if several ranks step it.

    Whatever its code raises passes.
    """
    if recipe.ranks == 1:
        return recipe.make(**num_envs)
    assert here is not None, "no rank serves this process"
    return here.lead(recipe)


def release() -> None:
    """Let the ranks that serve this process, if there are any, know that it makes no more calls for now."""
    if here is not None:
        here.release()


@contextmanager
def leading() -> Iterator[None]:
    """Make calls of environments, and let the ranks that serve know the end."""
    try:
        yield
    finally:
        release()


_known: dict[str, ExternalEnvironment] = {}
"""What the processes of a run have learnt together."""


def examine_together(title: str, recipe: Recipe, learners: int, examine: partial[ExternalEnvironment]) -> ExternalEnvironment:
    """Return what `examine` learns of an environment that the group of rank 0 makes; every process of a run calls it.

    Raises UserError, and OtherRankError if another process has failed. Of a command in which all others serve rank 0 it
    calls this alone.
    """
    global here
    attended = here is not None and here.attended
    if processes.started() == 1 or (attended and here and here.layout.size != recipe.ranks):
        raise UserError(
            f"{title} is a parallel program of {recipe.ranks} ranks: start them with `mpiexec -n {recipe.ranks} warprun"
            f" ...`, a run with {learners + recipe.ranks} processes or more"
        )
    if attended:
        return examine()
    key = repr((examine.args, examine.keywords))
    if key not in _known:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        layout, ranks = fit(comm.size, learners, recipe.ranks), MpiRanks(comm)
        ranks.agree()  # who has failed before does not come
        ranks.name, found = layout.name, None
        try:
            here = here or MpiRole(comm, layout)
            if comm.rank == 0:
                with leading():
                    found = examine()
            elif here.serves(0):
                here.serve([0])
        except Exception as error:
            words = one_line(error) if isinstance(error, UserError) else f"{title} cannot be made and reset: {told(error)}"
            ranks.agree(error, words)
        else:
            ranks.agree()
        _known[key] = comm.bcast(found)
    return _known[key]
