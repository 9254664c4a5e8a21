"""Tests of PROJECT, which must be installed: `pip install -e .`."""

import pytest
import warprun


def test_it_solves_cartpole(tmp_path):
    settings = ["env=cartpole", "agent=PROJECT", "n_envs=256", "total_steps=5e6", "device=cpu", "tuned=none"]
    result = warprun.train([*settings, f"run_dir={tmp_path}/run"])
    assert result.solved, f"its mean return is {result.eval_return}"


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(warprun.UserError, match=r"^agent\.normalize_advantage=true: "):
        warprun.train(["env=cartpole", "agent=PROJECT", "agent.normalize_advantage=true"])
