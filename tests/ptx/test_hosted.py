"""The host path on a stand-in for the driver: arguments, streams, captures and replays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ptx.build import NEEDED, folder
from tests.simulation.rollouts import ROOT
from warprun.kernels.driver import why_no_cuda

ON_GPUS = pytest.mark.skipif(why_no_cuda() is None, reason="there is a driver of a GPU, on which the tests marked gpu run")
pytestmark = [*NEEDED, ON_GPUS, pytest.mark.long]


def hosted(file: Path, *given: str) -> dict[str, list[str]]:
    """Return what is wrong, by case, in a process of its own, whose kernels no real driver ever gets."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WARPRUN_CACHE_DIR": str(folder() / "hosted")}
    subprocess.run([sys.executable, "-m", "tests.ptx.hosted", str(file), *given], cwd=ROOT, env=environment, check=True)
    found: dict[str, list[str]] = json.loads(file.read_text())
    assert int(found.pop("launches")[0]) > 0
    return found


def often(*cases: str, slow: tuple[str, ...]) -> list[object]:
    """Return the cases of a test, the second part of them marked as slow."""
    return [*cases, *(pytest.param(case, marks=pytest.mark.slow) for case in slow)]


@pytest.mark.parametrize("name", often("cartpole", slow=("pendulum", "market")))
def test_rollouts_are_those_of_the_cpu_and_can_be_captured(name: str, tmp_path: Path) -> None:
    assert hosted(tmp_path / "found.json", name) == {name: []}


@pytest.mark.parametrize(
    "case",
    often("a2c by kernels", "ppo by kernels", "td3", slow=("dqn", "sac", "ppo")),
)
def test_a_replayed_training_is_the_plain_one(case: str, tmp_path: Path) -> None:
    assert hosted(tmp_path / "found.json", "--", case) == {case: []}
