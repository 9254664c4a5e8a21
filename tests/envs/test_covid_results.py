"""The numbers of scripts/covid_results.py."""

import numpy as np
import pytest

import warprun
from tests.scripts import load
from warprun.runs.evaluation import evaluate_run

SMALL = ["env=covid", "tuned=none", "total_steps=16", "n_envs=2", "agent.horizon=8", "agent.minibatches=1", "eval.episodes=1"]


@pytest.fixture
def script():
    return load("covid_results")


def test_means_have_standard_errors(script):
    assert script.line("x", np.array([1.0, 2.0, 3.0, 6.0]), 2.0) == "| x | 3.0 ± 1.1 | 2.0 |"  # variance 14/3 of 4 numbers


@pytest.mark.slow
def test_returns_are_those_of_the_evaluation(covid_data, script, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    warprun.train([*SMALL, "env.time_limit=100", "log.live=false", f"run_dir={folder}"])  # not a multiple of what is collected at once
    monkeypatch.setattr(script, "EPISODES", 20)
    found = script.returns(folder)
    best = found["trained, most probable actions"]
    expected = evaluate_run(folder, episodes=1, greedy=True, device="cpu", seed=0)
    assert [best[group].item() for group in script.GROUPS] == pytest.approx([expected[f"{group}/return"] for group in script.GROUPS])
    drawn = found["untrained"]["payments"]  # in 100 days twice one of 21 levels, nearly uniform
    assert set(drawn * 2) <= set(range(41)) and abs(drawn.mean() - 10) < 4
    # The same random numbers: a gain varies less than what it is the difference of.
    assert found["trained - untrained"]["governors"].std() < found["untrained"]["governors"].std() / 2
