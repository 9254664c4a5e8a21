"""`warprun play` on the command line: what it prints and writes, whose code it runs, and mistakes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import warprun
from tests.gliders import glider
from tests.playing.plays import SMALL, rows
from tests.written import add_environment
from warprun.cli.main import run
from warprun.config import environment_copy
from warprun.config.registry import import_environment
from warprun.environment import Environment
from warprun.kernels.fingerprint import fingerprint
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.program import write
from warprun.simulation.codegen.targets import CPU

DRIFT = glider(step="s, action", reward="s.x", after="s.x + (0.1 if action == 1 else -0.1)", limit=6)
DRIFT += """
def draw(axes, state):
    from palette import COLOR

    axes.plot(state.x, 0.0, "o", color=COLOR)
    axes.set(xlim=(-1, 1))
"""
PIXELS = """
import numpy as np
from gymnasium.spaces import Box, Discrete


class environment:
    observation_space, action_space = Box(0, 255, (6, 6, 1), np.uint8), Discrete(2)

    def reset(self, seed=None):
        return np.zeros((6, 6, 1), np.uint8), {}

    def step(self, action):
        return np.zeros((6, 6, 1), np.uint8), 1.0, False, False, {}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an environment, whose `draw` uses a neighbouring file, and a run of it."""
    place = tmp_path / "project"
    place.mkdir()
    (place / "drift.py").write_text(DRIFT)
    (place / "palette.py").write_text('COLOR = "#d55e00"\n')
    add_environment(place, "drift")
    monkeypatch.chdir(place)
    warprun.train(["env=drift", *SMALL, "engine.fused=false", "total_steps=256", "agent.horizon=8", "eval.episodes=2", "run_dir=run"])
    return place


def test_a_run_is_played_from_anywhere_with_its_own_files(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    pytest.importorskip("matplotlib")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (project / "run").rename(elsewhere / "taken")
    shutil.rmtree(project / "conf")
    (project / "drift.py").unlink()
    (project / "palette.py").unlink()
    monkeypatch.chdir(elsewhere)
    assert run(["play", "taken", "device=cpu", "episodes=2", "record=[a.csv,a.gif]"]) == 0
    said = capsys.readouterr().out
    assert "checkpoint: last, after 256 env_steps" in said
    assert "mean" in said and "truncated" in said and "a.gif" in said
    table = rows(Path("a.csv"))
    assert len(table) == 2 * 7
    first = sum(float(row["reward"] or 0) for row in table if row["episode"] == "0")
    assert f"{first:,.3f}" in said
    assert run(["play", "taken", "policy=random"]) == 0


def test_a_run_of_somebody_else_is_refused(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal) -> None:
    found = environment_copy.find(str(project / "run" / "environment"))
    assert found and set(found.copy.files) == {"drift", "palette"}
    shutil.rmtree(project / "conf")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    assert "add trust=true" in refusal("play", "run", "device=cpu", "record=a.csv")
    assert not Path("a.csv").exists()
    assert run(["play", "run", "device=cpu", "record=a.csv", "trust=true"]) == 0


def test_an_edit_of_draw_changes_no_kernel(tmp_path: Path) -> None:
    """What kernels are kept under does not depend on it, although it stands in the file of their functions."""

    def key(source: str, color: str) -> str:
        (tmp_path / "drift.py").write_text(source)
        (tmp_path / "palette.py").write_text(f"COLOR = {color!r}\n")
        environment, module = import_environment(str(tmp_path / "drift.py"))
        assert isinstance(environment, Environment) and hasattr(module, "draw")
        return fingerprint(write(ArrayPlan(environment, CPU, 1, 1)).functions)

    first = key(DRIFT, "red")
    assert key(DRIFT.replace("axes, state", "axes, state, p").replace("xlim=(-1, 1)", "title=str(p)"), "blue") == first
    assert key(DRIFT.partition("def draw")[0] + "draw = print\n", "blue") == first
    assert key(DRIFT.replace("0.1 if", "0.2 if"), "red") != first


WRONG = {
    "env=cartpole": "env=cartpole has no trained policy: name a run, or add policy=random",
    "run env=cartpole policy=random": "the environment is that of the run; leave run or env=cartpole out",
    "env=cartpole policy=random agent.lr=1": "play has no setting 'agent.lr'",
    "env=cartpole policy=uniform": "policy=uniform is not one of trained, random",
    "env=cartpole policy=random record=a.txt": "record='a.txt' must end in one of .csv .npz .gif .mp4 .html",
    "env=cartpole policy=random record=nowhere/a.csv": "record='nowhere/a.csv': there is no folder nowhere",
    "env=cartpole policy=random record=[a.csv,./a.csv]": "record= names a file twice",
    "env=cartpole policy=random record=folder.csv": "record='folder.csv' is a link or no regular file",
    "env=cartpole policy=random record=link.csv": "record='link.csv' is a link or no regular file",
    "env=cartpole policy=random every=0": "every=0 must be at least 1",
    "env=cartpole policy=random episodes=0": "episodes=0 must be at least 1",
    "env=cartpole policy=random fps=0": "fps=0 must be from 0.01 to 1000",
    "env=cartpole policy=random fps=fast": "fps must be a number, not 'fast'",
    "env=cartpole policy=random seed=-1": "seed=-1 must be from 0 to 2^64 - 1",
    "env=cartpoel policy=random": "unknown environment 'cartpoel'; did you mean 'cartpole'?",
    "nowhere": "nowhere",
    "one two": "play takes one run, not 2: one two",
    "env=cartpole policy=random greedy=false": "greedy=false is for a trained policy; leave it out with policy=random",
    "run policy=random checkpoint=best": "checkpoint=best is for a trained policy; leave it out with policy=random",
    "env=cartpoel policy=random record=[]": "unknown environment 'cartpoel'",
    "run checkpoint=first": "checkpoint=first is not one of last, best",
}


@pytest.mark.parametrize("line", WRONG)
def test_mistakes_are_one_line(line: str, here: Path, refusal) -> None:
    (here / "folder.csv").mkdir()
    (here / "link.csv").symlink_to("elsewhere.csv")
    assert WRONG[line] in refusal("play", *line.split()) and sorted(os.listdir()) == ["folder.csv", "link.csv"]


def test_random_actions_need_no_network_that_reads_images(here: Path) -> None:
    pytest.importorskip("gymnasium")
    Path("pixels.py").write_text(PIXELS)
    add_environment(here, "pixels", "time_limit: 3\n")
    assert run(["play", "env=pixels", "policy=random", "record=a.csv"]) == 0
    assert len(rows(Path("a.csv"))) == 4
