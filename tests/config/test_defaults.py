"""Settings that follow from the run where nobody has given them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from warprun.cli import main as cli
from warprun.config.compose import change, note_on_defaults, note_on_tuned
from warprun.config.compose import compose as compose_anew
from warprun.config.compositions import Compositions
from warprun.config.schema import as_before, from_dict, to_dict
from warprun.errors import UserError

NAMES = ("horizon", "staggered", "minibatches", "epochs", "desired_kl", "return_window")
FIXED = [16, False, 4, 4, None, None]
compose = Compositions().compose
"""The config of Hydra, sooner where only numbers differ from one before."""


def found(*overrides: str, names: Sequence[str] = NAMES) -> list[float]:
    agent = compose(overrides).agent
    return [getattr(agent, name) for name in names]


@pytest.mark.parametrize(
    ("n_envs", "expected"),
    [
        (1, [8192, False, 16, 5, 3]),
        (16, [512, False, 16, 5, 3]),
        (100, [81, True, 15, 5, 3]),
        (1000, [64, True, 64, 5, 3]),
        (10_000, [16, True, 64, 2, 3]),
        (100_000, [16, True, 390, 1, 3]),
    ],
)
def test_rollouts_and_minibatches_have_rows_within_bounds(n_envs: int, expected: list[int]) -> None:
    *sizes, window = expected
    assert found("env=pendulum", "tuned=none", f"n_envs={n_envs}") == [*sizes, 0.01, window]


@pytest.mark.by_default(2)
@pytest.mark.parametrize(("n_envs", "expected"), [(1, [4096, 16, 10]), (16, [256, 16, 10]), (1000, [8, 31, 10]), (20_000, [8, 64, 2])])
def test_steps_of_python_are_fewer_in_a_rollout_and_learned_from_more_often(n_envs: int, expected: list[int]) -> None:
    names = ("horizon", "minibatches", "epochs")
    assert found("env=gymnasium", "env.id=CartPole-v1", f"n_envs={n_envs}", names=names) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [("null", 0.99), (200, 0.99), (1000, 0.99), (1009, 0.99), (2000, 0.995), (5000, 0.998), (20_000, 0.999)]
)
@pytest.mark.parametrize("agent", ["ppo", "a2c"])
def test_discounts_look_a_tenth_of_the_time_limit_ahead(limit: str | int, expected: float, agent: str) -> None:
    run = ["env=pendulum", "tuned=none", f"agent={agent}", f"env.time_limit={limit}"]
    assert found(*run, names=["gamma"]) == [expected]
    assert found(*run, "agent.gamma=0.9", names=["gamma"]) == [0.9]
    of_gymnasium = ["env=gymnasium", "env.id=CartPole-v1", f"agent={agent}", f"env.time_limit={limit}"]
    assert found(*of_gymnasium, names=["gamma"]) == [expected]


def test_episodes_are_staggered_where_a_rollout_is_a_part_of_one() -> None:
    """There has to be a time limit that kernels keep, shorter rollouts, and other environments."""
    assert found("env=pendulum", "tuned=none", "n_envs=1000", "agent.horizon=199")[1]
    for other in ("agent.horizon=200", "n_envs=1", "env.time_limit=64", "agent.staggered=false"):
        assert not found("env=pendulum", "tuned=none", "n_envs=1000", other)[1]
    assert not found("env=gymnasium", "env.id=CartPole-v1", "tuned=none", "n_envs=100")[1]


@pytest.mark.parametrize(("n_envs", "expected"), [(1, [1024, False]), (16, [64, True]), (1000, [16, True])])
def test_rollouts_of_a2c_have_enough_rows_for_a_gradient_step(n_envs: int, expected: list[float]) -> None:
    assert found("env=pendulum", "tuned=none", "agent=a2c", f"n_envs={n_envs}", names=NAMES[:2]) == expected
    assert found("env=pendulum", "tuned=none", "agent=a2c", "n_envs=1", "total_steps=25600", names=NAMES[:1]) == [100]


@pytest.mark.by_default(2)
@pytest.mark.parametrize("agent", ["dqn", "ddpg", "td3", "sac"])
def test_gradient_steps_after_a_step_of_many_environments_are_as_many_as_of_few(agent: str) -> None:
    names = ("utd_ratio", "learning_starts")
    sizes: dict[str, list[float]] = {"16": [1.0, 1000], "1000": [0.032, 10_000], "1024 total_steps=1000": [0.0312, 100]}
    env = "cartpole" if agent == "dqn" else "pendulum"
    for size, expected in sizes.items():
        assert found(f"env={env}", "tuned=none", f"agent={agent}", *f"n_envs={size}".split(), names=names) == expected


ENDLESS = """from dataclasses import replace
from warprun.envs import pendulum
environment = replace(pendulum.environment(), time_limit=None)
"""
NOT_STAGGERED = {"env=gymnasium env.id=CartPole-v1": "kernel functions", "env=pendulum env.module=./endless.py": "no time limit"}


@pytest.mark.parametrize(("env", "why"), NOT_STAGGERED.items())
def test_only_a_time_limit_that_kernels_keep_can_be_staggered(env: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "endless.py").write_text(ENDLESS)
    with pytest.raises(UserError, match=rf"agent\.staggered=true: .*{why}"):
        compose([*env.split(), "agent.staggered=true"])


def test_actors_count_as_environments_and_groups_have_their_own() -> None:
    agent = compose(["env=tag_continuous", "tuned=none", "n_envs=4"]).agent  # 5 and 100 actors
    assert agent.horizon > 64
    assert agent.groups and all("minibatches" in own and not {"horizon", "staggered"} & own.keys() for own in agent.groups.values())


UNTUNED = ["env=pendulum", "tuned=none"]


@pytest.mark.parametrize(
    "given",
    ["agent.learning_rate=3e-4", "agent.learning_rate_end=0", "agent.target_kl=0.015", "agent.epochs=1 agent.minibatches=1"],
)
def test_a_rate_that_somebody_decides_does_not_follow_the_policy(given: str) -> None:
    assert compose([*UNTUNED, *given.split()]).agent.desired_kl is None
    with pytest.raises(UserError, match=r"agent\.desired_kl=0\.01"):
        compose([*UNTUNED, *given.split(), "agent.desired_kl=0.01", *([] if "target" in given else ["agent.target_kl=0.001"])])


@pytest.mark.parametrize(
    ("mode", "minibatches"),
    [("ddp concurrency.processes=2", 16), ("rma concurrency.processes=33", 4), ("sync concurrency.processes=5", 32)],
)
def test_rules_count_what_one_update_learns_from(mode: str, minibatches: int) -> None:
    assert compose([*UNTUNED, *f"n_envs=1024 agent.horizon=16 concurrency={mode}".split()]).agent.minibatches == minibatches


def test_a_minibatch_of_a_policy_with_memory_has_as_many_rows() -> None:
    assert compose([*UNTUNED, "agent.network=lstm", "n_envs=32", "agent.horizon=8"]).agent.minibatches == 4


def test_settings_of_a_sweep_follow_from_each_number() -> None:
    one, many = Compositions(), [[*UNTUNED, f"n_envs={n}"] for n in (1, 1000, 10_000)]
    assert [one.compose(each).agent.horizon for each in many] == [compose_anew(each).agent.horizon for each in many] == [8192, 64, 16]


def test_what_is_printed_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*UNTUNED, "agent.learning_rate_end=0", "--cfg", "job"]) == 0
    assert "desired_kl: null" in capsys.readouterr().out


def test_a_run_that_continues_keeps_what_nobody_gives_now() -> None:
    before = compose([*UNTUNED, "n_envs=16", "agent.epochs=3"])
    same, changed = (as_before(compose([*UNTUNED, "n_envs=1", *more]), before).agent for more in ([], ["agent.entropy_coef=0.5"]))
    assert (same.horizon, same.epochs, same.minibatches) == (512, 3, 16)
    assert (changed.horizon, changed.minibatches, changed.entropy_coef) == (512, 16, 0.5)
    fixed = as_before(compose(UNTUNED), from_dict(to_dict(before) | {"origin": {}})).agent  # of a version without rules
    assert fixed.horizon == 512


def test_a_run_that_continues_keeps_a_number_that_has_no_rule_any_more() -> None:
    saved = to_dict(compose([*UNTUNED, "agent.entropy_coef=0.25"]))
    saved["origin"]["derived"].append("agent.entropy_coef=0.25")
    assert as_before(compose(UNTUNED), from_dict(saved)).agent.entropy_coef == 0.25
    assert as_before(compose([*UNTUNED, "agent.entropy_coef=0.5"]), from_dict(saved)).agent.entropy_coef == 0.5


def test_a_run_that_continues_keeps_how_its_episodes_began() -> None:
    saved = to_dict(compose([*UNTUNED, "n_envs=1000"]))
    assert change(saved, ["agent.staggered=true"]).staggered
    with pytest.raises(UserError, match=r"agent\.staggered=false: a run that continues keeps it"):
        change(saved, ["agent.staggered=false"])


def test_a_run_that_continues_keeps_the_sizes_of_its_network() -> None:
    """Earlier versions stored those of the default."""
    before = compose(["env=cartpole", "agent.network.hidden=[64,64]"])
    assert as_before(compose(["env=cartpole"]), before).agent.network.hidden == [64, 64]
    assert as_before(compose(["env=cartpole", "agent.network.hidden=[32]"]), before).agent.network.hidden == [32]


def test_a_short_run_has_ten_updates_at_least() -> None:
    assert found("env=cartpole", "tuned=none", "n_envs=1", "total_steps=1000")[0] == 100
    assert found("env=cartpole", "tuned=none", "n_envs=8", "total_steps=100")[0] == 16


def test_given_numbers_stay_and_others_follow_from_them() -> None:
    assert found("env=pendulum", "tuned=none", "n_envs=16", "agent.horizon=16")[:3] == [16, True, 4]
    scheduled = compose(["env=pendulum", "tuned=none", "agent.learning_rate_end=0"]).agent
    assert scheduled.desired_kl is None


def test_a_rate_that_follows_the_policy_has_a_limit_unless_settings_are_tuned_or_older() -> None:
    assert compose(UNTUNED).agent.learning_rate_max == 1e-3
    for fixed in ([*UNTUNED, "agent.learning_rate=3e-4"], ["env=acrobot"]):
        assert compose(fixed).agent.learning_rate_max == 1e-2
    older = to_dict(compose(UNTUNED))
    del older["agent"]["learning_rate_max"]
    assert as_before(compose(UNTUNED), from_dict(older)).agent.learning_rate_max == 1e-2


def test_tuned_settings_and_experiments_state_their_own() -> None:
    tuned = compose(["env=acrobot"])
    assert note_on_defaults(tuned) is None and note_on_tuned(tuned)
    assert found("env=cartpole") == [16, False, 16, 1, *FIXED[4:]]
    assert found("experiment=tag_plane")[4:] == FIXED[4:]


def test_the_line_names_every_number() -> None:
    config = compose(["env=pendulum", "tuned=none", "n_envs=16"])
    said = note_on_defaults(config)
    assert said and said.startswith(
        "defaults for this run: agent.gamma=0.99 agent.horizon=512 agent.staggered=false agent.minibatches=16 agent.epochs=5"
    )


def test_a_run_that_continues_shows_no_default_that_was_replaced() -> None:
    saved = to_dict(compose(["env=cartpole", "tuned=none", "n_envs=64"]))
    said = note_on_defaults(change(saved, ["agent.horizon=8"]))
    assert said and "horizon" not in said and "agent.gamma=" in said
