"""What `python scripts/results.py catalysis` measures of a run of catalysis: its path, and elastic bands.

Needs ASE and SciPy: pip install "warprun[neb]".
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import require

from warprun.envs.catalysis.analysis import unwrapped
from warprun.envs.catalysis.landscape import landscape
from warprun.runs import rundir
from warprun.runs.evaluation import evaluate_run

EPISODES = 1000
IMAGES = 15
"""Points of the straight line."""


def measured(folder: Path) -> dict[str, Any]:
    """Return the numbers of `warprun eval` of a run, the transition state of its path, and the band of the straight line."""
    require("ase", "warprun[neb]")
    found: dict[str, Any] = {f"last/{name}": value for name, value in evaluate_run(folder, EPISODES, False, "cpu", 1).items()}
    with (folder / "eval" / "paths.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["path"] == "learned"]
    if found["last/path/reaches_goal"]:
        found |= transition_state([[float(row[axis]) for axis in "xyz"] for row in rows], [float(row["energy"]) for row in rows])
    return found | straight_band(rundir.read_config(folder)["env"]["options"]["scenario"])


def transition_state(cells: Sequence[Sequence[float]], energies: Sequence[float]) -> dict[str, Any]:
    """Return cell and energy of the highest point of a path that is higher than the point before and no lower than the next one.

    Nothing if the energy only falls, only rises, or falls and then rises.
    """
    tops = [n for n in range(1, len(energies) - 1) if energies[n - 1] < energies[n] >= energies[n + 1]]
    if not tops:
        return {}
    top = max(tops, key=lambda n: energies[n])
    return {"transition/cell": list(cells[top]), "transition/energy": energies[top]}


def straight_band(scenario: str) -> dict[str, float]:
    """Return the highest energy above the start of the elastic band that begins as a straight line, and the force on its top image."""
    from warprun.envs.catalysis import neb

    made = landscape(scenario)
    first, last = unwrapped(made, np.array([made.start, made.goal]))
    band = neb.climb(made, np.linspace(first, last, IMAGES))
    above = made.start_energy - made.reference
    return {"straight/highest_energy": float(band.energies.max() - above), "straight/force": band.force}
