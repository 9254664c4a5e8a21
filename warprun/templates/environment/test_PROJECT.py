"""Tests of PROJECT: `warprun check`, learning within seconds, and the equations in plain Python."""

import subprocess
import sys
from pathlib import Path

import pytest
import warprun

import PROJECT as env


@pytest.fixture(autouse=True)
def in_this_folder(monkeypatch):
    """Find conf/ and PROJECT.py, from wherever pytest is called."""
    monkeypatch.chdir(Path(__file__).parent)


def test_check_finds_no_mistake():
    done = subprocess.run([sys.executable, "-m", "warprun", "check", "env=PROJECT"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ppo_learns(tmp_path):
    result = warprun.train(["env=PROJECT", "n_envs=64", "total_steps=1e6", "device=cpu", f"run_dir={tmp_path}/run"])
    assert result.solved, f"{result.eval_return} is below solved_at of conf/env/PROJECT.yaml"
