"""Environments registered with Gymnasium: its own checks, and the episodes of the vector environment."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import warprun
from warprun.config.compose import environment_config, environment_names
from warprun.config.schema import load_environment
from warprun.environment import Environment
from warprun.errors import UserError
from warprun.interop.registration import IDS


def test_every_shipped_environment_of_one_actor_is_registered():
    alone = []
    for name in environment_names():
        if name == "gymnasium":
            continue  # stands for all environments of Gymnasium
        environment, _ = load_environment(environment_config(name))
        if not isinstance(environment, Environment):
            continue  # steps by itself, not in an engine
        if [group.size for group in environment.spec.groups] == [1]:
            alone.append(name)
    assert sorted(IDS.values()) == sorted(alone)
    assert all(id_ in gymnasium.registry for id_ in IDS)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize(
    "id_", ["CartPole", "Pendulum", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Acrobot", "MountainCar", "Catalysis"))]
)
def test_gymnasium_finds_nothing_wrong(id_):
    check_env(gymnasium.make(f"warprun/{id_}-v0").unwrapped)


def test_an_episode_ends_with_its_final_observation_and_waits_for_reset():
    env = gymnasium.make("warprun/CartPole-v0", params={"force": 20.0}, time_limit=6)
    envs = warprun.make_vec("cartpole", 1, params={"force": 20.0}, time_limit=6)
    obs, _ = env.reset(seed=3)
    np.testing.assert_array_equal(obs, envs.reset(seed=3)[0][0])
    for step in range(1, 7):
        found, expected = env.step(step % 2), envs.step(np.array([step % 2]))
        seen = expected[4]["final_obs"] if "final_obs" in expected[4] else expected[0]
        np.testing.assert_array_equal(found[0], seen[0])
        assert found[1:4] == (expected[1][0], expected[2][0], expected[3][0])
    assert found[3] and not found[2]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    assert (env.reset()[0] != obs).all()


def test_make_vec_of_gymnasium_makes_the_same():
    envs = gymnasium.make_vec("warprun/CartPole-v0", num_envs=3)
    np.testing.assert_array_equal(envs.reset(seed=1)[0], warprun.make_vec("cartpole", 3).reset(seed=1)[0])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_drawn_says_so():
    with pytest.raises(UserError, match="cannot be drawn"):
        gymnasium.make("warprun/CartPole-v0", render_mode="rgb_array", disable_env_checker=True)
