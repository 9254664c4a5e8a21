"""`resume=` on the command line: which run, with which settings, and what is refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.words import words
from warprun.cli.main import run
from warprun.runs import checkpoint, rundir
from warprun.simulation.kernel_engine import KernelEngine

TINY = words("""
    env=cartpole agent=a2c n_envs=16 device=cpu concurrency.threads=1 eval.episodes=4 eval.every=never tuned=none
""")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with a finished run, `run`."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run([*TINY, "total_steps=2048", "run_dir=run"]) == 0
    return folder


@pytest.fixture
def home(finished, tmp_path, monkeypatch) -> Path:
    """A copy of that folder as the working folder."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def steps_of(home: Path) -> list[int]:
    """Return the steps in the records of the run, which only rise."""
    steps = [json.loads(line)["env_steps"] for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    return steps


def test_a_run_in_a_folder_of_somebody_else_is_refused_by_the_name_of_what_was_typed(home, refusal, monkeypatch):
    monkeypatch.setattr(os, "access", lambda place, wanted: False)
    assert refusal("resume=run", "total_steps=4096") == "warprun: error: resume='run': no permission to write into run"
    assert steps_of(home)[-1] == 2048


def test_a_longer_run_continues_with_the_changed_settings(home, capsys):
    assert run(["resume=run", "total_steps=4096", "agent.learning_rate=1e-4"]) == 0
    told = capsys.readouterr().out
    assert "continues after 2,048 env_steps, agent.learning_rate=0.0001 (was" in told and "total_steps=4096 (was 2048)" in told
    status = rundir.read_status(home / "run")
    assert (status["state"], status["env_steps"]) == ("finished", 4096)
    (resumed,) = status["resumes"]
    assert resumed["env_steps"] == 2048 and len(resumed["changed"]) == 2
    config = rundir.read_config(home / "run")
    assert config["total_steps"] == 4096 and config["agent"]["learning_rate"] == 1e-4
    assert steps_of(home)[-1] == 4096
    assert run(["resume=latest", "output_root=.", "total_steps=6144"]) == 0
    assert run(["eval", "run", "episodes=4"]) == 0


def test_a_run_that_has_ended(home, capsys, refusal):
    assert "has ended: it took 2,048 env_steps of total_steps=2,048; a larger total_steps" in refusal("resume=run")
    again = [*TINY, "total_steps=2048", "run_dir=run", "resume=auto"]
    assert run(again) == 0  # a batch job that is started once more
    assert "has ended" in capsys.readouterr().out


def test_a_run_that_was_killed_after_its_last_checkpoint_has_ended(home):
    path = home / "run" / "status.json"
    ended = json.loads(path.read_text())
    earlier = ended | {"state": "running", "env_steps": 1024, "eval": 1.0, "train": 1.0}
    path.write_text(json.dumps(earlier))
    assert run(["resume=run", "total_steps=1024"]) == 2  # perhaps a mistake: its own limits say when it ends
    assert json.loads(path.read_text()) == earlier
    assert rundir.read_status(home / "run")["state"] == "killed"
    assert run([*TINY, "total_steps=2048", "run_dir=run", "resume=auto"]) == 0
    found = rundir.read_status(home / "run")
    assert {name: found[name] for name in ended if name not in ("pid", "wall_s")} == {
        name: value for name, value in ended.items() if name not in ("pid", "wall_s")
    }
    assert 0 < found["wall_s"] <= ended["wall_s"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["resume=nowhere"], "nowhere is not a run folder"),
        (["resume=latest", "output_root=none"], "no run in none"),
        (["resume=run", "n_envs=32", "total_steps=4096"], "does not fit this run"),
        (["resume=run", "agent=ppo"], "a run that continues keeps its env, agent"),
        (["resume=run", "agent.gama=0.9"], "did you mean 'agent.gamma'"),
        (["resume=run", "agent.gamma=2", "total_steps=4096"], "agent.gamma=2"),
        (["resume=auto"], "add run_dir=FOLDER"),
        ([*TINY, "agent=ppo", "run_dir='run'", "resume=auto", "total_steps=4096"], "the run in run has agent=a2c"),
        (["resume=run", "trust=maybe"], "trust must be true or false"),
        (["-m", "resume=run", "seed=1,2"], "resume= continues one run"),
    ],
)
def test_what_is_refused_leaves_the_run_as_it_was(home, refusal, arguments, words):
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert words in refusal(*arguments)
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_a_run_without_a_checkpoint_begins_anew(home):
    for path in (home / "run" / "checkpoints").iterdir():
        path.unlink()
    assert run(["resume=run"]) == 0
    assert steps_of(home)[-1] == 2048


def test_a_run_that_ended_by_its_time_limit_has_ended(home, capsys):
    limited = [*TINY, "total_steps=1e9", "max_minutes=0.01", "run_dir=limited"]
    assert run(limited) == 0
    before = rundir.read_status(home / "limited")
    assert run([*limited, "resume=auto"]) == 0
    assert "has ended" in capsys.readouterr().out
    assert rundir.read_status(home / "limited") == before


def test_a_simulator_that_loses_its_steps_is_refused(home, capsys, monkeypatch, refusal):
    whole = KernelEngine.state
    monkeypatch.setattr(KernelEngine, "state", lambda self: {name: t for name, t in whole(self).items() if name != "steps"})
    assert run([*TINY, "total_steps=2048", "run_dir=forgets"]) == 0
    capsys.readouterr()
    assert "its state() must contain `steps`" in refusal("resume=forgets", "total_steps=4096")


def test_a_best_checkpoint_of_a_discarded_part_goes(home):
    best = checkpoint.load(home / "run", checkpoint.BEST)
    checkpoint.save(home / "run", 10**6, dict(best.tensors), best.meta, 2, checkpoint.BEST)
    assert run(["resume=run", "total_steps=4096"]) == 0
    assert checkpoint.load(home / "run", checkpoint.BEST).env_steps <= 4096


def test_a_run_goes_on_in_a_process_that_has_imported_nothing(home) -> None:
    code = """
from warprun.cli import main, train
train._run = lambda asked: print("goes on")
print(main.run(["resume=run", "total_steps=4096"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=home)
    assert done.stdout.split("\n")[:2] == ["goes on", "0"]
