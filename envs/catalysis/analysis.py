"""What `warprun eval` tells of a run: the greedy path, its barrier, and the exact best paths of the same lattice beside it."""

import csv

import numpy as np

from warprun.envs.catalysis import optimum
from warprun.envs.catalysis.continuous import energy_at
from warprun.envs.catalysis.landscape import Landscape

INSTALL = "figures of the path need matplotlib: pip install 'warprun[plot]'"


def report(play, folder):
    """Write `paths.csv` and figures of the greedy path, the optimum and the lowest barrier; return the numbers that matter."""
    played = play()
    made = landscape_of(played.tables)
    gamma = float(played.params.discount)
    paths = {
        "learned": learned(made, played),
        "highest return": optimum.highest_return(made, gamma),
        "lowest barrier": optimum.lowest_barrier(made),
    }
    write(folder / "paths.csv", made, paths)
    try:
        from warprun.envs.catalysis.figures import draw
    except ImportError:
        print(INSTALL)
    else:
        draw(folder, made, paths)
    return numbers(paths, played.terminated, gamma, optimum.fewest_steps(made).steps)


def landscape_of(tables):
    """Return the landscape that tables were made from, with its reference at 0."""
    return Landscape(
        energy=np.asarray(tables.energy, np.float64),
        z_lower=int(tables.z_lower),
        nz=int(tables.nz),
        periodic=bool(tables.periodic),
        reference=0.0,
        start=(int(tables.start_x), int(tables.start_y), int(tables.start_z)),
        goal=(int(tables.goal_x), int(tables.goal_y), int(tables.goal_z)),
        goal_reward=float(tables.goal_reward),
        energy_scale=float(tables.energy_scale),
    )


def learned(made, played):
    """Return the path of a recording; its rewards are without shaping and, where steps are continuous, without the cost of edges."""
    states = played.states["agent"]
    points = np.stack([states[axis][:, 0] for axis in "xyz"], axis=1)
    if points.dtype.kind == "i":
        return optimum.describe(made, points)
    energies = np.array([float(energy_at(*point, played.tables)) for point in points])
    rewards = np.clip(-energies[1:] / made.energy_scale, -1.0, 0.0)
    rewards[-1] += made.goal_reward * played.terminated
    return optimum.Path(points, energies - energies[0], rewards)


def numbers(paths, reached, gamma, fewest):
    """Return what is shown for a run, by name; energies above the start."""
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
    """Write every point of the paths: cell, arc length in cells, energy above the start."""
    with file.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["path", "step", "x", "y", "z", "arc_length", "energy"])
        for name, path in paths.items():
            lengths = arc_length(made, path)
            for n, (cell, energy) in enumerate(zip(path.cells, path.energies, strict=True)):
                table.writerow([name, n, *(f"{v:g}" for v in cell), f"{lengths[n]:.4f}", f"{energy:.6f}"])


def arc_length(made, path):
    """Return the length [steps + 1] of the path up to each of its points, in cells, the short way across periodic edges."""
    moves = np.diff(path.cells.astype(np.float64), axis=0)
    if made.periodic:
        size = np.array(made.energy.shape[:2])
        moves[:, :2] -= size * np.round(moves[:, :2] / size)
    return np.concatenate([[0.0], np.cumsum(np.linalg.norm(moves, axis=1))])
