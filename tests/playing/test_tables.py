"""What a record says happened: held to Gymnasium, to the spaces, and the table to the arrays."""

from itertools import pairwise
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from tests.compiled import compiled
from tests.playing.plays import MARKET, made, numbers, play_random, rows
from warprun.kernels.sampling import to_bounds
from warprun.playing.play import Order, play
from warprun.runs.recording import in_environment_units
from warprun.spec import Box

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


def test_actions_are_those_that_the_environment_gets(tmp_path: Path) -> None:
    box = Box(4, (-2.0, 0.0, -np.inf, -0.5), (2.0, 0.3, np.inf, np.inf))
    given = np.random.default_rng(0).normal(scale=2.0, size=(1000, 4)).astype(np.float32)
    found = in_environment_units(box, given)
    assert found.dtype == np.float32
    inner = compiled(to_bounds)
    for n, (low, high) in enumerate(box.bounds()[:2]):
        expected = [inner(x, np.float32(low), np.float32(high)) for x in given[:, n]]
        np.testing.assert_array_equal(found[:, n], np.array(expected, np.float32))
    np.testing.assert_array_equal(found[:, 2], given[:, 2])
    np.testing.assert_array_equal(found[:, 3], np.maximum(given[:, 3], np.float32(-0.5)))
    play_random("env=pendulum", records=(tmp_path / "a.npz",))
    arrays = np.load(tmp_path / "a.npz")
    theta, omega = (arrays[f"agent/state/{name}"][:, 0].astype(float) for name in ("theta", "omega"))
    torque = arrays["agent/action"][:, 0, 0].astype(float)
    np.testing.assert_allclose(np.clip(omega[:-1] + 0.05 * (15 * np.sin(theta[:-1]) + 3 * torque), -8, 8), omega[1:], atol=1e-4)
    assert 1.9 < np.abs(torque).max() <= 2.0


def test_randomized_parameters_are_those_of_the_episode(tmp_path: Path) -> None:
    play_random(
        "env=pendulum", "env.randomize.gravity=[5,20]", "env.time_limit=20", episodes=3, records=(tmp_path / "a.csv", tmp_path / "a.npz")
    )
    arrays = np.load(tmp_path / "a.npz")
    assert len(set(arrays["p/gravity"].tolist())) == 3
    table = rows(tmp_path / "a.csv")
    for episode, gravity in enumerate(arrays["p/gravity"]):
        own = [row for row in table if row["episode"] == str(episode)]
        assert {np.float32(row["p.gravity"]) for row in own} == {gravity}
        theta, omega, torque = numbers(own, "state.theta", "state.omega", "action").T.astype(float)
        after = np.clip(omega[:-1] + 0.05 * (1.5 * gravity * np.sin(theta[:-1]) + 3 * torque[:-1]), -8, 8)
        np.testing.assert_allclose(after, omega[1:], atol=1e-4)


def test_a_record_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("old")
    setup, module = made("env=cartpole")
    playing = play(setup, module, None, Order(episodes=2, records=(tmp_path / "a.csv", tmp_path / "a.npz")))
    next(playing)
    playing.close()
    assert (tmp_path / "a.csv").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
