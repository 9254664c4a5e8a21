"""Times of an exchange between two ranks: what warprun's own buffers, windows and messages take.

    mpiexec -n 2 python exchange_times.py

Prints a JSON object: seconds, medians, of a rollout of one environment and the weights of a small policy.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from mpi4py import MPI

from warprun.parallel import joining
from warprun.parallel.exchange import RolloutBuffer, WeightsBuffer
from warprun.parallel.rma import Shared
from warprun.parallel.world import World, meet
from warprun.processes import Layout
from warprun.spec import Box, Discrete, GroupSpec, Spec

SPEC = Spec((GroupSpec("one", 1, Box(4), Discrete(2)),), time_limit=None)
PARAMETERS = 5000
ROUNDS, PLACES = 40, 2


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def one_sided(world: World, rollout: RolloutBuffer, weights: WeightsBuffer) -> dict[str, list[float]]:
    """Return the times of push, pop, show and read; rank 0 learns, rank 1 acts."""
    found: dict[str, list[float]] = {"push": [], "pop": [], "show": [], "read": []}
    shared = Shared(world, weights.memory.nbytes, rollout.memory.nbytes, PLACES)
    for number in range(ROUNDS):
        if world.is_learner:
            found["show"].append(timed(lambda number=number: shared.weights.show(number + 1, weights.memory)))
        world.barrier()
        if not world.is_learner:
            found["read"].append(timed(lambda: shared.weights.read(0, weights.memory)))
            found["push"].append(timed(lambda number=number: shared.ring.push(number, rollout.memory)))
        world.barrier()
        if world.is_learner:
            found["pop"].append(timed(lambda: shared.ring.pop(1, rollout.memory)))
        world.barrier()
    world.part()
    return found


def message(world: World, memory: np.ndarray) -> list[float]:
    """Return half the times of round trips."""
    comm, other, found = world.comm, 1 - world.rank, []
    for _ in range(ROUNDS):
        world.barrier()
        began = time.perf_counter()
        if world.is_learner:
            world.wait_for([comm.Isend(memory, other)])
            world.wait_for([comm.Irecv(memory, other)])
        else:
            world.wait_for([comm.Irecv(memory, other)])
            world.wait_for([comm.Isend(memory, other)])
        found.append((time.perf_counter() - began) / 2)
    return found


def main() -> None:
    """Measure and print."""
    comm = MPI.COMM_WORLD
    joining.meet()
    world = meet(comm, Layout(1, 1), timeout_s=60)
    rollout, weights = RolloutBuffer(SPEC, 1, 1), WeightsBuffer({"w": torch.zeros(PARAMETERS)})
    found = {name: statistics.median(times) for name, times in one_sided(world, rollout, weights).items() if times}
    found["message"] = statistics.median(message(world, weights.memory))
    both = comm.gather(found)
    world.barrier()
    world.watch.end()
    if both:
        print(json.dumps({name: seconds for own in reversed(both) for name, seconds in own.items()}))


if __name__ == "__main__":
    main()
