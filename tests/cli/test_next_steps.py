"""The commands at the end of a run: those that work here, once, also after many runs; test_printed_commands.py runs them."""

import sys
from pathlib import Path

import pytest

from tests.written import add_programs
from warprun import errors as printed
from warprun.cli.train import next_steps as commands


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run that has all there can be, below the working folder. Programs of this Python are on the PATH."""
    monkeypatch.chdir(tmp_path)
    scripts = tmp_path / "bin"
    add_programs(scripts, dict.fromkeys(("python", "warprun", "tensorboard"), ""))
    monkeypatch.setenv("PATH", str(scripts))
    monkeypatch.setattr(printed.sysconfig, "get_path", lambda name: str(scripts))
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    return made(Path("outputs/a run"))


def made(folder: Path) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    for file in ("checkpoints/manifest.json", "events.out.tfevents.1", "metrics.jsonl"):
        (folder / file).touch()
    return folder


def test_all_of_them(run: Path) -> None:
    assert commands([run], run) == [
        "warprun eval 'outputs/a run'",
        "tensorboard --logdir 'outputs/a run'",
        "warprun report 'outputs/a run'",
    ]


def test_programs_off_the_path_are_called_by_their_path_or_through_the_interpreter(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commands([run], run)[:2] == ["bin/warprun eval 'outputs/a run'", "bin/tensorboard --logdir 'outputs/a run'"]
    monkeypatch.setattr(printed.sysconfig, "get_path", lambda name: "no_scripts")
    monkeypatch.setattr(sys, "executable", str(Path.cwd() / ".venv" / "bin" / "python"))
    assert commands([run], run)[:2] == [
        ".venv/bin/python -m warprun eval 'outputs/a run'",
        ".venv/bin/python -m tensorboard.main --logdir 'outputs/a run'",
    ]


def test_what_cannot_work_is_left_out(run: Path) -> None:
    (run / "events.out.tfevents.1").unlink()
    assert commands([run], run) == ["warprun eval 'outputs/a run'", "warprun report 'outputs/a run'"]
    (run / "checkpoints" / "manifest.json").unlink()
    (run / "metrics.jsonl").unlink()
    assert commands([run], run) == []


def test_many_runs_have_one_block_for_the_best_and_the_folder_of_all(run: Path) -> None:
    other = made(Path("outputs/b"))
    assert commands([run, other], other) == ["warprun eval outputs/b", "tensorboard --logdir outputs", "warprun report outputs"]
