"""What an evaluation says is true of episodes that nobody has chosen."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import warprun
from tests.words import words
from warprun.config.cadence import Cadence
from warprun.config.compose import compose
from warprun.config.schema import from_dict
from warprun.runs import checkpoint, rundir
from warprun.runs.build import make_agent, make_training_simulator, set_up
from warprun.runs.evaluation import Evaluation, Evaluator, evaluate_run
from warprun.runs.timetable import interval
from warprun.simulation.kernel_engine import KernelEngine
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


class Scripted:
    """A simulator of steps that are given: arrays [step, environment]."""

    def __init__(self, horizon: int, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> None:
        self.n_envs, self._horizon, self._at = rewards.shape[1], horizon, 0
        self._given = [torch.from_numpy(array) for array in (terminated, truncated, rewards)]
        self._take()

    def _take(self) -> None:
        terminated, truncated, rewards = (array[self._at : self._at + self._horizon] for array in self._given)
        groups = {"agent": SimpleNamespace(reward=rewards[..., None])}
        self.trajectory = SimpleNamespace(horizon=self._horizon, terminated=terminated, truncated=truncated, groups=groups)

    def reset(self) -> None:
        self._at = -self._horizon

    def collect(self, act: object, greedy: bool) -> None:
        self._at += self._horizon
        taken = self.trajectory
        self._take()
        for name in ("terminated", "truncated", "groups"):  # an evaluation keeps the trajectory
            setattr(taken, name, getattr(self.trajectory, name))
        self.trajectory = taken

    def fault(self, wait: bool) -> None:
        return None


@pytest.mark.parametrize("seed", range(5))
def test_an_episode_counts_up_to_its_end_or_to_the_last_step(seed):
    random, steps, n, last = np.random.default_rng(seed), 40, 6, 37
    rewards = random.normal(size=(steps, n)).astype(np.float32)
    terminated, truncated = random.random((2, steps, n)) < 0.015
    found = Evaluator.__new__(Evaluator)
    vars(found).update(
        endless=True, max_steps=last, replaces=False, device=torch.device("cpu"), agent=SimpleNamespace(act=None), episodes=n
    )
    found.simulator = Scripted(4, rewards, terminated, truncated)
    ends = [next((step for step in range(last) if terminated[step, k] or truncated[step, k]), None) for k in range(n)]
    lengths = [last if end is None else end + 1 for end in ends]
    played = found.play(greedy=True)
    expected = [rewards[:length, k].astype(np.float64).sum() for k, length in enumerate(lengths)]
    np.testing.assert_allclose(played.returns["agent"], expected, rtol=1e-12)
    assert played.mean_length == pytest.approx(np.mean(lengths)) and played.unfinished == ends.count(None)
    assert played.terminated == pytest.approx(np.mean([end is not None and terminated[end, k] for k, end in enumerate(ends)]))


def test_every_evaluation_plays_other_episodes():
    one = evaluator(10)
    means = [one.play(greedy=True).mean_return["agent"] for _ in range(5)]
    assert len(set(means)) == 5


def test_an_evaluation_has_the_kernels_of_training_and_cuts_off_no_episode(monkeypatch):
    monkeypatch.setattr("warprun.runs.evaluation.prepare", lambda *given: None)  # nothing is compiled
    setup = set_up(compose([*WALK, *SMALL, "agent.staggered=true"]))
    agent = make_agent(setup)
    training, playing = make_training_simulator(setup, agent), Evaluator(setup, agent, 4, 0).simulator
    assert isinstance(training, KernelEngine) and isinstance(playing, KernelEngine)
    assert playing._kernels._module is training._kernels._module
    assert (playing.arrays.common["cut_at"] == -1).all() and playing._cuts is None


def test_evaluations_take_a_tenth_of_the_steps_of_training_at_most(tmp_path, monkeypatch):
    """CartPole that goes on when it is solved: most episodes are as long as they can be."""
    made = []
    begin = Evaluator.__init__

    def noted(self, *given):
        begin(self, *given)
        made.append(self)

    monkeypatch.setattr(Evaluator, "__init__", noted)
    sizes = ["total_steps=5e5", "n_envs=256", "eval.episodes=5"]
    more = ["device=cpu", "log.live=false", "stop_when_solved=false", f"run_dir={tmp_path / 'run'}"]
    result = warprun.train(["env=cartpole", *sizes, *more])
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
