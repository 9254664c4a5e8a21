"""The kernels of a learner on a GPU: in the simulator they are autograd's in float64, and an update is torch's."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.learning.cuda.simulated import GRADIENTS, UPDATES
from tests.simulation.rollouts import ROOT


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    file = tmp_path_factory.mktemp("learner") / "simulated.npz"
    command = [sys.executable, "-m", "tests.learning.cuda.simulated", str(file)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_ENABLE_CUDASIM": "1"}, check=True)
    return dict(np.load(file))


@pytest.mark.by_default(0)
@pytest.mark.parametrize("case", GRADIENTS, ids=str)
def test_the_gradient_is_autograds(simulated: dict[str, np.ndarray], case: tuple[object, ...]) -> None:
    name = "/".join(map(str, case))
    exact = simulated[f"{name}/exact gradient"]
    np.testing.assert_allclose(simulated[f"{name}/gradient"], exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    np.testing.assert_allclose(simulated[f"{name}/terms"], simulated[f"{name}/exact terms"], rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_actors_that_leave_are_left_out_as_by_torch(simulated: dict[str, np.ndarray]) -> None:
    by_torch = {name: array for name, array in simulated.items() if name.startswith("leaving/torch/")}
    assert len(by_torch) > 10
    for name, array in by_torch.items():
        np.testing.assert_allclose(simulated[name.replace("/torch/", "/kernels/")], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("case", UPDATES)
def test_an_update_is_torchs(simulated: dict[str, np.ndarray], case: str) -> None:
    by_torch = {name: array for name, array in simulated.items() if name.startswith(f"{case}/torch/")}
    assert sum(name.endswith("parameters") for name in by_torch) == 3
    assert sum("metrics" in name for name in by_torch) > 10
    for name, array in by_torch.items():
        np.testing.assert_allclose(simulated[name.replace("/torch/", "/kernels/")], array, rtol=1e-4, atol=1e-5, err_msg=name)
