"""What an iteration of a run asks of torch where kernels do all the work: with few environments they take as long as some of its calls."""

from pathlib import Path

import pytest

from warprun.config.compose import compose
from warprun.kernels.repeat import TRIES, Watch
from warprun.runs import train
from warprun.runs.run import Run

RUN = ["env=cartpole", "n_envs=10", "tuned=none", "device=cpu", "engine.compare=false"]
QUIET = ["log.every=never", "eval.every=never", "checkpoint.every=never", "log.tensorboard=false", "stop_when_solved=false"]
ITERATIONS = TRIES + 10
AGENTS = {
    "a2c": ["agent.horizon=16", "agent.learning_rate_end=0", f"total_steps={160 * ITERATIONS}"],
    "ppo": ["agent.horizon=16", "agent.entropy_coef_end=0", f"total_steps={160 * ITERATIONS}"],
    "dqn": ["agent.learning_starts=10", "agent.utd_ratio=0.1", "agent.target_update_interval=1", f"total_steps={10 * ITERATIONS}"],
}


@pytest.mark.parametrize("agent", AGENTS)
def test_an_iteration_computes_nothing_by_torch(agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    iterate = Run._iterate

    def watched(run: Run) -> None:
        if len(asked) < TRIES + 1:  # the update may be recorded until then, by a watch of its own
            asked.append(False)
            return iterate(run)
        with Watch(others=("aten._local_scalar_dense",)) as watch:  # which reads the metrics, to see that they are finite
            iterate(run)
        asked.append(watch.torch_computes)

    monkeypatch.setattr(Run, "_iterate", watched)
    train.train(compose([*RUN, *QUIET, f"agent={agent}", *AGENTS[agent], f"output_root={tmp_path}"]))
    assert len(asked) == ITERATIONS and not any(asked)
