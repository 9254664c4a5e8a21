"""Members of a population have what they have alone, bit for bit, and one launch for all: on the stand-in for the CUDA driver."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ptx.build import NEEDED, folder
from tests.simulation.rollouts import begin, finish
from warprun.kernels.driver import why_no_cuda

ON_GPUS = pytest.mark.skipif(why_no_cuda() is None, reason="there is a driver of a GPU, on which the tests marked gpu run")
pytestmark = [*NEEDED, ON_GPUS, pytest.mark.long]


def found(tmp_path: Path, *given: str) -> dict[str, Any]:
    """Return what a process says whose kernels no real driver ever gets."""
    file = tmp_path / "found.json"
    finish(begin("tests.ptx.members", file, *given, WARPRUN_CACHE_DIR=str(folder() / "members")))
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def test_members_are_what_they_are_alone_and_are_launched_once(tmp_path: Path) -> None:
    few, many = found(tmp_path, "a2c", "3", "a2c", "33").values()
    assert few[0] == many[0] == []
    assert few[1:] == many[1:]
    assert many[2] < 1.2 * many[1]  # the longest of them has two iterations more


@pytest.mark.slow
@pytest.mark.parametrize("case", ["a2c 128", "ppo 3", "ppo 33", "ppo 128", "dqn 3", "dqn 33", "dqn 128", "sac 3", "sac 33", "sac 128"])
def test_other_agents_are_what_they_are_alone(case: str, tmp_path: Path) -> None:
    differ, _, _ = found(tmp_path, *case.split()).popitem()[1]
    assert differ == []


@pytest.mark.slow
def test_mistakes_in_what_belongs_to_which_member_are_found(tmp_path: Path) -> None:
    mistakes = found(tmp_path, "mistakes", "all")["mistakes"]
    assert len(mistakes) >= 12
    assert all(mistakes.values()), mistakes


def test_jobs_that_train_together_go_on_after_a_signal_as_if_they_were_alone(tmp_path: Path) -> None:
    assert found(tmp_path, "jobs", str(tmp_path / "sweeps")) == {"jobs": []}
