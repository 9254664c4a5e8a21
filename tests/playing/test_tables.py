"""What a record says happened: held to Gymnasium, to the spaces, and the table to the arrays."""

from itertools import pairwise
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from scipy import stats

import warprun
from tests.environments.pinball import SPEC
from tests.playing import counted
from tests.playing.plays import MARKET, PINBALL, SMALL, made, numbers, of_tests, play_random, rows
from tests.simulation.external import misbehaving
from warprun.errors import TrainingFailed
from warprun.playing.episodes import RandomPolicy, episodes_of
from warprun.playing.play import Order, play
from warprun.runs import checkpoint
from warprun.runs.build import set_up
from warprun.runs.evaluation import evaluate_run
from warprun.runs.opening import load_checkpoint, open_run, trained_agent

FIELDS = ("state.x", "state.x_dot", "state.theta", "state.theta_dot")


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cartpole")
    played = play_random("env=cartpole", episodes=4, records=(folder / "a.csv", folder / "a.npz"))
    assert len(played) == 4
    return folder


def test_gymnasium_takes_every_recorded_step(cartpole: Path) -> None:
    table = rows(cartpole / "a.csv")
    other = gymnasium.make("CartPole-v1").unwrapped
    steps = 0
    for before, after in pairwise(table):
        if before["action"] == "":
            assert after["step"] == "0"
            continue
        other.reset()
        other.state = numbers([before], *FIELDS)[0].astype(np.float64)
        _, reward, terminated, _, _ = other.step(int(before["action"]))
        np.testing.assert_allclose(numbers([after], *FIELDS)[0], other.state, rtol=1e-6, atol=1e-6)
        assert (float(before["reward"]), before["terminated"], before["truncated"]) == (reward, str(int(terminated)), "0")
        steps += 1
    assert steps == sum(row["reward"] != "" for row in table) > 40
    np.testing.assert_array_equal(numbers(table, *FIELDS), numbers(table, *(f"obs.{n}" for n in range(4))))


def test_episodes_differ_and_are_those_of_their_seed(cartpole: Path, tmp_path: Path) -> None:
    firsts = {tuple(row[name] for name in FIELDS) for row in rows(cartpole / "a.csv") if row["step"] == "0"}
    assert len(firsts) == 4
    play_random("env=cartpole", episodes=4, records=(tmp_path / "again.csv",))
    assert (tmp_path / "again.csv").read_bytes() == (cartpole / "a.csv").read_bytes()
    play_random("env=cartpole", episodes=4, seed=1, records=(tmp_path / "other.csv",))
    assert not firsts & {tuple(row[name] for name in FIELDS) for row in rows(tmp_path / "other.csv")}


@pytest.mark.long
def test_the_table_has_the_numbers_of_the_arrays(tmp_path: Path) -> None:
    """Two groups with array fields, several components and masks."""
    played = play_random(*MARKET, episodes=3, records=(tmp_path / "a.csv", tmp_path / "a.npz"))
    table, arrays = rows(tmp_path / "a.csv"), np.load(tmp_path / "a.npz")
    steps = arrays["episode/steps"]
    assert steps.tolist() == [episode.steps for episode in played]
    assert (arrays["episode/terminated"] | arrays["episode/truncated"]).all()
    for group, actors, fields, components in (("producers", 5, ("price", "stock", "sold"), 1), ("regulator", 1, ("tax", "quota"), 2)):
        own = [row for row in table if row["group"] == group]
        assert len(own) == (steps + 1).sum() * actors
        for field in fields:
            np.testing.assert_array_equal(numbers(own, f"state.{field}")[:, 0], arrays[f"{group}/state/{field}"].ravel())
        size = arrays[f"{group}/obs"].shape[2]
        np.testing.assert_array_equal(numbers(own, *(f"obs.{n}" for n in range(size))), arrays[f"{group}/obs"].reshape(-1, size))
        acted = [row for row in own if row["reward"] != ""]
        columns = ["action"] if components == 1 else [f"action.{n}" for n in range(components)]
        np.testing.assert_array_equal(numbers(acted, *columns), arrays[f"{group}/action"].reshape(-1, components))
        np.testing.assert_array_equal(numbers(acted, "reward")[:, 0], arrays[f"{group}/reward"].ravel())
        returns = np.add.reduceat(arrays[f"{group}/reward"].mean(1, dtype=float), np.cumsum(steps) - steps)
        np.testing.assert_allclose(returns, [episode.returns[group] for episode in played], rtol=1e-6)
    producers = [row for row in table if row["group"] == "producers"]
    np.testing.assert_array_equal(
        numbers(producers, *(f"state.history.{n}" for n in range(3))), arrays["producers/state/history"].reshape(-1, 3)
    )
    ends = [row for row in producers if row["terminated"] == "1" or row["truncated"] == "1"]
    assert len(ends) == 3 * 5


