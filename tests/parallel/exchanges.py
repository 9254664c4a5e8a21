"""Ranks that only exchange rollouts, with random delays.

mpiexec -n N python -m tests.parallel.exchanges MODE WINDOW LEARNERS ROLLOUTS DELAY_US OUT

Each learner writes what it received, as [actor, sequence, version, damaged], to OUT/RANK.json.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

from warprun.config.concurrency import CONCURRENCY
from warprun.parallel.exchange import RolloutBuffer, WeightsBuffer
from warprun.parallel.protocols import PROTOCOLS, End
from warprun.parallel.world import World, meet
from warprun.processes import Layout
from warprun.simulation.simulator import Episodes
from warprun.simulation.trajectory import allocate
from warprun.spec import Box, Discrete, GroupSpec, Spec

SPEC = Spec((GroupSpec("one", 1, Box(3), Discrete(2)),), time_limit=10)
HORIZON, N_ENVS = 4, 5
NO_EPISODES = Episodes(0, 0.0, {"one": 0.0})


def main(mode: str, window: str, learners: int, rollouts: int, delay_us: float, out: Path) -> None:
    comm = MPI.COMM_WORLD
    world = meet(comm, Layout(learners, comm.size - learners), timeout_s=60)
    settings = CONCURRENCY[mode]()
    if mode == "rma":
        settings.window = window
    buffer, weights = RolloutBuffer(SPEC, HORIZON, N_ENVS), WeightsBuffer({"w": torch.zeros(1000), "n": torch.zeros((), dtype=torch.int64)})
    rng = np.random.default_rng(comm.rank)

    def delay() -> None:
        if delay_us:
            time.sleep(rng.exponential(delay_us) * 1e-6)

    if world.is_learner:
        learn(world, settings, weights, buffer, rollouts, delay, out)
    else:
        act(world, settings, weights, buffer, delay)
    world.watch.end()


def act_nowhere(trajectory, row) -> None:
    raise AssertionError("these protocols only exchange rollouts")


def act(world, settings, weights, buffer, delay) -> None:
    exchange = PROTOCOLS[settings.name].actor(End(world, settings, weights, buffer), act_nowhere)
    actor, sequence, taken = world.actor, 0, allocate(SPEC, HORIZON, N_ENVS, torch.device("cpu"))
    while exchange.latest():
        weights.unpack()
        # A torn read would mix two versions.
        assert (weights._views[0] == weights.version).all() and int(weights._views[1]) == weights.version
        delay()
        for tensor in (taken.groups["one"].obs, taken.groups["one"].reward):
            tensor.fill_(1000.0 * actor + sequence)
        buffer.fill(taken, NO_EPISODES, actor=actor, sequence=sequence, version=weights.version)
        exchange.send(buffer)
        sequence += 1
    world.part()


def learn(world: World, settings, weights, buffer, rollouts, delay, out: Path) -> None:
    state = {"w": torch.zeros(1000), "n": torch.zeros((), dtype=torch.int64)}
    weights = WeightsBuffer(state)
    exchange = PROTOCOLS[settings.name].learner(End(world, settings, weights, buffer), torch.device("cpu"), world.rank)
    exchange.begin(rollouts)
    received = []
    reads = settings.name == "rma" and settings.window != "queue"
    while not reads or len(received) < rollouts:
        for tensor in state.values():
            tensor.fill_(len(received))
        weights.pack(len(received))
        exchange.publish(weights)
        if not exchange.receive([buffer], act_nowhere):
            break
        group = buffer.trajectory.groups["one"]
        actor, sequence, version = (int(buffer.header[name]) for name in ("actor", "sequence", "version"))
        expected = 1000.0 * actor + sequence
        damaged = bool((group.obs != expected).any() or (group.reward != expected).any())
        received.append([actor, sequence, version, damaged])
        delay()
    (out / f"{world.rank}.json").write_text(json.dumps(received))
    world.wait(world.peers.Ibarrier().Test)
    exchange.close()
    world.part()


if __name__ == "__main__":
    mode, window, learners, rollouts, delay_us, out = sys.argv[1:]
    main(mode, window, int(learners), int(rollouts), float(delay_us), Path(out))
