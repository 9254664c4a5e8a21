"""Which episodes are played: those of `warprun eval`, uniform actions, and simulators without kernels."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import warprun
from tests.environments.pinball import SPEC
from tests.playing.plays import MARKET, SMALL, made, numbers, play_random, rows
from warprun.playing.episodes import RandomPolicy, episodes_of
from warprun.playing.play import Order, play
from warprun.runs import checkpoint
from warprun.runs.build import set_up
from warprun.runs.evaluation import evaluate_run
from warprun.runs.opening import load_checkpoint, open_run, trained_agent

PINBALL = ["env=cartpole", "env.name=pinball", "env.module=tests.environments.pinball"]


@pytest.mark.by_default(1)
@pytest.mark.parametrize(("fused", "greedy"), [("false", True), ("false", False), pytest.param("true", True, marks=pytest.mark.slow)])
def test_episodes_are_those_of_an_evaluation(tmp_path: Path, fused: str, greedy: bool) -> None:
    """Exactly if the networks run in torch in both, else up to the rounding of sums."""
    folder = tmp_path / "run"
    warprun.train(
        ["env=pendulum", *SMALL, f"engine.fused={fused}", "total_steps=256", "eval.episodes=2", "env.time_limit=30", f"run_dir={folder}"]
    )
    expected = evaluate_run(folder, 5, greedy, "cpu", seed=3)
    run = open_run(folder, "cpu", False, 5)
    setup = set_up(run.config)
    agent = trained_agent(setup, load_checkpoint(run, checkpoint.LAST))
    records = (tmp_path / "a.npz",)
    played = list(play(setup, run.module, agent, Order(episodes=5, seed=3, greedy=greedy, records=records)))
    returns = np.array([episode.returns["agent"] for episode in played])
    assert returns.mean() == pytest.approx(expected["return"], rel=1e-6 if fused == "false" else 1e-3)
    assert returns.std(ddof=1) == pytest.approx(expected["return_std"], rel=1e-5 if fused == "false" else 1e-3)
    if fused == "false":  # fewer episodes are the first of them
        fewer = list(play(setup, run.module, agent, Order(episodes=2, seed=3, greedy=greedy)))
        assert [episode.returns["agent"] for episode in fewer] == pytest.approx(list(returns[:2]), rel=1e-6)
    rewards = np.load(records[0])["agent/reward"].reshape(5, 30).sum(1, dtype=float)
    np.testing.assert_allclose(rewards, returns, rtol=1e-6)


@pytest.mark.by_default(0)
def test_random_choices_are_uniform_and_allowed(tmp_path: Path) -> None:
    played = play_random(*MARKET, episodes=200, records=(tmp_path / "a.npz",))
    assert {episode.end for episode in played} <= {"terminated", "truncated"}
    arrays = np.load(tmp_path / "a.npz")
    tax, quota = arrays["regulator/action"][:, 0].T
    assert set(tax) <= {0, 1, 2} and set(quota) == {0, 1}
    before = np.concatenate([[True] * n + [False] for n in arrays["episode/steps"]])
    stock = arrays["producers/state/stock"][before]
    sold = arrays["producers/action"][..., 0]
    assert (sold <= stock).all()  # what the mask allows
    all_allowed = sold[(stock >= 3) & (arrays["regulator/state/quota"][before] >= 3)]
    counts = np.bincount(all_allowed, minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-3, counts


@pytest.mark.by_default(0)
def test_random_numbers_are_uniform_within_their_bounds() -> None:
    setup, _ = made("env=cartpole", "env.name=crane", "env.module=tests.environments.crane", "eval.max_steps=400")
    policy = RandomPolicy(setup.environment.spec, 0)
    moments = list(episodes_of(setup, policy, 0, 1, True).moments(0))
    actions = np.stack([moment.taken.actions["cranes"] for moment in moments if moment.taken])
    bounded, free = actions.reshape(-1, 2).T
    assert stats.kstest(bounded, stats.uniform(-0.5, 2.5).cdf).pvalue > 1e-3
    assert stats.kstest(free, stats.norm.cdf).pvalue > 1e-3


def test_an_episode_without_an_end_is_cut(tmp_path: Path) -> None:
    (episode,) = play_random(
        "env=cartpole", "env.name=crane", "env.module=tests.environments.crane", "eval.max_steps=7", records=(tmp_path / "a.npz",)
    )
    assert (episode.steps, episode.end) == (7, "cut")
    arrays = np.load(tmp_path / "a.npz")
    assert not arrays["episode/terminated"][0] and not arrays["episode/truncated"][0]
    assert len(arrays["cranes/obs"]) == 8


def test_simulators_without_kernels_are_played_one_after_the_other(tmp_path: Path) -> None:
    played = play_random(*PINBALL, episodes=6, records=(tmp_path / "a.csv", tmp_path / "a.npz"))
    table = rows(tmp_path / "a.csv")
    assert not [column for column in table[0] if column.startswith("state")]
    ends = set()
    for number, episode in enumerate(played):
        own = [row for row in table if row["episode"] == str(number)]
        assert [row["step"] for row in own] == [str(n) for n in range(episode.steps + 1)]
        x, action, reward = numbers(own, "obs.0", "action", "reward").T
        known = np.isfinite(x)
        moved = x[:-1] + np.where(action[:-1] == 1, 0.1, -0.1)
        np.testing.assert_allclose(x[1:][known[1:]], moved[known[1:]], atol=1e-6)
        np.testing.assert_allclose(reward[:-1], 1 - np.abs(moved), atol=1e-6)
        assert episode.returns["ball"] == pytest.approx(float(np.sum(reward[:-1], dtype=float)), abs=1e-5)
        # The simulator has begun the next episode, so nobody knows where a terminated one ended.
        assert known[-1] == (episode.end == "truncated")
        assert episode.end == ("terminated" if abs(moved[-1]) > 1 else "truncated") and episode.steps <= SPEC.time_limit
        ends.add(episode.end)
    assert len({row["obs.0"] for row in table if row["step"] == "0"}) == 6
