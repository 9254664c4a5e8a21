"""Provide potential energy surfaces: published analytic ones, the published DFT grids, and grids of your own.

A surface is an array of energies [x, y, z]. The analytic ones are two-dimensional: one layer of z.
"""

import urllib.request
import zipfile
from pathlib import Path

import numpy as np

from warprun import data
from warprun.errors import UserError
from warprun.files import open_regular

PUBLISHER = (
    "https://raw.githubusercontent.com/salesforce/warp-drive/bac017ebb481714bee8f6b0ec75a67d3a2e034d3/example_envs/rlchemists/en_array/"
)
PUBLISHED = {
    "en_array.npy": "843fce68cb499e75",
    "en_array_double_grids.npy": "d99450f9a0063172",
    "en_array_diffusion.npy": "96b7bf0e0e35bd21",
    "en_array_diffusion_relax.npy": "c6e6685389c087ee",
    "en_array_2atom_diffusion.npy": "599a70b3227c0e4a",
}
"""File -> first 16 digits of its sha256. Copyright (c) 2021 Salesforce.com, BSD-3-Clause."""

MAX_CELLS = 1 << 24
"""Most energies of a surface."""

LEPS_AXES = np.linspace(0.4, 3.5, 32), np.linspace(-2.2, 2.2, 45)
"""r_AB in angstrom and x of the oscillator, in steps of 0.1."""
MULLER_BROWN_AXES = np.linspace(-1.5, 1.2, 55), np.linspace(-0.4, 2.1, 51)
"""x and y, in steps of 0.05."""


def leps(r_ab, x):
    """Return the energy (eV) of three atoms on a line, one coupled to a harmonic oscillator.

    Source: Jonsson, Mills, Jacobsen, "Nudged elastic band method for finding minimum energy paths of transitions", 1998, appendix.
    r_ab (angstrom) is the distance of the first two atoms; the third is 3.742 from the first. x is the coordinate of the oscillator.
    """
    a, b, c, total, spring, coupling = 0.05, 0.80, 0.05, 3.742, 0.2025, 1.154
    r_bc = total - r_ab
    (q_ab, j_ab), (q_bc, j_bc), (q_ac, j_ac) = (_pair(r, d) for r, d in ((r_ab, 4.746), (r_bc, 4.746), (total, 3.445)))
    u, v, w = j_ab / (1 + a), j_bc / (1 + b), j_ac / (1 + c)
    coulomb = q_ab / (1 + a) + q_bc / (1 + b) + q_ac / (1 + c)
    exchange = np.sqrt(u**2 + v**2 + w**2 - u * v - v * w - u * w)
    return coulomb - exchange + 2 * spring * (r_ab - (total / 2 - x / coupling)) ** 2


def _pair(r, d):
    decay = np.exp(-1.942 * (r - 0.742))
    return d / 2 * (1.5 * decay**2 - decay), d / 4 * (decay**2 - 6 * decay)


def muller_brown(x, y):
    """Return the energy, in its own unit, of the two-dimensional test surface of Muller and Brown, Theoret. Chim. Acta 53, 75 (1979)."""
    parts = (
        (-200.0, -1.0, 0.0, -10.0, 1.0, 0.0),
        (-100.0, -1.0, 0.0, -10.0, 0.0, 0.5),
        (-170.0, -6.5, 11.0, -6.5, -0.5, 1.5),
        (15.0, 0.7, 0.6, 0.7, -1.0, 1.0),
    )
    return sum(k * np.exp(a * (x - x0) ** 2 + b * (x - x0) * (y - y0) + c * (y - y0) ** 2) for k, a, b, c, x0, y0 in parts)


def on_lattice(function, axes):
    """Return the energies [x, y, 1] of a function of two coordinates on the lattice of `axes`."""
    return function(*np.meshgrid(*axes, indexing="ij"))[:, :, None]


def published(name):
    """Return a published grid of energies (eV) from the data folder. Raises UserError if it is missing or altered."""
    path = data.folder("catalysis") / name
    if not path.is_file():
        raise UserError(
            f"{path} is missing: `warprun data catalysis` fetches it, or set WARPRUN_DATA_DIR to a folder with catalysis/{name}"
        )
    data.check(path, PUBLISHED[name])
    return read(path)


def read(path):
    """Return the energies [x, y, z] of a .npy file. Raises UserError if it contains anything else."""
    try:
        open_regular(Path(path)).close()
        energy = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a shape that the file is too small for is an error
    except OSError as error:
        raise UserError(f"env.pes={path}: {error.strerror or 'is no .npy file'}") from None
    except (ValueError, OverflowError, EOFError, zipfile.BadZipFile):
        raise UserError(f"env.pes={path} is no .npy file of numbers") from None
    if not isinstance(energy, np.ndarray) or energy.dtype.kind not in "fiu":
        raise UserError(f"env.pes={path} is no .npy file of real numbers")
    if energy.size > MAX_CELLS:
        raise UserError(f"env.pes={path} has {energy.size:,} energies; a surface can have {MAX_CELLS:,}")
    if energy.ndim != 3 or 0 in energy.shape:
        raise UserError(f"env.pes={path} has shape {energy.shape}; a surface is an array [x, y, z]")
    return energy.astype(np.float64)


def fetch():
    """Download the published grids that are missing, check all of them, and return their folder. Raises UserError."""
    folder = data.folder("catalysis")
    for name, sha256 in PUBLISHED.items():
        path = Path(folder) / name
        if path.is_file():
            data.check(path, sha256)
            continue
        try:
            with urllib.request.urlopen(PUBLISHER + name, timeout=60) as answer:
                content = answer.read()
        except OSError as error:
            raise UserError(f"cannot fetch {PUBLISHER + name}: {error}") from None
        data.require(content, sha256, PUBLISHER + name)
        data.keep(path, content)
    return folder
