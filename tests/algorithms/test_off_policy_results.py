"""Off-policy agents reach the bar of their environment with their tuned settings."""

from pathlib import Path

import pytest

import warprun
from warprun.runs.evaluation import evaluate_run

CASES = {
    "pendulum_sac": (["env=pendulum", "agent=sac"], -160.0),
    "mountain_car_continuous_sac": (["env=mountain_car_continuous", "agent=sac"], 90.0),
    "cartpole_quantiles": (["env=cartpole", "agent=dqn", "agent.quantiles=10", "agent.dueling=true"], 475.0),
}
"""Settings beside the tuned ones, and the bar; `scripts/results.py off_policy` measures more seeds and agents."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_best_checkpoint_is_at_the_bar(case: str, tmp_path: Path) -> None:
    overrides, bar = CASES[case]
    more = ["stop_when_solved=false", "device=cpu", "concurrency.threads=1", "log.live=false", "seed=1", f"run_dir={tmp_path / 'run'}"]
    folder = warprun.train([*overrides, *more]).folder
    assert evaluate_run(folder, 500, True, "cpu", 2**40, "best")["return"] >= bar
