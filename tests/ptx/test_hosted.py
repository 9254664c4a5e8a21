"""The host path on a stand-in for the driver: arguments, streams, captures and replays."""

import json
from pathlib import Path

import pytest

from tests.ptx.build import NEEDED, folder
from tests.simulation.rollouts import begin, finish
from warprun.kernels.driver import why_no_cuda

ON_GPUS = pytest.mark.skipif(why_no_cuda() is None, reason="there is a driver of a GPU, on which the tests marked gpu run")
pytestmark = [*NEEDED, ON_GPUS, pytest.mark.long]


@pytest.mark.parametrize(
    "given",
    [
        # A rollout in a training that is captured is one, too.
        ("cartpole", "--", "a2c by kernels"),
        pytest.param(
            ("pendulum", "market", "--", "ppo by kernels", "ppo lstm by kernels", "td3", "dqn", "sac", "ppo"), marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_rollouts_are_those_of_the_cpu_and_replayed_trainings_the_plain_ones(given: tuple[str, ...], tmp_path: Path) -> None:
    """In a process of its own, whose kernels no real driver ever gets."""
    file = tmp_path / "found.json"
    finish(begin("tests.ptx.hosted", file, *given, WARPRUN_CACHE_DIR=str(folder() / "hosted")))
    found: dict[str, list[str]] = json.loads(file.read_text())
    assert int(found.pop("launches")[0]) > 0
    assert found == {case: [] for case in given if case != "--"}
