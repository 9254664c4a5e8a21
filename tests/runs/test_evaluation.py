"""What an evaluation says is true of episodes that nobody has chosen."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import warprun
from tests.environments.clockwork import environment as clockwork
from tests.words import words
from warprun.algorithms.settings import A2CConfig
from warprun.config.cadence import Cadence
from warprun.config.compose import compose
from warprun.config.schema import Config, EnvConfig, from_dict
from warprun.runs import checkpoint, rundir
from warprun.runs.build import make_agent, set_up
from warprun.runs.evaluation import Evaluation, Evaluator, describe_checkpoint, evaluate_run
from warprun.runs.measured import Notes
from warprun.runs.summary import Course, summarize
from warprun.runs.timetable import interval
from warprun.state import derived_seed, restore

WALK = words("""
    env=cartpole env.module=tests.environments.walk env.name=walk env.solved_at=null tuned=none device=cpu agent=a2c
""")
SMALL = ["engine.fused=false", "agent.network.hidden=[4]", "concurrency.threads=1", "n_envs=4", "log.live=false"]


def evaluator(episodes: int, seed: int = 0, *more: str) -> Evaluator:
    config = compose([*WALK, *SMALL, *more])
    setup = set_up(config)
    return Evaluator(setup, make_agent(setup), episodes, seed)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("walk") / "run"
    warprun.train([*WALK, *SMALL, "total_steps=256", "eval.episodes=20", f"run_dir={folder}"])
    return folder


@pytest.mark.by_default(0)
def test_mean_and_standard_error_are_those_of_the_distribution():
    n = 20_000
    found = evaluator(n).play(greedy=False)
    assert found.episodes == n
    assert abs(found.mean_return["agent"]) < 4 * 2 / math.sqrt(n)  # the sum of four standard normal rewards has deviation 2
    assert found.metrics()["return_std"] == pytest.approx(2.0, rel=0.03)
    assert found.stderr("agent") == pytest.approx(2.0 / math.sqrt(n), rel=0.03)
    assert (found.mean_length, found.terminated, found.unfinished) == (4.0, 0.0, None)


def test_every_evaluation_plays_other_episodes():
    one = evaluator(10)
    means = [one.play(greedy=True).mean_return["agent"] for _ in range(5)]
    assert len(set(means)) == 5


def test_evaluations_take_a_tenth_of_the_steps_of_training_at_most(tmp_path, monkeypatch):
    """CartPole of two million steps that goes on when it is solved: most episodes are as long as they can be."""
    made = []
    begin = Evaluator.__init__

    def noted(self, *given):
        begin(self, *given)
        made.append(self)

    monkeypatch.setattr(Evaluator, "__init__", noted)
    more = ["device=cpu", "log.live=false", "stop_when_solved=false", "total_steps=2e6", f"run_dir={tmp_path / 'run'}"]
    result = warprun.train(["env=cartpole", *more])
    took = sum(each.simulator.steps * each.simulator.n_envs for each in made)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum("eval/return" in row for row in rows) == 10
    assert took <= 0.1 * result.env_steps


@pytest.mark.parametrize(
    "given, expected",
    [
        (["env=cartpole", "agent=a2c"], 20 * 512 / 0.05),  # whole rollouts of 64 steps
        (["env=cartpole", "agent=a2c", "total_steps=1e9"], 1e7),
        (["env=cartpole", "agent=a2c", "total_steps=1e5"], 25_000),
        (["env=cartpole", "agent=a2c", "eval.episodes=40", "env.time_limit=100", "total_steps=1e6"], 40 * 128 / 0.05),
        (["env=cartpole", "agent=dqn", "tuned=none", "agent.utd_ratio=0.5", "agent.batch_size=32", "total_steps=1e6"], 10_240 / 0.05 / 16),
        (["env=cartpole", "agent=a2c", "eval.every=3e5steps"], 3e5),
    ],
)
def test_the_interval_follows_from_the_settings(given, expected):
    config = compose([*given, "device=cpu"])
    assert interval(config, set_up(config).environment) == Cadence("env_steps", pytest.approx(expected))


def test_the_verb_plays_none_of_the_episodes_of_the_run(run):
    """Both have seed 0 where nobody says otherwise."""
    verb = evaluate_run(run, 20, True, "cpu", 0)["return"]
    config = from_dict(rundir.read_config(run))
    setup = set_up(config)
    agent = make_agent(setup)
    saved = checkpoint.load(run).tensors
    restore(agent.state(), {name.removeprefix("agent/"): saved[name] for name in saved if name.startswith("agent/")})
    for purpose in ("evaluation", "final evaluation"):
        own = Evaluator(setup, agent, 20, derived_seed(0, purpose))
        assert all(own.play(True).mean_return["agent"] != pytest.approx(verb, abs=1e-6) for _ in range(30))


def test_the_verb_takes_as_many_episodes_as_the_final_evaluation(run):
    assert evaluate_run(run, None, True, "cpu", 0)["episodes"] == 200


@pytest.mark.long
def test_without_a_time_limit_episodes_are_cut_where_it_says_and_that_is_told():
    found = evaluator(2000, 0, "env.options.endless=true", "eval.max_steps=100").play(greedy=True)
    share = found.unfinished / 2000
    assert share == pytest.approx(0.5, abs=0.05)
    # Exactly 100 steps, although steps are collected 64 at a time; the others end after two.
    assert found.mean_return["agent"] == pytest.approx(100 * share + 2 * (1 - share), abs=1e-3)
    assert found.mean_length == pytest.approx(found.mean_return["agent"])
    assert found.terminated == pytest.approx(1 - share)
    assert found.metrics()["unfinished"] == found.unfinished


def test_several_groups_have_no_common_return():
    one = Evaluation({"agent": np.array([1.0, 2.0, 3.0, 6.0])}, 5.0, 1.0, None, None).metrics()
    spread = {"return_stderr": pytest.approx(math.sqrt(14 / 3) / 2), "return_std": pytest.approx(math.sqrt(14 / 3))}
    assert one == {"return": 3.0, "episode_length": 5.0, "terminated": 1.0, "episodes": 4} | spread
    two = Evaluation({"a": np.array([627.0]), "b": np.array([443.0])}, 5.0, 1.0, None, None).metrics()
    assert two == {"a/return": 627.0, "b/return": 443.0, "episode_length": 5.0, "terminated": 1.0, "episodes": 1}


def test_which_checkpoint_it_is(run):
    assert describe_checkpoint(run, checkpoint.LAST)[0] == "checkpoint: last, after 256 env_steps"


def test_an_evaluation_without_a_mean_is_not_compared(tmp_path):
    checkpoint.save(tmp_path, 300, {}, {"evaluation": {"mean": 1.0}})
    checkpoint.save(tmp_path, 100, {}, {"evaluation": {"stderr": 3.0}}, line=checkpoint.BEST)
    for line in (checkpoint.LAST, checkpoint.BEST):
        assert describe_checkpoint(tmp_path, line)[1:] == []


# What is said of a run at its end -------------------------------------------------------------------------------------

SPEC = clockwork.spec
BAR = Config(env=EnvConfig(name="clockwork", solved_at=10.0), agent=A2CConfig())
NO_BAR = Config(env=EnvConfig(name="clockwork"), agent=A2CConfig())


def notes(history: Sequence[Mapping[str, float]], solved: bool = False, **more: float) -> str:
    metrics = {tag: value for row in history for tag, value in row.items()} | {"eval/best_env_steps": 5.0} | more
    lines = summarize(Course(metrics, history, SPEC, "return", BAR, solved))
    return "\n".join(str(line) for name, line in lines.items() if name.startswith("note"))


def test_means_stand_beside_their_standard_errors_to_the_digit_that_counts():
    for mean, error, shown in ((-246.6789, 3.4567, "-246.7 ± 3.5"), (500.0, 0.0, "500.0 ± 0.0"), (0.123456, 0.00123, "0.1235 ± 0.0012")):
        metrics = {"eval/return": mean, "eval/return_stderr": error, "eval/episodes": 1000.0}
        assert summarize(Course(metrics, [], SPEC, "return", NO_BAR, False))["eval/return"] == f"{shown} (1,000 fresh episodes)"


@pytest.mark.parametrize("solved", [True, False])
def test_solved_or_not_comes_first(solved):
    metrics = {"eval/return": 1.0, "eval/episodes": 10.0, "train/return": 1.0}
    first, *_ = summarize(Course(metrics, [], SPEC, "return", BAR, solved)).items()
    assert first == ("solved", f"{'yes' if solved else 'no'}: env.solved_at=10")


LEARNED = [
    {"train/return": float(n), "loss/entropy": 0.6, "loss/explained_variance": 0.5, "eval/return": float(n), "eval/return_stderr": 0.1}
    for n in range(10)
]


def test_nothing_is_said_of_a_run_that_learned():
    assert notes(LEARNED, **{"eval/best_return": 9.0, "eval/episodes": 100}) == ""


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"train/return": -500.0}, "all recent training episodes returned -500"),
        ({"loss/entropy": 0.01}, "the entropy of the policy fell to 0.01 of at most 0.69"),
        ({"loss/explained_variance": 0.04, "train/return": 2.0}, "the value function explains at most 4% of the variance"),
        ({"train/return": 2.0}, "no evaluation was better than the first one"),
    ],
)
def test_a_curve_that_does_not_learn_is_named_unless_the_run_is_solved(values, said):
    history = [row | {"eval/return": 1.0} | values for row in LEARNED]
    best = {"eval/best_return": 1.0, "eval/episodes": 100}
    assert said in notes(history, **best)
    assert said not in notes(history, solved=True, **best)
    # In the first half it is how a run begins.
    assert said not in notes(history[:5] + LEARNED[5:], **best | {"eval/best_return": 9.0})


def test_nothing_is_said_of_curves_without_a_bar_if_evaluations_got_better():
    history = [row | {"loss/entropy": 0.01} for row in LEARNED]
    metrics = history[-1] | {"eval/best_return": 9.0, "eval/best_env_steps": 5.0, "eval/episodes": 100}
    assert not [name for name in summarize(Course(metrics, history, SPEC, "return", NO_BAR, False)) if name.startswith("note")]
    level = [row | {"eval/return": 9.0} for row in history]
    assert "stopped exploring" not in str(summarize(Course(metrics, level, SPEC, "return", NO_BAR, False)))
    stuck = [row | {"train/return": float(n % 3)} for n, row in enumerate(level)]
    assert "stopped exploring" in str(summarize(Course(metrics, stuck, SPEC, "return", NO_BAR, False)))


def halfway(records: int, progress: float = 0.5, values: Mapping[str, float] = {"train/return": 0.0}, **more: float) -> list[str]:
    """Return what a run that has stopped exploring is told twice."""
    history = [row | {"loss/entropy": 0.01, "eval/return": 1.0} | values for row in LEARNED[:records]]
    said: list[str] = []
    once = Notes(said.append, [])
    for _ in range(2):
        once.halfway(progress, Course({"eval/return": 1.0} | more, history, SPEC, "return", BAR, False))
    assert bool(once.told) == (progress >= 0.5 and records >= 8)
    return said


def test_a_run_that_does_not_learn_is_told_once_halfway():
    assert any(line.startswith("halfway: the entropy of the policy fell to 0.01") for line in halfway(10))
    assert len(halfway(10)) == len(set(halfway(10)))


def test_a_run_is_told_nothing_in_its_first_half_or_above_its_bar_or_of_few_records():
    assert halfway(10, progress=0.49) == halfway(7) == halfway(10, **{"eval/return": 10.0}) == []


def test_a_run_that_gets_better_is_told_halfway_only_of_what_is_wrong_all_the_same():
    assert halfway(10, values={}) == []
    (note,) = halfway(10, values={"loss/approx_kl": 0.4})
    assert "by a KL divergence of 0.4" in note


def test_returns_that_are_cut_are_told():
    assert "12 of 100 episodes were cut after eval.max_steps steps" in notes(LEARNED, **{"eval/unfinished": 12, "eval/episodes": 100})
