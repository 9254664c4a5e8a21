"""Whether the settings that are shipped find the way, in fewer steps than they take."""

import pytest

import warprun
from tests.envs.catalysis.helpers import needs_grids
from warprun.runs.evaluation import evaluate_run


@needs_grids
@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 8])
def test_lh_is_solved_with_seeds_that_came_to_rest_under_discounted_shaping(seed, tmp_path):
    run = warprun.train(
        ["env=catalysis", "env.scenario=lh", "total_steps=2e6", f"seed={seed}", f"output_root={tmp_path}", "log.live=false", "device=cpu"]
    )
    found = evaluate_run(run.folder, 1000, False, "cpu", 1)
    assert found["terminated"] >= 0.99
    assert found["path/share_of_optimum"] >= 0.95


@pytest.mark.slow
def test_the_first_run_is_solved(tmp_path):
    """LEPS, which needs no download."""
    run = warprun.train(["env=catalysis", "total_steps=2e6", "seed=0", f"output_root={tmp_path}", "log.live=false", "device=cpu"])
    found = evaluate_run(run.folder, 1000, False, "cpu", 1)
    assert found["terminated"] >= 0.99
    assert found["path/share_of_optimum"] >= 0.95
