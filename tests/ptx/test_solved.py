"""A whole run by the kernels of a GPU, on the stand-in for the driver: an agent whose layers are on tensor cores learns."""

import json
from pathlib import Path

import pytest

from tests.ptx.build import NEEDED, folder
from tests.simulation.rollouts import begin, finish
from warprun.kernels.driver import why_no_cuda

ON_GPUS = pytest.mark.skipif(why_no_cuda() is None, reason="there is a driver of a GPU, on which the tests marked gpu run")
pytestmark = [*NEEDED, ON_GPUS, pytest.mark.slow]


def test_ppo_solves_cartpole_with_layers_on_tensor_cores(tmp_path: Path) -> None:
    """In a process of its own, whose kernels no real driver ever gets."""
    file, settings = tmp_path / "found.json", ["env=cartpole", "agent=ppo", "n_envs=64", "eval.episodes=8", "total_steps=100000"]
    finish(begin("tests.ptx.solved", file, tmp_path / "run", *settings, WARPRUN_CACHE_DIR=str(folder() / "solved")))
    found = json.loads(file.read_text())
    assert found["launches"] > 0 and (found["why not tensor cores"], found["status"]) == ("", "solved")