@pytest.mark.parametrize(("multi", "first", "second"), [("false", {10, 11, 12}, None), ("true", {5, 6}, {-1, 0, 1})])
def test_choices_are_counted_as_the_environment_counts_them(tmp_path: Path, multi: str, first: set[int], second: set[int] | None) -> None:
    """In both kinds of records and for `draw`."""
    pytest.importorskip("matplotlib")
    counted.drawn.clear()
    settings = [*of_tests("counted", "playing"), "env.time_limit=12", f"env.kwargs.multi={multi}"]
    play_random(*settings, records=(tmp_path / "a.csv", tmp_path / "a.npz", tmp_path / "a.gif"))
    arrays, table = np.load(tmp_path / "a.npz"), [row for row in rows(tmp_path / "a.csv") if row["reward"] != ""]
    actions = arrays["agent/action"][:, 0]
    assert actions.dtype == np.int32 and set(actions[:, 0].tolist()) == first
    np.testing.assert_array_equal(actions[:, 0], arrays["agent/reward"][:, 0])
    assert second is None or set(actions[:, 1].tolist()) == second
    columns = ["action"] if second is None else ["action.0", "action.1"]
    np.testing.assert_array_equal(numbers(table, *columns), actions)
    np.testing.assert_array_equal(np.reshape([given for given in counted.drawn if given is not None], actions.shape), actions)


def test_randomized_parameters_and_actions_are_those_of_the_episode(tmp_path: Path) -> None:
    records = (tmp_path / "a.csv", tmp_path / "a.npz")
    play_random("env=pendulum", "env.randomize.gravity=[5,20]", "env.time_limit=20", episodes=3, records=records)
    arrays = np.load(tmp_path / "a.npz")
    assert len(set(arrays["p/gravity"].tolist())) == 3
    table = rows(tmp_path / "a.csv")
    for episode, gravity in enumerate(arrays["p/gravity"]):
        own = [row for row in table if row["episode"] == str(episode)]
        assert {np.float32(row["p.gravity"]) for row in own} == {gravity}
        theta, omega, torque = numbers(own, "state.theta", "state.omega", "action").T.astype(float)
        after = np.clip(omega[:-1] + 0.05 * (1.5 * gravity * np.sin(theta[:-1]) + 3 * torque[:-1]), -8, 8)
        np.testing.assert_allclose(after, omega[1:], atol=1e-4)
    assert 1.8 < np.nanmax(np.abs(numbers(table, "action"))) <= 2.0


def test_a_record_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("old")
    setup, module = made("env=cartpole")
    playing = play(setup, module, None, Order(episodes=2, records=(tmp_path / "a.csv", tmp_path / "a.npz")))
    next(playing)
    playing.close()
    assert (tmp_path / "a.csv").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


# Which episodes are played: those of `warprun eval`, uniform actions, and simulators without kernels


@pytest.mark.by_default(0)
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
    setup, _ = made(*of_tests("crane"), "eval.max_steps=400")
    policy = RandomPolicy(setup.environment.spec, 0)
    moments = list(episodes_of(setup, policy, 0, 1, True).moments(0))
    actions = np.stack([moment.taken.actions["cranes"] for moment in moments if moment.taken])
    bounded, free = actions.reshape(-1, 2).T
    assert stats.kstest(bounded, stats.uniform(-0.5, 2.5).cdf).pvalue > 1e-3
    assert stats.kstest(free, stats.norm.cdf).pvalue > 1e-3


FAULTY = {
    "gymnasium": [*of_tests("misbehaving", "simulation.external"), "env.kwargs.fault=mask", "env.kwargs.when=1"],
    "kernels": [*of_tests("flawed"), "env.actions=groups", "env.params.flaw=5", "env.params.step=1"],
}


@pytest.mark.by_default(1)
@pytest.mark.parametrize("kind", FAULTY)
def test_a_fault_ends_an_episode_as_it_ends_that_of_a_run(tmp_path: Path, kind: str) -> None:
    made(*FAULTY[kind])  # a process looks at an environment once, before the first of its episodes

    def begin() -> None:
        misbehaving.made.clear()
        misbehaving.Misbehaving()  # the next one has the fault

    begin()
    (episode,) = play_random(*FAULTY[kind], "env.on_nan=reset", records=(tmp_path / "a.npz",))
    arrays = np.load(tmp_path / "a.npz")
    group = next(name for name in arrays if name.endswith("/reward"))
    assert (episode.steps, episode.end) == (1, "fault")
    assert arrays["episode/terminated"].tolist() == [True] and not arrays[group].any()
    begin()
    with pytest.raises(TrainingFailed, match=r"in a recorded episode .* forbade every action at step 1 .* with env\.on_nan=reset"):
        play_random(*FAULTY[kind])


@pytest.mark.long
def test_an_episode_without_an_end_is_cut(tmp_path: Path) -> None:
    (episode,) = play_random(*of_tests("crane"), "eval.max_steps=7", records=(tmp_path / "a.npz",))
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
