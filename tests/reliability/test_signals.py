"""Signals end a run at its next boundary, with the code that batch systems expect and a checkpoint that continues exactly."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.finished import until
from tests.reliability.runs import assert_same, begin, command, undisturbed, wait, with_default_signals
from tests.selection import few

CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGUSR1": 138}
WITHIN_S = 5.0
SPIN = """
from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, int32, single_agent


class State(NamedTuple):
    steps: int32


def reset(rng):
    return State(int32(0))


def step(s, action):
    x = float32(1.0)
    while s.steps > 1500 and x > float32(0.0):  # never ends once an episode has 1500 steps
        x = float32(2.0) - x
    return State(int32(s.steps + 1)), x, False


def observe(s):
    return (float32(s.steps),)


environment = single_agent(state=State, observation=Box(1), action=Discrete(2), reset=reset, step=step, observe=observe)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return undisturbed("ppo", tmp_path_factory.mktemp("whole"))


def attack(whole: tuple[dict[str, object], float], folder: Path, name: str, rounds: int) -> list[float]:
    """Send a signal at random moments of `rounds` runs, each continued to its end; return the seconds until they ended."""
    wanted, seconds = whole
    draw, times, late = random.Random(name), [], 0
    while len(times) < rounds:
        assert late < 10 * rounds, f"{late} runs ended before {name} ended them"
        place = folder / str(len(times))
        arguments, log = [*command("ppo", place), "resume=auto"], place.with_suffix(".log")
        pid = begin(arguments, log)
        time.sleep(draw.uniform(0.03, seconds))
        os.kill(pid, signal.Signals[name])
        began = time.monotonic()
        code = wait(pid)
        if code == 0:  # it had just ended
            shutil.rmtree(place)
            late += 1
            continue
        times.append(time.monotonic() - began)
        said = [line for line in log.read_text().splitlines() if "error: " in line or "Traceback" in line]
        assert code == CODES[name], log.read_text()
        assert len(said) == 1 and "interrupted" in said[0], log.read_text()
        assert wait(begin(arguments, log)) == 0, log.read_text()
        assert_same(place, wanted)
    return times


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", few(CODES, "SIGINT", "SIGUSR1"))
def test_a_signal_saves_and_ends(whole, tmp_path, name):
    assert max(attack(whole, tmp_path, name, 2)) < WITHIN_S


@pytest.mark.reliability
@pytest.mark.parametrize("name", CODES)
def test_a_hundred_signals(whole, tmp_path, name):
    times = sorted(attack(whole, tmp_path, name, 100))
    print(f"{name}: median {times[50]:.2f} s, p99 {times[98]:.2f} s, longest {times[-1]:.2f} s")
    assert times[98] < WITHIN_S


def started(arguments: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "warprun", *arguments],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=with_default_signals,
    )


def signalled_early(folder: Path, name: str, after_s: float, cache: Path) -> float:
    """Send a signal to a real command while it imports or compiles; nothing may be left. Return the seconds until it ended."""
    arguments = ["env=cartpole", "device=cpu", "n_envs=32", "total_steps=1e9", "stop_when_solved=false", "run_dir=run"]
    process = started(arguments, folder, WARPRUN_CACHE_DIR=str(cache))
    time.sleep(after_s)
    process.send_signal(signal.Signals[name])
    began = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == CODES[name], errors
    assert len(errors.splitlines()) == 1 and errors.startswith("warprun: error: interrupted"), errors
    assert list(folder.iterdir()) == [] or (folder / "run" / "status.json").exists()
    shutil.rmtree(folder / "run", ignore_errors=True)
    return time.monotonic() - began


def test_a_signal_while_it_imports(tmp_path):
    assert signalled_early(tmp_path, "SIGTERM", 0.8, tmp_path.parent / "cache") < WITHIN_S


@pytest.mark.reliability
@pytest.mark.parametrize("name", CODES)
def test_signals_while_it_imports_and_compiles(tmp_path, name):
    draw = random.Random(name)
    times = []
    for _ in range(25):
        cache = tmp_path.parent / f"cache-{name}"
        times.append(signalled_early(tmp_path, name, draw.uniform(0.3, 12.0), cache))
        shutil.rmtree(cache, ignore_errors=True)  # compiles again
    print(f"{name} in set-up: longest {max(times):.2f} s")
    assert max(times) < WITHIN_S


@pytest.mark.slow
def test_a_second_signal_ends_a_step_that_never_returns(tmp_path):
    (tmp_path / "spin.py").write_text(SPIN)
    process = started(
        ["env.module=spin.py", "env.name=spin", "agent=a2c", "device=cpu", "n_envs=64", "run_dir=run", "log.every=1iterations"], tmp_path
    )
    until((tmp_path / "run" / "metrics.jsonl").exists, 90)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - began < 2.0
    assert process.returncode == 143
    assert errors.splitlines() == ["warprun: error: interrupted by SIGTERM"]
    assert '"interrupted"' in (tmp_path / "run" / "status.json").read_text()
