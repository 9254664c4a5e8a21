"""The commands at the end of a run: those that work here, once, also after many runs."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from warprun import errors as printed
from warprun.cli import main as cli
from warprun.cli.train import next_steps as commands

Captured = pytest.CaptureFixture[str]
RUN = ["n_envs=8", "total_steps=128", "tuned=none", "eval.episodes=2", "eval.final_episodes=2", "device=cpu", "concurrency.threads=1"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run that has all there can be, below the working folder."""
    monkeypatch.chdir(tmp_path)
    return made(Path("outputs/a run"))


def made(folder: Path) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "manifest.json").touch()
    (folder / "events.out.tfevents.1").touch()
    (folder / "metrics.jsonl").touch()
    return folder


@pytest.fixture
def by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the programs of this Python on the PATH, in a folder that is its own."""
    scripts = tmp_path / "bin"
    scripts.mkdir()
    for name in ("python", "warprun", "tensorboard"):
        (scripts / name).write_text("#!/bin/sh\n")
        (scripts / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(scripts))
    monkeypatch.setattr(printed.sysconfig, "get_path", lambda name: str(scripts))
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))


def test_all_of_them(run: Path, by_name: None) -> None:
    assert commands([run], run) == [
        "warprun eval 'outputs/a run'",
        "tensorboard --logdir 'outputs/a run'",
        "warprun report 'outputs/a run'",
    ]


def test_programs_off_the_path_are_called_by_their_path(run: Path, by_name: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commands([run], run)[:2] == ["bin/warprun eval 'outputs/a run'", "bin/tensorboard --logdir 'outputs/a run'"]


def test_programs_without_a_script_are_called_through_the_interpreter(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(printed.sysconfig, "get_path", lambda name: "no_scripts")
    monkeypatch.setattr(sys, "executable", str(Path.cwd() / ".venv" / "bin" / "python"))
    assert commands([run], run)[:2] == [
        ".venv/bin/python -m warprun eval 'outputs/a run'",
        ".venv/bin/python -m tensorboard.main --logdir 'outputs/a run'",
    ]


def test_what_cannot_work_is_left_out(run: Path, by_name: None) -> None:
    (run / "events.out.tfevents.1").unlink()
    assert commands([run], run) == ["warprun eval 'outputs/a run'", "warprun report 'outputs/a run'"]
    (run / "checkpoints" / "manifest.json").unlink()
    (run / "metrics.jsonl").unlink()
    assert commands([run], run) == []


def test_many_runs_have_one_block_for_the_best_and_the_folder_of_all(run: Path, by_name: None) -> None:
    other = made(Path("outputs/b"))
    assert commands([run, other], other) == [
        "warprun eval outputs/b",
        "tensorboard --logdir outputs",
        "warprun report outputs",
    ]


@pytest.mark.by_default(0)
@pytest.mark.parametrize("live", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_a_run_ends_with_commands_that_work(
    live: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run([*RUN, f"log.live={live}", "run_dir=mine"]) == 0
    text = capfd.readouterr().out
    assert text.count("next:\n") == 1
    steps = [line.strip() for line in text.partition("next:\n")[2].splitlines()]
    assert steps[0].endswith("eval mine") and steps[1].endswith("--logdir mine")
    done = subprocess.run(shlex.split(steps[0]), capture_output=True, text=True)
    assert done.returncode == 0 and "checkpoint: last" in done.stdout
    assert subprocess.run([*shlex.split(steps[1])[:-2], "--version"], capture_output=True).returncode == 0
    assert subprocess.run(shlex.split(steps[2]), capture_output=True).returncode == 0 and Path("report/report.html").is_file()


def test_many_runs_end_with_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["-m", "seed=1,2", *RUN, "log.live=false", "log.tensorboard=false"]) == 0
    text = capfd.readouterr().out
    assert text.count("next:\n") == 1
    steps = text.partition("next:\n")[2]
    assert "report outputs/sweeps/cartpole_" in steps and "eval outputs/sweeps/cartpole_" in steps and "--logdir" not in steps
