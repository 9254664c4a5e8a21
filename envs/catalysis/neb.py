"""A climbing-image nudged elastic band on a cubic spline of the surface, as a reference. Needs ASE and SciPy: pip install "warprun[neb]".

Source: Henkelman, Uberuaga, Jonsson, Journal of Chemical Physics 113, 9901 (2000).
"""

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.mep import NEB
from ase.optimize import BFGS, FIRE
from scipy.ndimage import map_coordinates, spline_filter

PADDING = 8
"""Cells by which a periodic axis is continued: the spline forgets its ends that far away."""
CEILING = 10.0
"""Energies above the reference, in the surface's unit, are cut here: the spline would overshoot beside a wall of hundreds of eV."""


class Surface(Calculator):
    """The spline of a landscape; an atom's position is its cell, in cells."""

    implemented_properties = ("energy", "forces")

    def __init__(self, made):
        super().__init__()
        self.offset = np.array([PADDING if made.periodic else 0, PADDING if made.periodic else 0, -made.z_lower], float)
        self.size = np.array(made.energy.shape[:2])
        self.periodic = made.periodic
        energy = np.minimum(made.energy - made.reference, CEILING)
        if made.periodic:
            energy = np.pad(energy, ((PADDING, PADDING), (PADDING, PADDING), (0, 0)), mode="wrap")
        self.coefficients = spline_filter(energy, order=3, mode="mirror")

    def at(self, positions):
        """Return the energies of positions [n, 3]."""
        places = np.array(positions, float)
        if self.periodic:
            places[:, :2] %= self.size
        return map_coordinates(self.coefficients, (places + self.offset).T, order=3, mode="nearest", prefilter=False)

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        """Fill in energy and forces, by central differences of the spline."""
        super().calculate(atoms, properties, system_changes)
        position, h = self.atoms.get_positions()[0], 1e-3
        around = np.concatenate([position + h * np.eye(3), position - h * np.eye(3)])
        values = self.at(around)
        self.results = {"energy": float(self.at(position[None])[0]), "forces": -((values[:3] - values[3:]) / (2 * h))[None]}


def climb(made, cells, images=15, steps=500):
    """Return positions [images, 3] and energies [images] above the relaxed start, of a band that starts along `cells` [n, 3].

    Cells are unwrapped first, so the band keeps to the side of the path.
    """
    moves = np.diff(np.asarray(cells, float), axis=0)
    if made.periodic:
        moves[:, :2] -= np.array(made.energy.shape[:2]) * np.round(moves[:, :2] / np.array(made.energy.shape[:2]))
    line = np.concatenate([[cells[0]], cells[0] + np.cumsum(moves, axis=0)])
    ends = [_relaxed(made, line[0]), _relaxed(made, line[-1])]
    chosen = np.rint(np.linspace(0, len(line) - 1, images)).astype(int)
    band = [_atom(made, position) for position in (ends[0], *line[chosen[1:-1]], ends[1])]
    for climbing in (False, True):
        FIRE(NEB(band, k=1.0, climb=climbing, method="improvedtangent"), logfile=None, maxstep=0.1).run(fmax=0.02, steps=steps)
    energies = np.array([atom.get_potential_energy() for atom in band])
    return np.array([atom.get_positions()[0] for atom in band]), energies - energies[0]


def _atom(made, position):
    atom = Atoms("H", positions=[position])
    atom.calc = Surface(made)
    return atom


def _relaxed(made, position):
    atom = _atom(made, position)
    BFGS(atom, logfile=None, maxstep=0.1).run(fmax=0.01, steps=200)
    return atom.get_positions()[0]
