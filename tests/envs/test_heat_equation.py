"""The heated rod: its scheme against exact solutions, the same numbers on any number of ranks, and training with two of them.

`pytest -m slow tests/envs/test_heat_equation.py` trains.
"""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.parallel.ranks import ONE_THREAD
from warprun.envs.heat_equation import HEAT, INTERVAL, STABLE, HeatEquation, bump
from warprun.parallel.launch import mpiexec

ROOT = Path(__file__).parents[2]


def cooled(mode: int, cells: int, steps: int) -> tuple[HeatEquation, np.ndarray]:
    """Return a rod that began as a Fourier mode, after some steps without heat, and its temperatures."""
    env = HeatEquation(cells=cells)
    env.u[1:-1] = np.sin(mode * np.pi * env.x)
    for _ in range(steps):
        env.diffuse(np.zeros(cells))
    return env, env.temperatures()


@pytest.mark.parametrize("mode", [1, 3])
def test_a_fourier_mode_decays_as_the_equation_says(mode: int) -> None:
    """exp(-k^2 pi^2 t); the error is of second order in h."""
    errors = []
    for cells in (31, 63, 127):
        env, after = cooled(mode, cells, 2)
        exact = np.exp(-((mode * np.pi) ** 2) * 2 * INTERVAL) * np.sin(mode * np.pi * env.x)
        errors.append(np.abs(after - exact).max())
        assert 0.0 < env.ratio <= STABLE + 1e-12
    assert errors[-1] < 2e-4 * mode**2
    assert all(3.0 < coarse / fine < 5.5 for coarse, fine in pairwise(errors)), errors


def test_a_constant_heater_reaches_the_steady_state() -> None:
    """0 = u'' + q, solved with the second differences as a matrix."""
    env = HeatEquation(cells=31)
    env.u[:] = 0.0
    env.load = np.zeros(31)
    source = HEAT * bump(env.x - 0.5)
    for _ in range(300):
        env.diffuse(source)
    h = 1.0 / 32
    matrix = (np.diag(np.full(31, 2.0)) - np.diag(np.ones(30), 1) - np.diag(np.ones(30), -1)) / h**2
    np.testing.assert_allclose(env.temperatures(), np.linalg.solve(matrix, source), rtol=1e-9)


def test_the_reward_counts_temperatures_and_power() -> None:
    env = HeatEquation()
    env.reset(seed=3)
    _, reward, terminated, truncated, _ = env.step(np.array([1.0, -2.0, 0.5]))  # the second one is clipped
    assert reward == pytest.approx(-np.mean(env.temperatures() ** 2) - 0.01 * (1.0 + 1.0 + 0.25) / 3)
    assert not terminated and not truncated


def test_any_number_of_ranks_computes_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    for ranks in (1, 3):
        command = [mpiexec(), "-n", str(ranks), sys.executable, "-m", "tests.envs.heat", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=os.environ | ONE_THREAD)
        assert done.returncode == 0, done.stderr
    one = dict(np.load(tmp_path / "1.npz"))
    assert np.ptp(one["reward"]) > 0.01
    for name, numbers in np.load(tmp_path / "3.npz").items():
        np.testing.assert_array_equal(numbers, one[name], err_msg=name)


@pytest.mark.slow
def test_two_ranks_learn_to_control_the_rod(tmp_path: Path) -> None:
    """Loads and first temperatures are symmetric about 0, so no constant control is better than none on the average."""
    idle = []
    for seed in range(100):
        env = HeatEquation()
        env.reset(seed=seed)
        idle.append(sum(float(env.step(np.zeros(3))[1]) for _ in range(100)))
    command = [sys.executable, "-m", "warprun", "experiment=heat_equation_ppo", "device=cpu", "log.live=false", "run_dir=run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, cwd=tmp_path, env=os.environ | ONE_THREAD)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "status.json").read_text())["eval"] > np.mean(idle) / 4
