"""A phase that reads its own group gets the values from before the phase, whatever the size of the group."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated, NamedTuple

import numpy as np
import pytest

from tests.simulation.rollouts import ROOT, make
from warprun.environment import Box, Discrete, Environment, Group, Phase, float32, int32
from warprun.simulation.device import choose

STEPS = 3


class State(NamedTuple):
    heights: Annotated[np.ndarray, 3]
    visits: Annotated[np.ndarray, 2, int32]
    seen: float32
    counted: int32


def reset(s):
    for n in range(3):
        s.heights[n] = 0.0
    s.visits[0] = 0
    s.visits[1] = 0
    return State(s.heights, s.visits, 0.0, int32(0))


def step_of_one(s, t, cells):
    s.heights[1] = float32(t) + 1.0
    s.visits[1] = t + 1
    return State(s.heights, s.visits, cells.heights[1], cells.visits[1]), 0.0, False


def step_of_several(s, t, i, cells):
    s.heights[1] = float32(t) + 1.0
    s.visits[1] = t + 1
    return State(s.heights, s.visits, cells.heights[1, i], cells.visits[1, i]), 0.0, False


def observe(s):
    return s.seen, float32(s.counted), s.heights[1], float32(s.visits[1])


def environment(size: int) -> Environment:
    cells = Group("cells", size, State, Box(4), Discrete(2), reset, observe)
    return Environment(groups=(cells,), phases=(Phase("cells", step_of_one if size == 1 else step_of_several),))


def seen(device: str, size: int) -> np.ndarray:
    """Return what the first actor of every environment observes after each step, [T, N, F]."""
    engine = make(environment(size), f"own_group_{size}", device=choose(device), n_envs=3, horizon=STEPS)
    for row in range(STEPS):
        engine.step(row)
    return engine.trajectory.groups["cells"].obs[1:, :, 0].numpy().copy()


@pytest.mark.by_default(2)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("target", ["cpu", "plain", "cudasim"])
def test_a_phase_does_not_see_what_it_writes(size, target, tmp_path):
    if target == "cpu":
        found = seen("cpu", size)
    else:
        variable, device = ("NUMBA_ENABLE_CUDASIM", "cudasim") if target == "cudasim" else ("NUMBA_DISABLE_JIT", "cpu")
        code = f"import numpy; from tests.simulation.test_own_group import seen; numpy.save('{tmp_path}/x.npy', seen('{device}', {size}))"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=os.environ | {"PYTHONPATH": str(ROOT), variable: "1"})
        found = np.load(tmp_path / "x.npy")
    for row in range(STEPS):
        assert (found[row] == [row, row, row + 1, row + 1]).all()
