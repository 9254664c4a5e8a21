"""Stable-Baselines3 on compiled environments: infos at the end of episodes, and PPO."""

import numpy as np
import pytest

import warprun
from tests.interop.test_vector import MASKED
from warprun.errors import UserError

sb3 = pytest.importorskip("stable_baselines3")
vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
evaluation = pytest.importorskip("stable_baselines3.common.evaluation")

CLOCKWORK = "tests.environments.clockwork"


def test_infos_of_ended_episodes():
    """Clockwork counts its steps in its observation, and its time limit is 3."""
    envs = warprun.make_sb3(CLOCKWORK, 40)
    envs.seed(2)
    envs.reset()
    draw = np.random.default_rng(0)
    truncated = terminated = 0
    for _ in range(12):
        obs, _, dones, infos = envs.step((draw.random(40) < 0.2).astype(np.int64))
        assert len(infos) == 40
        for n, info in enumerate(infos):
            assert bool(info) == bool(dones[n])
            assert (obs[n, 1] == 0) == dones[n]
            if dones[n]:
                length = int(info["terminal_observation"][1])
                assert info["episode"]["l"] == length
                assert info["episode"]["r"] == length * (length + 1) / 2
                assert not info["TimeLimit.truncated"] or length == 3
                truncated += info["TimeLimit.truncated"]
                terminated += not info["TimeLimit.truncated"]
    assert truncated and terminated


@pytest.mark.filterwarnings("ignore:The environment is already wrapped")
def test_wrappers_and_ppo_run():
    envs = vec_env.VecNormalize(vec_env.VecMonitor(warprun.make_sb3("cartpole", 16)))
    model = sb3.PPO("MlpPolicy", envs, n_steps=16, batch_size=64, n_epochs=1, seed=0, device="cpu")
    model.learn(512)
    assert model.num_timesteps == 512
    assert model.ep_info_buffer and 5 < np.mean([info["r"] for info in model.ep_info_buffer]) < 100


def test_attributes_seeds_and_infos():
    envs, other = (warprun.make_sb3("cartpole", 4) for _ in range(2))
    envs.seed(9)
    other.seed(9)
    for _ in range(2):
        np.testing.assert_array_equal(envs.reset(), other.reset())
    infos = envs.step(np.zeros(4, np.int64))[3]
    with pytest.raises(TypeError, match="shared"):
        infos[0]["mine"] = 1
    infos[0].copy()["mine"] = 1
    assert infos[1] == {}
    assert envs.get_attr("render_mode", [1, 2]) == [None, None]
    with pytest.raises(UserError, match="cannot be set"):
        envs.set_attr("gravity", 1.0)
    with pytest.raises(UserError, match="cannot be called"):
        envs.env_method("action_masks")
    assert not envs.has_attr("action_masks")
    envs.set_options({"start": 0.0})
    with pytest.raises(UserError, match="no options"):
        envs.reset()
    assert envs.reset().shape == (4, 4)


@pytest.mark.long
def test_masks_are_answered(tmp_path):
    """As MaskablePPO of sb3-contrib asks; the last action is forbidden, and action 2 ends the episode."""
    file = tmp_path / "masked.py"
    file.write_text(MASKED)
    envs = warprun.make_sb3(str(file), 2)
    assert envs.has_attr("action_masks")
    with pytest.raises(UserError, match="reset"):
        envs.env_method("action_masks")
    envs.reset()
    np.testing.assert_array_equal(np.stack(envs.env_method("action_masks")), [[False, True, True]] * 2)
    infos = envs.step(np.array([1, 2]))[3]
    np.testing.assert_array_equal(np.stack(envs.env_method("action_masks")), [[True, False, True], [False, True, True]])
    np.testing.assert_array_equal(envs.get_attr("action_masks", 0)[0](), [True, False, True])
    first = infos[1]["episode"]["t"]
    infos = envs.step(np.array([0, 2]))[3]
    assert infos[1]["episode"]["t"] > first


@pytest.mark.slow
def test_ppo_solves_cartpole():
    """475 is the mean return at which CartPole counts as solved."""
    envs = warprun.make_sb3("cartpole", 64)
    settings = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "learning_rate": 1e-3, "gamma": 0.98, "gae_lambda": 0.8}
    model = sb3.PPO("MlpPolicy", envs, **settings, seed=0, device="cpu")
    model.learn(200_000)
    mean, _ = evaluation.evaluate_policy(model, warprun.make_sb3("cartpole", 100), n_eval_episodes=200, warn=False)
    assert mean >= 475
