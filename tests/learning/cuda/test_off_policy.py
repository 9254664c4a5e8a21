"""Gradient steps of off-policy agents by CUDA kernels: in the simulator they are torch's."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.learning.cuda.off_policy_cases import CASES
from tests.simulation.rollouts import ROOT


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    file = tmp_path_factory.mktemp("learner") / "simulated.npz"
    command = [sys.executable, "-m", "tests.learning.cuda.off_policy_cases", str(file)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_ENABLE_CUDASIM": "1"}, check=True)
    return dict(np.load(file))


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_gradient_steps_are_torchs(simulated: dict[str, np.ndarray], case: str) -> None:
    by_torch = {name: array for name, array in simulated.items() if name.startswith(f"{case}/torch/")}
    assert float(by_torch[f"{case}/torch/one/updates"]) == 4
    for name, array in by_torch.items():
        np.testing.assert_allclose(simulated[name.replace("/torch/", "/kernels/")], array, rtol=3e-4, atol=3e-5, err_msg=name)
