"""The trial of get_state and set_state before a run: where its environments are, and when it ends."""

import time
from pathlib import Path

import pytest

from tests.simulation.external import clock
from tests.simulation.external.simulators import environment
from warprun.errors import UserError
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.external.state_trial import BEFORE, try_state

ALONE = """

class Alone(Saved):
    alive = 0

    def __init__(self):
        super().__init__()
        if Alone.alive:
            raise RuntimeError("one simulator per process")
        Alone.alive = 1

    def close(self):
        Alone.alive = 0


environment = Alone
"""
SLOW = """
import time

class Slow(Saved):
    def step(self, action):
        time.sleep(0.1)
        return super().step(action)


environment = Slow
"""


def of_class(folder: Path, text: str) -> ExternalEnvironment:
    (folder / "own.py").write_text(Path(clock.__file__).read_text() + text)
    return environment(module=str(folder / "own.py"))


def test_a_trial_of_slow_steps_ends_after_its_time(tmp_path: Path) -> None:
    of = of_class(tmp_path, SLOW)
    began = time.monotonic()
    assert try_state(of, 0, seconds=0.0) == 1
    assert time.monotonic() - began < 2 * 0.1 * BEFORE


@pytest.mark.long
def test_a_trial_has_the_processes_of_a_run(tmp_path: Path) -> None:
    of = of_class(tmp_path, ALONE)
    assert try_state(of, 2, steps=3) == 3
    with pytest.raises(UserError, match=r"in a trial of get_state and set_state: .*one simulator per process"):
        try_state(of, 0)
