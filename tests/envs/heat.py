"""Ranks that share the rod of heat_equation: mpiexec -n P python -m tests.envs.heat OUT writes what they did as OUT/P.npz."""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from warprun.envs.heat_equation import HeatEquation

STEPS, SEED = 60, 7


def main(out: Path) -> None:
    comm = MPI.COMM_WORLD
    env = HeatEquation(comm)
    first, _ = env.reset(seed=SEED)
    rng = np.random.default_rng(0)
    taken = [env.step(rng.uniform(-1.5, 1.5, 3)) for _ in range(STEPS)]
    again, _ = env.reset()
    temperatures = env.temperatures()
    if comm.rank == 0:
        observed = np.stack([first, *(one[0] for one in taken), again])
        np.savez(out / f"{comm.size}.npz", observed=observed, reward=[one[1] for one in taken], temperatures=temperatures)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
