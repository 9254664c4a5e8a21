"""Make landscapes: an energy surface with a start and a goal, from a published scenario or from options."""

from typing import NamedTuple

import numpy as np

from warprun.envs.catalysis import surfaces
from warprun.errors import UserError

Cell = tuple[int, int, int]


class Landscape(NamedTuple):
    """A surface on a lattice, with start, goal and rewards."""

    energy: np.ndarray  # [x, y, z - z_lower], eV or the surface's own unit
    z_lower: int  # lowest z
    nz: int  # divisor of z in observations
    periodic: bool  # whether x and y are periodic; if not, moves across their edges are cancelled, as in z
    reference: float  # energy above which a cell has a cost
    start: Cell
    goal: Cell
    goal_reward: float
    energy_scale: float  # energy above the reference that costs 1
    unit: str = ""  # of energies, if known

    @property
    def relative(self):
        """Energies above the reference, float32 [x, y, z - z_lower]."""
        return (self.energy - self.reference).astype(np.float32)

    @property
    def start_energy(self):
        """Energy of the start."""
        x, y, z = self.start
        return self.energy[x, y, z - self.z_lower]


class Scenario(NamedTuple):
    """A published task: the name of a surface and the fields of `Landscape`."""

    surface: str
    shape: Cell
    z_lower: int
    nz: int
    reference: float
    start: Cell
    goal: Cell
    goal_reward: float
    energy_scale: float = 20.0
    periodic: bool = True
    unit: str = "eV"


def _fe111(file, shape, z_lower, nz, reference):
    return lambda start, goal, goal_reward: Scenario(file, shape, z_lower, nz, reference, start, goal, goal_reward)


_REACTION = _fe111("en_array.npy", (20, 18, 20), 28, 50, -227.689938)
_FINE = _fe111("en_array_double_grids.npy", (39, 35, 39), 56, 99, -227.689938)
_DIFFUSION = _fe111("en_array_diffusion.npy", (20, 18, 10), 58, 100, -193.6023)

SCENARIOS = {
    "lh": _REACTION((3, 6, 30), (5, 16, 38), 30.0),
    "lh_lowbarrier": _REACTION((3, 6, 30), (5, 16, 38), 10.0),
    "er1": _REACTION((3, 15, 43), (5, 16, 38), 30.0),
    "er2": _REACTION((3, 12, 45), (5, 16, 38), 30.0),
    "lh_fine": _FINE((6, 12, 60), (10, 32, 76), 50.0),
    "er2_fine": _FINE((6, 24, 90), (10, 32, 76), 30.0),
    "diffusion2d": _DIFFUSION((5, 9, 60), (10, 0, 60), 10.0),
    "diffusion3d": _DIFFUSION((5, 9, 61), (10, 0, 60), 30.0),
    # Start and goal are the cells nearest to the two deepest minima.
    "leps": Scenario("leps", (32, 45, 1), 0, 1, -4.6, (3, 36, 0), (26, 9, 0), 30.0, periodic=False),
    "muller_brown": Scenario("muller_brown", (55, 51, 1), 0, 1, -150.0, (42, 9, 0), (19, 37, 0), 30.0, 400.0, False, ""),
}
ANALYTIC = {"leps": (surfaces.leps, surfaces.LEPS_AXES), "muller_brown": (surfaces.muller_brown, surfaces.MULLER_BROWN_AXES)}


def landscape(
    scenario=None,
    pes=None,
    start=None,
    goal=None,
    goal_reward=None,
    reference=None,
    energy_scale=None,
    periodic=None,
    accept_below_reference=False,
):
    """Return the landscape of the options; None takes the value of the scenario. Raises UserError for invalid options."""
    name = scenario or {None: "leps", "fe111": "lh"}.get(pes, pes if pes in ANALYTIC else None)
    if name is not None and name not in SCENARIOS:
        raise UserError(f"env.scenario={name}: there is no such scenario; there are {', '.join(SCENARIOS)}")
    given = {"start": start, "goal": goal, "goal_reward": goal_reward, "reference": reference, "energy_scale": energy_scale}
    given["periodic"] = periodic
    given = {key: value for key, value in given.items() if value is not None}
    _check_types(given, accept_below_reference)
    if name is None:
        made = _own(str(pes), given)
    else:
        made = _of_scenario(name, SCENARIOS[name], pes, given)
    _check(made, pes or name, accept_below_reference)
    return made


