"""Compute what the bars of the test bed are derived from: the return of the best policy that does not look, and a reference.

    python scripts/testbed_references.py [TASK ...]

A reference is the return of an optimum (dynamic programming, enumeration, a linear-quadratic regulator) or of the best policy of a grid.
All in NumPy with float64. Environments that step without branches are stepped by their own functions on arrays of episodes (`Arrays`); the
others have a model, and a test plays its policy in the environment. Optima are in testbed_optima.py, those of linear systems and most of
shipped environments here; grids are in testbed_grids.py, and what all share is in testbed_solvers.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from common import settings, table
from testbed_grids import chemostat, detectors, epidemic, glucose, heat_equation, island, ring, search, shield, synthesis
from testbed_optima import battery, forest, inventory, maze, packing, pump, reservoir, screening, service, switch
from testbed_solvers import Linear, Reference, module_of

# Linear systems with quadratic costs ----------------------------------------------------------------------------------


def plate() -> Reference:
    """Riccati's equation."""
    bed = module_of("plate")
    p, eye = bed.Params(), np.eye(bed.SPOTS)
    passed = np.roll(eye, 1, 0) + np.roll(eye, -1, 0)
    system = Linear(p.keep * eye + p.pass_on * passed, p.heat * eye, eye, p.power * eye, p.noise, eye / 12.0)
    return system.reference(100, -1000.0, 1000.0)


def antenna() -> Reference:
    """Riccati's equation, over the errors, their rates and the wind, of two axes each."""
    p, eye, none = module_of("antenna").Params(), np.eye(2), np.zeros((2, 2))
    turn = p.turn * np.array([[0.0, 1.0], [-1.0, 0.0]])
    rate = np.hstack([-p.dt * p.stiffness * eye, (1.0 - p.dt * p.damping) * eye + p.dt * turn, p.dt * eye])
    error = np.hstack([eye, none, none]) + p.dt * rate
    system = Linear(
        np.vstack([error, rate, np.hstack([none, none, p.keep * eye])]),
        p.dt * p.motor * np.vstack([p.dt * eye, eye, none]),
        np.diag([p.error, p.error, 0.0, 0.0, 0.0, 0.0]),
        p.power * eye,
        np.repeat([0.0, p.gust], (4, 2)),
        np.diag([4.0e-6 / 3.0, 4.0e-6 / 3.0, 0.0, 0.0, 0.0, 0.0]),
    )
    return system.reference(500, -10.0, 10.0)


def integrator() -> Reference:
    """Riccati's equation, with a scale of 1."""
    p = module_of("integrator").Params()
    system = Linear(
        np.array([[1.0, p.dt], [0.0, 1.0]]),
        np.array([[p.dt**2], [p.dt]]),
        np.diag([1.0, 0.0]),
        np.array([[p.effort]]),
        0.0,
        np.eye(2) / 3.0,
    )
    return system.reference(100, -3.0, 3.0)


# Shipped environments -------------------------------------------------------------------------------------------------


def booster(action: str = "discrete") -> Reference:
    """The quadratic regulator of docs/gallery.md, on 2,000 episodes that are not those of its table; the naive policy is no control."""
    from warprun.envs.booster import control, environment

    made = environment(action=action)
    p, tables = made.params(), made.tables()
    episodes = control.simulate(p, 2000, 100)
    limit = control.limit_of(made.spec.groups[0].action, tables.changes)
    best = control.run(control.best_quadratic(episodes, p, tables, limit), episodes, p, tables, limit)
    return Reference(float(control.run(control.none, episodes, p, tables).returns.mean()), float(best.returns.mean()))


def booster_continuous() -> Reference:
    """The same with the limits of real-valued changes."""
    return booster("continuous")


def catalysis() -> Reference:
    """The exact best path of the LEPS surface, with a reward of 1 per step nearer to the goal; the naive policy goes back and forth."""
    from warprun.envs.catalysis import optimum
    from warprun.envs.catalysis.landscape import landscape

    made = landscape("leps")

    def earned(cells: np.ndarray) -> float:
        nearer = np.abs(cells[0] - made.goal).sum() - np.abs(cells[-1] - made.goal).sum()
        return float(optimum.describe(made, cells).rewards.sum() + nearer)

    ahead = np.arange(501)[:, None] % 2
    naive = max(earned(np.array(made.start) + ahead * move) for move in optimum.MOVES[:4])
    return Reference(naive, earned(optimum.highest_return(made, 1.0).cells))


REFERENCES: dict[str, Callable[[], Reference]] = {
    each.__name__: each
    for each in (
        *(heat_equation, booster, booster_continuous, catalysis),
        *(integrator, chemostat, glucose, service, inventory, epidemic, ring, maze, screening, plate, packing),
        *(battery, antenna, switch, search, reservoir, detectors, synthesis, shield, island, forest, pump),
    )
}


def main() -> None:
    """Print the references."""
    names = settings(__doc__, "task*").task or list(REFERENCES)
    rows = [[name, f"{found.naive:.4g}", f"{found.best:.4g}"] for name in names for found in [REFERENCES[name]()]]
    print(table(["task", "does not look", "reference"], rows))


if __name__ == "__main__":
    main()
