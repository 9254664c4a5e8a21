"""Relax climbing-image nudged elastic bands on a cubic spline of the surface. Needs ASE and SciPy: pip install "warprun[neb]".

Source: Henkelman, Uberuaga, Jonsson, Journal of Chemical Physics 113, 9901 (2000).
"""

from typing import NamedTuple

import numpy as np
from ase import Atoms
from ase.mep import NEB
from ase.optimize import BFGS, FIRE
from scipy.ndimage import map_coordinates, spline_filter

from warprun.envs.catalysis.analysis import unwrapped

PADDING = 8
"""Cells by which a periodic axis is continued, so that the ends have no effect on the spline."""
CEILING = 0.5
"""Energies above the reference are cut here, as a share of `energy_scale`: the spline would overshoot next to a wall of hundreds of eV.
The choice moves the passes of Fe(111) by 0.03 eV."""
UNIT = 0.05
"""Unit of energy of the optimizer, as a share of `energy_scale`: 1 eV on Fe(111)."""
PLAIN, CLIMBING = 200, 400
"""Largest number of optimizer steps before and after the highest image begins to climb."""
FORCE = 0.02
"""Force below which a band has converged, in units per cell."""
SETTLED = 0.05
"""Largest force on the highest image, in units per cell, at which its energy counts as that of a saddle point."""
H = 1e-3
SIDES = np.concatenate([np.eye(3), -np.eye(3)])
"""Points of the central differences, in steps of `H` cells."""


class Band(NamedTuple):
    """The images between two minima."""

    cells: np.ndarray  # [images, 3], unwrapped
    energies: np.ndarray  # [images] above the reference, in the surface's unit
    force: float  # on the highest image, in the surface's unit per cell; 0 at a saddle

    @property
    def barrier(self):
        """Highest energy above the relaxed start."""
        return float((self.energies - self.energies[0]).max())


class Surface:
    """The spline of a landscape as an ASE calculator; positions are in cells.

    It does not derive from ASE's Calculator, whose comparison of atoms takes longer than the spline.
    """

    def __init__(self, made):
        self.offset = np.array([PADDING if made.periodic else 0, PADDING if made.periodic else 0, -made.z_lower], float)
        self.size = np.array(made.energy.shape[:2])
        self.periodic = made.periodic
        energy = np.minimum(made.energy - made.reference, CEILING * made.energy_scale) / (UNIT * made.energy_scale)
        if made.periodic:
            energy = np.pad(energy, ((PADDING, PADDING), (PADDING, PADDING), (0, 0)), mode="wrap")
        self.coefficients = spline_filter(energy, order=3, mode="mirror")

    def at(self, positions):
        """Return the energies of positions [n, 3], in units."""
        places = np.array(positions, float)
        if self.periodic:
            places[:, :2] %= self.size
        return map_coordinates(self.coefficients, (places + self.offset).T, order=3, mode="nearest", prefilter=False)

    def get_potential_energy(self, atoms=None, force_consistent=False):
        """Return the energy of an atom."""
        return float(self.at(atoms.positions)[0])

    def get_forces(self, atoms=None):
        """Return the force [1, 3] on an atom, by central differences."""
        values = self.at(atoms.positions + H * SIDES)
        return -((values[:3] - values[3:]) / (2 * H))[None]


def climb(made, cells, images=15):
    """Return the band that the path `cells` [n, 3] relaxes to, between the minima next to its ends."""
    line = unwrapped(made, cells)
    ends = [_relaxed(made, line[0]), _relaxed(made, line[-1])]
    chosen = np.rint(np.linspace(0, len(line) - 1, images)).astype(int)
    band = [_atom(made, position) for position in (ends[0], *line[chosen[1:-1]], ends[1])]
    for climbing, steps in ((False, PLAIN), (True, CLIMBING)):
        FIRE(NEB(band, k=1.0, climb=climbing, method="improvedtangent"), logfile=None, maxstep=0.1).run(fmax=FORCE, steps=steps)
    energies = np.array([atom.get_potential_energy() for atom in band])
    top, unit = band[int(energies.argmax())], UNIT * made.energy_scale
    return Band(np.concatenate([atom.positions for atom in band]), energies * unit, float(np.linalg.norm(top.get_forces())) * unit)


def _atom(made, position):
    atom = Atoms("H", positions=[position])
    atom.calc = Surface(made)
    return atom


def _relaxed(made, position):
    atom = _atom(made, position)
    BFGS(atom, logfile=None, maxstep=0.1).run(fmax=FORCE / 2, steps=200)
    return atom.positions[0]