def _of_scenario(name, known, pes, given):
    if pes in (None, known.surface) or (pes == "fe111" and known.surface not in ANALYTIC):
        energy = surfaces.on_lattice(*ANALYTIC[known.surface]) if known.surface in ANALYTIC else surfaces.published(known.surface)
    elif pes in ANALYTIC or pes == "fe111":
        raise UserError(f"env.pes={pes} is not the surface of env.scenario={name}; leave one of them out")
    else:
        energy = surfaces.read(pes)
    if energy.shape != known.shape:
        raise UserError(f"env.pes={pes} has shape {energy.shape}; env.scenario={name} needs {known.shape}")
    fields = {key: getattr(known, key) for key in Landscape._fields if key in Scenario._fields}
    return Landscape(energy=energy, **(fields | given))


def _own(pes, given):
    energy = surfaces.read(pes)
    for key in ("start", "goal"):
        if key not in given:
            raise UserError(f"env.{key} is missing: a surface of your own needs env.start=[x,y,z] and env.goal=[x,y,z]")
        _check_inside(key, given[key], energy.shape, 0)
    ends = min(energy[given["start"]], energy[given["goal"]])
    defaults = {"z_lower": 0, "nz": energy.shape[2], "periodic": True, "reference": ends, "goal_reward": 30.0, "energy_scale": 20.0}
    return Landscape(energy=energy, **(defaults | given))


def _check_types(given, accept):
    for key in ("start", "goal"):
        cell = given.get(key)
        if cell is not None:
            if not isinstance(cell, list | tuple) or len(cell) != 3 or any(type(number) is not int for number in cell):
                raise UserError(f"env.{key}={cell} must be three whole numbers, [x,y,z]")
            given[key] = tuple(cell)
    for key in ("goal_reward", "reference", "energy_scale"):
        value = given.get(key, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise UserError(f"env.{key}={value} must be a finite number")
        if key == "energy_scale" and value <= 0:
            raise UserError(f"env.energy_scale={value} must be above 0")
        if key in given:
            given[key] = float(value)
    for key, value in {"periodic": given.get("periodic", True), "accept_below_reference": accept}.items():
        if not isinstance(value, bool):
            raise UserError(f"env.{key}={value} must be true or false")


def _check_inside(key, cell, shape, z_lower):
    lowest = (0, 0, z_lower)
    if any(not low <= n < low + size for n, low, size in zip(cell, lowest, shape, strict=True)):
        ranges = ", ".join(f"{low}..{low + size - 1}" for low, size in zip(lowest, shape, strict=True))
        raise UserError(f"env.{key}={list(cell)} lies outside the surface, {ranges}")


def _check(made, name, accept_below_reference):
    unknown = int(np.count_nonzero(~np.isfinite(made.energy)))
    if unknown:
        raise UserError(f"env.pes={name}: {unknown} of {made.energy.size} energies are not finite numbers")
    for key, cell in (("start", made.start), ("goal", made.goal)):
        _check_inside(key, cell, made.energy.shape, made.z_lower)
    if made.start == made.goal:
        raise UserError(f"env.start and env.goal are the same cell, {list(made.goal)}")
    below = int(np.count_nonzero(made.energy < made.reference - 1e-6))
    if below and not accept_below_reference:
        raise UserError(
            f"env.pes={name}: {below} cells lie below the reference {made.reference:g}, down to {made.energy.min():g}, and would earn"
            " as much as the best; set env.reference, or env.accept_below_reference=true if that is meant"
        )


def fewest_steps(made):
    """Return the smallest number of moves from start to goal, ignoring energies."""
    total = abs(made.start[2] - made.goal[2])
    for axis in (0, 1):
        apart = abs(made.start[axis] - made.goal[axis])
        total += min(apart, made.energy.shape[axis] - apart) if made.periodic else apart
    return total
