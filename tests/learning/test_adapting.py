"""A learning rate that follows the KL divergence, and statistics of returns that forget."""

from pathlib import Path

import pytest

import warprun
from tests.finished import QUIET, last_record, weights
from tests.words import words
from warprun.config.compose import compose
from warprun.errors import UserError

RUN = words("""
    env=cartpole agent=ppo n_envs=8 agent.horizon=16 total_steps=2560 agent.network.hidden=[4] agent.return_window=2 engine.compare=false
    log.every=1iterations
""")


@pytest.mark.parametrize(("desired", "rate"), [(1e-9, 1e-3 / 1.5**10), (10.0, 5e-3)])
def test_the_learning_rate_falls_or_rises_to_the_divergence(desired: float, rate: float, tmp_path: Path) -> None:
    given = [f"agent.desired_kl={desired}", "agent.learning_rate=1e-3", "agent.learning_rate_max=5e-3", "total_steps=1280"]
    warprun.train([*QUIET, *RUN, *given, f"run_dir={tmp_path / 'run'}"])
    assert last_record(tmp_path / "run")["loss/learning_rate"] == pytest.approx(rate)
    assert float(weights(tmp_path / "run")["agent/agent/reward/count"]) == 2 * 8 * 16


def test_a_run_that_continues_keeps_the_learning_rate(tmp_path: Path) -> None:
    given = [*QUIET, *RUN, "agent.desired_kl=0.01"]
    warprun.train([*given, f"run_dir={tmp_path / 'whole'}"])
    warprun.train([*given, f"run_dir={tmp_path / 'parts'}", "until_steps=1280"])
    warprun.train([f"resume={tmp_path / 'parts'}", "until_steps=null"])
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys() and all(bool((tensor == parts[name]).all()) for name, tensor in whole.items())
    assert "agent/agent/rate_factor" in whole


def test_a_schedule_and_a_divergence_exclude_each_other() -> None:
    with pytest.raises(UserError, match=r"agent\.learning_rate_end=0\.0: agent\.desired_kl=0\.01 sets"):
        compose(["env=cartpole", "agent=ppo", "agent.learning_rate_end=0", "agent.desired_kl=0.01"])
