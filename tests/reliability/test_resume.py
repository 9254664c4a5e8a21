"""A run that is killed and continued ends exactly as one that is left alone."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.reliability.runs import TINY, begin, command, outcome, wait
from tests.selection import few
from warprun.cli.main import run


@pytest.fixture(scope="module", params=few(TINY, "a2c", "dqn"))
def whole(request, tmp_path_factory):
    """An agent, the outcome of its uninterrupted run, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("whole") / request.param
    assert run(command(request.param, folder.with_suffix(".first"))) == 0  # forked processes inherit its kernels
    began = time.monotonic()
    assert wait(begin(command(request.param, folder), folder.with_suffix(".log"))) == 0
    seconds = time.monotonic() - began
    return request.param, outcome(folder), seconds


def killed_and_continued(agent: str, folder: Path, after_s: float, seconds: float, draw: random.Random) -> int:
    """Kill a run after a time, then kill its continuations with probability 1/2; return the number of kills."""
    log, kills = folder.with_suffix(".log"), 0
    arguments = [*command(agent, folder), "resume=auto"]
    while True:
        pid = begin(arguments, log)
        if kills and draw.random() < 0.5:
            assert wait(pid) == 0, log.read_text()
            return kills
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
        code = wait(pid)
        if code == 0:
            return kills
        assert code == -signal.SIGKILL
        kills += 1
        after_s = draw.uniform(0.0, seconds)


def attack(whole: tuple[str, dict[str, object], float], folder: Path, rounds: int) -> None:
    agent, wanted, seconds = whole
    draw = random.Random(agent)
    kills = 0
    while kills < rounds:
        place = folder / f"{kills}"
        kills += killed_and_continued(agent, place, draw.uniform(0.0, seconds), seconds, draw)
        found = outcome(place)
        for part, value in wanted.items():
            assert found[part] == value, f"{part} of {place}"
        shutil.rmtree(place)


@pytest.mark.by_default(1)
def test_a_killed_run_ends_as_one_that_was_left_alone(whole, tmp_path):
    attack(whole, tmp_path, 3)


@pytest.mark.reliability
def test_a_hundred_kills_of_every_agent(whole, tmp_path):
    attack(whole, tmp_path, 100)
