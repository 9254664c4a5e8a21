"""The trial of get_state and set_state before a run: where its environments are, and when it ends."""

from pathlib import Path

import pytest

from tests.simulation.external import clock
from tests.simulation.external.simulators import environment, simulator
from warprun.errors import UserError
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.external.state_trial import Trial, known_trial, try_state

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
COUNTED = """

class Counted(Saved):
    def step(self, action):
        with open({file!r}, "a") as file:
            file.write(".")
        return super().step(action)


environment = Counted
"""


def of_class(folder: Path, text: str) -> ExternalEnvironment:
    (folder / "own.py").write_text(Path(clock.__file__).read_text() + text)
    return environment(module=str(folder / "own.py"))


def test_a_trial_ends_after_its_time_and_is_made_once_in_a_process(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    of = of_class(tmp_path, COUNTED.format(file=str(steps)))
    assert try_state(of, 0, seconds=0.0) == Trial(1)
    assert len(steps.read_text()) == 4, "one step of both before the state is taken, and one after it"
    steps.unlink()
    with simulator(of) as made:
        made.prepare()
    assert len(steps.read_text()) == made.n_envs, "its first step: a simulator makes no trial"
    first = known_trial(of, 0)
    taken = len(steps.read_text())
    assert known_trial(of, 0) is first and len(steps.read_text()) == taken > made.n_envs


@pytest.mark.long
def test_a_trial_has_the_processes_of_a_run(tmp_path: Path) -> None:
    of = of_class(tmp_path, ALONE)
    assert try_state(of, 2, steps=3) == Trial(3)
    with pytest.raises(UserError, match=r"in a trial of get_state and set_state: .*one simulator per process"):
        try_state(of, 0)


@pytest.mark.parametrize(("has", "lacks"), [("get_state", "set_state"), ("set_state", "get_state"), ("close", "")])
def test_half_of_the_methods_for_the_state_is_told(tmp_path: Path, has: str, lacks: str) -> None:
    of = of_class(tmp_path, f"class Half(Walk):\n    def {has}(self, *state):\n        pass\n\n\nenvironment = Half\n")
    line = Path(clock.__file__).read_text().count("\n") + 2
    assert of.note == (lacks and f"{tmp_path / 'own.py'}:{line} in {has}: Half has no {lacks}, so a resumed run begins new episodes")
