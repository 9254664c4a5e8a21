"""What environments do wrong ends a run in one line, with its process and all workers."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import warprun
from tests.finished import until
from tests.selection import few
from tests.simulation.external import misbehaving
from tests.simulation.external.simulators import act, environment, simulator
from warprun.cli import main as cli

ROOT = Path(__file__).parents[3]
NO_EVALUATION = ["eval.every=never", "eval.episodes=1", "eval.final_episodes=1"]
SMALL = ["n_envs=4", "concurrency.workers=2", "agent=a2c", "agent.horizon=16", "device=cpu", "log.live=false", "log.tensorboard=false"]
REPEATS = [pytest.param(n, marks=() if n == 0 else pytest.mark.reliability) for n in range(25)]


def settings(fault: str, *more: str) -> list[str]:
    module = [f"env.module={misbehaving.__file__}", "env.name=misbehaving", f"env.timeout_s={0.5 if 'hang' in fault else 20}"]
    return ["env=gymnasium", *module, f"env.kwargs.fault={fault}", "total_steps=1000", *SMALL, *NO_EVALUATION, *more]


def processes_of(parent: int) -> list[int]:
    """Return the worker processes whose parent is, or was, `parent`: by the number of the run in their sessions."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "cmdline").read_bytes()
                status = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if b"external.workers" in text and (int(status[1]) == parent) and status[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize("fault", few(misbehaving.FAULTS, "raise", "sigkill", "hang", "nan_obs", "shape"))
def test_a_fault_ends_the_run_in_one_line(fault: str, repeat: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(warprun.TrainingFailed) as failure:
        warprun.train(settings(fault))
    line = str(failure.value)
    assert misbehaving.FAULTS[fault] in line and "\n" not in line
    assert re.search(r"environment [13] .*at step 5", line)
    assert processes_of(os.getpid()) == []
    del failure  # its traceback holds the memory of the run
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    (status,) = tmp_path.glob("outputs/*/status.json")
    assert '"failed"' in status.read_text()


@pytest.mark.parametrize(("fault", "told"), [("construction", "its construction: "), ("reset", "a reset: ")])
def test_what_fails_before_the_first_step_leaves_nothing(
    fault: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(settings(fault)) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert told in line and "misbehaving.py:" in line and "RuntimeError" in line
    assert list(tmp_path.iterdir()) == []
    assert processes_of(os.getpid()) == []


def test_an_environment_with_a_fault_is_reset_if_the_user_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = settings("mask", "env.on_nan=reset", "total_steps=640")
    assert warprun.train(given).metrics["env/resets_on_nan"] == 2.0  # one in each worker


def test_an_observation_outside_its_space_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(settings("beyond", "total_steps=256")) == 0
    said = capfd.readouterr().out
    assert said.count("environment 1: number 1 of an observation of group agent is 3, beyond its bounds -1 to 1") == 1


@pytest.mark.parametrize("fault", ["mask", "nan_obs", "inf_reward"])
def test_a_fault_that_is_reset_ends_an_episode_with_reward_0(fault: str) -> None:
    misbehaving.made.clear()
    kwargs: dict[str, object] = {"fault": fault, "when": 3}
    with simulator(environment(module="tests.simulation.external.misbehaving", kwargs=kwargs), n_envs=1, replaces=True) as found:
        found.prepare()
        taken, group = found.collect(act), found.trajectory.groups["agent"]
        assert bool(taken.terminated[2, 0]) and not bool(taken.truncated[2, 0]) and float(group.reward[2, 0, 0]) == 0.0
        assert bool(group.obs.isfinite().all()) and (group.mask is None or bool(group.mask.all()))
        ended = found.episodes()
        assert ended.replaced == 1 and found.fault() is None
        assert ended.count == int(taken.terminated.sum()) - 1


@pytest.mark.by_default(1)
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("fault", few(["sound", "hang_in_c"], "sound"))
def test_no_worker_outlives_the_run(fault: str, number: int, repeat: int, tmp_path: Path) -> None:
    """Also where the environment hangs with the lock of the interpreter, and the run has no time to end its workers."""
    command = [sys.executable, "-m", "warprun", *settings(fault, "env.kwargs.when=500", "env.timeout_s=100", "total_steps=1e9")]
    run = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    until(lambda: len(processes_of(run.pid)) == 2 and "running" in _status(tmp_path))
    workers = processes_of(run.pid)
    time.sleep(1.0)
    run.send_signal(number)
    if fault == "hang_in_c" and number != signal.SIGKILL:
        time.sleep(0.5)
        run.send_signal(number)  # the first one waits for a boundary, which never comes
    run.communicate(timeout=30)
    assert run.returncode == (-number if number == signal.SIGKILL else 128 + number)
    until(lambda: not any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers))


def _status(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("outputs/*/status.json"))
