"""Without lag, learners and actors compute what one process computes, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel.ranks import assert_same, train

CARTPOLE, PENDULUM = "env=cartpole", "env=pendulum"
RUNS = {
    "a2c": [CARTPOLE, "agent=a2c", "agent.horizon=8", "total_steps=7680"],
    "ppo": [PENDULUM, "agent=ppo", "agent.horizon=8", "agent.minibatches=2", "total_steps=7680"],
    "dqn": [CARTPOLE, "agent=dqn", "agent.horizon=4", "agent.n_step=3", "agent.replay.prioritized=true", "total_steps=3840"],
    "td3": [PENDULUM, "agent=td3", "agent.horizon=4", "total_steps=3840"],
    "sac": [PENDULUM, "agent=sac", "agent.horizon=4", "agent.noise_theta=0.3", "total_steps=3840"],
}
OFF_POLICY = ["agent.learning_starts=768", "agent.utd_ratio=0.05", "agent.batch_size=32"]


def settings(name: str) -> list[str]:
    # Each actor has a multiple of 16 environments, so that all are computed in vectors.
    return [*RUNS[name], "n_envs=96", "seed=3", *(OFF_POLICY if name in ("dqn", "td3", "sac") else [])]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name of a run -> its folder, trained in one process when it is asked for."""
    made: dict[str, Path] = {}

    class Runs(dict):
        def __missing__(self, name: str) -> Path:
            made[name] = self[name] = tmp_path_factory.mktemp(name) / "single"
            train(1, made[name], *settings(name))
            return made[name]

    return Runs()


CASES = [
    ("dqn", "async", 2),
    ("a2c", "seed", 3),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("a2c", "sync", 2),
            ("a2c", "sync", 4),
            ("a2c", "async", 2),
            ("a2c", "seed", 2),
            ("a2c", "seed", 4),
            ("ppo", "seed", 4),
            ("dqn", "seed", 4),
            ("ppo", "sync", 2),
            ("ppo", "sync", 4),
            ("ppo", "async", 2),
            ("dqn", "sync", 2),
            ("dqn", "sync", 4),
            ("td3", "sync", 2),
            ("td3", "sync", 3),
            ("td3", "async", 2),
            ("td3", "seed", 3),
            ("sac", "seed", 3),
            ("sac", "async", 2),
        )
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "mode", "ranks"), CASES)
def test_the_agent_has_the_bits_of_a_single_process(name: str, mode: str, ranks: int, single: dict[str, Path], tmp_path: Path) -> None:
    record = train(ranks, tmp_path / "run", *settings(name), f"concurrency={mode}")
    assert_same(tmp_path / "run", single[name])
    assert record["actors/lag_max"] == 0
    assert record["env_steps"] >= 1440
