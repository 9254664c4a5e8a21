"""Report a run for `warprun eval`: the greedy path, its barrier, and the exact best paths on the same lattice."""

import csv

import numpy as np

from warprun.envs.catalysis import optimum
from warprun.envs.catalysis.continuous import energy_at

INSTALL = "figures of the path need matplotlib: pip install 'warprun[plot]'"


def report(played, made, folder):
    """Write `paths.csv` and figures of a recording, the optimum and the lowest barrier; return the numbers of the report."""
    gamma = float(played.params.discount)
    paths = {
        "learned": learned(made, played),
        "highest return": optimum.highest_return(made, gamma),
        "lowest barrier": optimum.lowest_barrier(made),
    }
    relaxed = bands(made, {name: paths[name] for name in ("learned", "lowest barrier") if name != "learned" or played.terminated})
    write(folder / "paths.csv", made, paths | {f"NEB from {name}": band for name, band in relaxed.items()})
    try:
        from warprun.envs.catalysis.figures import draw
    except ImportError:
        print(INSTALL)
    else:
        draw(folder, made, paths, relaxed)
    shown = numbers(paths, played.terminated, gamma, optimum.fewest_steps(made).steps)
    return shown | {f"neb/from_{name.replace(' ', '_')}": float(band.energies.max() - band.energies[0]) for name, band in relaxed.items()}


def learned(made, played):
    """Return the path of a recording, with rewards without shaping and, for continuous steps, without the cost of edges."""
    states = played.states["agent"]
    points = np.stack([states[axis][:, 0] for axis in "xyz"], axis=1)
    if points.dtype.kind == "i":
        return optimum.describe(made, points)
    energies = np.array([float(energy_at(*point, played.tables)) for point in points])
    rewards = np.clip(-energies[1:] / made.energy_scale, -1.0, 0.0)
    rewards[-1] += made.goal_reward * played.terminated
    return optimum.Path(points, energies - energies[0], rewards)


def bands(made, starts):
    """Return the climbing-image elastic band of each path with a barrier, energies above the start; nothing without ASE."""
    try:
        from warprun.envs.catalysis import neb
    except ImportError:
        return {}
    found = {name: neb.climb(made, path.cells) for name, path in starts.items() if path.barrier > 0}
    for name, band in found.items():
        if band.force > neb.SETTLED * neb.UNIT * made.energy_scale:
            print(f"the elastic band from {name} has not converged: the force on its top image is {band.force:.2g} {made.unit} per cell")
    above = made.start_energy - made.reference
    return {name: optimum.Path(band.cells, band.energies - above, np.empty(0)) for name, band in found.items()}


def numbers(paths, reached, gamma, fewest):
    """Return the numbers of the report by name; energies are above the start."""
    found, best, lowest = paths["learned"], paths["highest return"], paths["lowest barrier"]
    top = found.cells[int(found.energies.argmax())]
    shown = {
        "path/reaches_goal": float(reached),
        "path/steps": found.steps,
        "path/discounted_return": found.discounted(gamma),
        "path/share_of_optimum": found.discounted(gamma) / best.discounted(gamma),
        "path/highest_energy": found.barrier,
    }
    shown |= {f"path/highest_at_{axis}": float(n) for axis, n in zip("xyz", top, strict=True)}
    shown |= {"optimum/discounted_return": best.discounted(gamma), "optimum/steps": best.steps, "optimum/highest_energy": best.barrier}
    return shown | {"optimum/fewest_steps": fewest, "lowest_barrier/highest_energy": lowest.barrier, "lowest_barrier/steps": lowest.steps}


def write(file, made, paths):
    """Write a row for every point of the paths: cell, arc length in cells, energy above the start."""
    with file.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["path", "step", "x", "y", "z", "arc_length", "energy"])
        for name, path in paths.items():
            lengths = arc_length(made, path)
            for n, (cell, energy) in enumerate(zip(path.cells, path.energies, strict=True)):
                table.writerow([name, n, *(f"{v:g}" for v in cell), f"{lengths[n]:.4f}", f"{energy:.6f}"])


def unwrapped(made, cells):
    """Return the points [n, 3] of a path without jumps across periodic edges: each step takes the shorter way."""
    moves = np.diff(np.asarray(cells, np.float64), axis=0)
    if made.periodic:
        size = np.array(made.energy.shape[:2])
        moves[:, :2] -= size * np.round(moves[:, :2] / size)
    return np.concatenate([cells[:1], cells[0] + np.cumsum(moves, axis=0)])


def arc_length(made, path):
    """Return the length [steps + 1] of the path up to each of its points, in cells."""
    moves = np.diff(unwrapped(made, path.cells), axis=0)
    return np.concatenate([[0.0], np.cumsum(np.linalg.norm(moves, axis=1))])
