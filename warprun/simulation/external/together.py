"""Learn the spaces of an environment that is a parallel program. No torch."""

from __future__ import annotations

from mpi4py import MPI

from warprun import processes
from warprun.agreement import agree
from warprun.errors import UserError, one_line
from warprun.ranks import Layout, fit
from warprun.simulation.external import leading
from warprun.simulation.external.group import Place
from warprun.simulation.external.recipe import ExternalEnvironment, Recipe, told
from warprun.simulation.external.spaces import examine

_known: dict[str, ExternalEnvironment] = {}
"""What the processes of a run have learnt together."""


def examine_together(
    title: str, recipe: Recipe, time_limit: int | None, learners: int, *, timeout_s: float, masks: bool
) -> ExternalEnvironment:
    """Return what `examine` learns from an environment that the group of rank 0 makes; every process of a run calls this.

    Raises UserError, and OtherRankError if another process has failed. Of a command in which all others serve rank 0 it calls this alone.
    """
    ranks, comm = recipe.ranks, MPI.COMM_WORLD
    started_here = leading.here is not None and leading.here.attended
    if processes.started() == 1 or (started_here and comm.size != ranks):
        raise UserError(
            f"{title} is a parallel program of {ranks} ranks: start them with `mpiexec -n {ranks} warprun ...`, a run with"
            f" {learners + ranks} processes or more"
        )
    if started_here:
        return examine(title, recipe, time_limit, timeout_s=timeout_s, masks=masks)
    key = repr((title, recipe, time_limit, timeout_s, masks))
    if key not in _known:
        layout = fit(comm.size, learners, ranks)
        agree(comm, "", lambda rank: f"rank {rank}", None)  # who has failed before does not come
        try:
            place = leading.join(layout)
            found = _learnt(place, layout, title, recipe, time_limit, timeout_s, masks)
        except Exception as error:
            words = one_line(error) if isinstance(error, UserError) else f"{title} cannot be made and reset: {told(error)}"
            agree(comm, words, layout.name, error)
            raise
        agree(comm, "", layout.name, None)
        _known[key] = comm.bcast(found)
    return _known[key]


def _learnt(
    place: Place, layout: Layout, title: str, recipe: Recipe, time_limit: int | None, timeout_s: float, masks: bool
) -> ExternalEnvironment | None:
    if MPI.COMM_WORLD.rank == 0:
        with leading.leading():
            return examine(title, recipe, time_limit, timeout_s=timeout_s, masks=masks)
    if place.serves(0):
        place.serve([0])
    return None
