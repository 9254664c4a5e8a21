"""Several actors as a PettingZoo environment: its own test, and the numbers of the engine of training."""

import sys
import warnings

import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded

import warprun
from tests.selection import few
from tests.simulation.rollouts import make
from warprun.errors import UserError
from warprun.interop.environments import Wishes, load

pettingzoo_test = pytest.importorskip("pettingzoo.test")

MARKET = "tests.environments.market"


@pytest.mark.parametrize("library", ["gymnasium", "pettingzoo"])
def test_what_is_not_installed_is_named(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "warprun.interop.parallel", raising=False)
    with pytest.raises(UserError, match=rf'{library} is not installed; run: pip install "warprun\[pettingzoo\]"'):
        warprun.make_parallel(MARKET)


@pytest.mark.long
def test_pettingzoo_finds_nothing_wrong_and_every_agent_must_act():
    env = warprun.make_parallel(MARKET, time_limit=6)
    with pytest.raises(ResetNeeded):
        env.step({})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pettingzoo_test.parallel_api_test(env, num_cycles=40)
    env.reset(seed=0)
    both = {agent: env.action_space(agent).sample() for agent in env.agents}
    for actions, told in (
        ({}, "producers_0 has no action"),
        ({**both, "regulator_1": 0}, "no agent 'regulator_1'; did you mean 'regulator_0'"),
        ({**both, "producers_0": np.zeros(7, np.int64)}, "cannot be read"),
    ):
        with pytest.raises(UserError, match=told):
            env.step(actions)


@pytest.mark.long
@pytest.mark.parametrize("name", few([MARKET, "tag_gridworld", "tag_continuous"], MARKET))
def test_agents_get_what_the_actors_of_training_get(name):
    env = warprun.make_parallel(name, time_limit=6)
    engine = make(load(name, Wishes(time_limit=6))[1], name, n_envs=1, horizon=1, seed=5)
    assert env.possible_agents == [f"{group.name}_{n}" for group in engine.spec.groups for n in range(group.size)]
    obs, infos = env.reset(seed=5)
    assert set(obs) == set(infos) == set(env.agents)
    for _ in range(6):
        assert _rows(engine, 0) == {agent: _plain(seen) for agent, seen in obs.items()}
        actions = {agent: env.action_space(agent).sample(_mask_of(obs[agent])) for agent in env.agents}
        for name, taken in engine.trajectory.groups.items():
            given = [np.atleast_1d(actions[f"{name}_{n}"]) for n in range(taken.action.shape[2])]
            taken.action[0, 0] = torch.from_numpy(np.array(given, np.int32))
        engine.step(0)
        obs, rewards, terminated, truncated, _ = env.step(actions)
        for name, taken in engine.trajectory.groups.items():
            for n, reward in enumerate(taken.reward[0, 0].tolist()):
                assert rewards[f"{name}_{n}"] == reward
        assert set(truncated.values()) == {bool(engine.trajectory.truncated[0, 0])}
        assert set(terminated.values()) == {bool(engine.trajectory.terminated[0, 0])}
        if any(truncated.values()) or any(terminated.values()):
            break
        engine.carry_over()
    assert env.agents == []
    assert env.step({}) == ({}, {}, {}, {}, {})
    if any(truncated.values()):
        for name, taken in engine.trajectory.groups.items():
            for n, expected in enumerate(taken.final_obs[0, 0].numpy()):
                np.testing.assert_array_equal(_plain(obs[f"{name}_{n}"]), expected.tolist())


def _rows(engine, row):
    return {
        f"{name}_{n}": seen.tolist() for name, taken in engine.trajectory.groups.items() for n, seen in enumerate(taken.obs[row, 0].numpy())
    }


def _plain(seen):
    return (seen["observation"] if isinstance(seen, dict) else seen).tolist()


def _mask_of(seen):
    return seen["action_mask"] if isinstance(seen, dict) else None
