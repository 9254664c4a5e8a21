"""Settings of PPO that follow from the run where nobody has given them."""

import pytest

from warprun.config.compose import compose, note_on_defaults, note_on_tuned

NAMES = ("horizon", "minibatches", "epochs", "desired_kl", "entropy_coef", "return_window")
FIXED = [16, 4, 4, None, 0.01, None]


def found(*overrides: str) -> list[float]:
    agent = compose(overrides).agent
    return [getattr(agent, name) for name in NAMES]


@pytest.mark.parametrize(
    ("n_envs", "expected"),
    [(1, [2048, 32, 10]), (16, [128, 32, 10]), (100, [64, 64, 3]), (1000, [64, 64, 3]), (10_000, [16, 64, 3])],
)
def test_rollouts_and_minibatches_have_rows_within_bounds(n_envs: int, expected: list[int]) -> None:
    horizon, minibatches, window = expected
    assert found("env=pendulum", "tuned=none", f"n_envs={n_envs}") == [horizon, minibatches, 10, 0.01, 0.0, window]


def test_actors_count_as_environments_and_groups_have_their_own() -> None:
    agent = compose(["env=tag_gridworld", "tuned=none", "n_envs=4"]).agent
    assert agent.entropy_coef == 0.01 and agent.horizon > 64
    assert all("horizon" not in own for own in agent.groups.values())


def test_a_short_run_has_ten_updates_at_least() -> None:
    assert found("env=cartpole", "tuned=none", "n_envs=1", "total_steps=1000")[0] == 100
    assert found("env=cartpole", "tuned=none", "n_envs=8", "total_steps=100")[0] == 16


def test_given_numbers_stay_and_others_follow_from_them() -> None:
    assert found("env=pendulum", "tuned=none", "n_envs=16", "agent.horizon=16", "agent.entropy_coef=0.01")[:2] == [16, 4]
    scheduled = compose(["env=pendulum", "tuned=none", "agent.learning_rate_end=0"]).agent
    assert scheduled.desired_kl is None


def test_tuned_settings_and_experiments_state_their_own() -> None:
    tuned = compose(["env=acrobot"])
    assert note_on_defaults(tuned) is None and note_on_tuned(tuned)
    assert found("env=cartpole") == [16, 16, 1, *FIXED[3:]]
    assert found("experiment=tag_plane")[3:] == FIXED[3:]


def test_the_line_names_every_number() -> None:
    config = compose(["env=pendulum", "tuned=none", "n_envs=16"])
    said = note_on_defaults(config)
    assert said and said.startswith(
        "defaults for this run: agent.horizon=128 agent.minibatches=32 agent.epochs=10 agent.learning_rate=0.001"
    )
