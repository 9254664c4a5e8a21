"""Several actors as a PettingZoo environment: its own test, and the numbers of the environment in plain Python."""

import sys
import warnings

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

import warprun
from tests.selection import few
from warprun.errors import UserError
from warprun.interop.environments import Wishes, load
from warprun.simulation.kernel_module import typed
from warprun.simulation.plain import PlainEnvironment

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
def test_agents_get_what_the_actors_of_plain_python_get(name):
    env = warprun.make_parallel(name, time_limit=6)
    environment = load(name, Wishes(time_limit=6))[1]
    plain = PlainEnvironment(environment, seed=5, params=typed(environment.params()), tables=environment.make_tables())
    agents = {group.name: [f"{group.name}_{n}" for n in range(group.size)] for group in environment.groups}
    assert env.possible_agents == [agent for own in agents.values() for agent in own]
    (obs, infos), seen = env.reset(seed=5), plain.reset()
    assert set(obs) == set(infos) == set(env.agents)

    def compare(found, expected):
        for group, rows in expected.items():
            np.testing.assert_allclose([found[agent] for agent in agents[group]], rows, rtol=2e-6, atol=2e-6)

    for _ in range(6):
        compare({agent: _plain(own) for agent, own in obs.items()}, seen.observation)
        actions = {agent: env.action_space(agent).sample(_mask_of(obs[agent])) for agent in env.agents}
        taken = plain.step({group: np.array([np.atleast_1d(actions[agent]) for agent in own]) for group, own in agents.items()})
        obs, rewards, terminated, truncated, _ = env.step(actions)
        compare(rewards, taken.reward)
        assert (set(terminated.values()), set(truncated.values())) == ({taken.terminated}, {taken.truncated})
        seen = taken.final or taken.seen
        if taken.final:
            break
    compare({agent: _plain(own) for agent, own in obs.items()}, seen.observation)
    assert env.agents == []
    assert env.step({}) == ({}, {}, {}, {}, {})


def _plain(seen):
    return seen["observation"] if isinstance(seen, dict) else seen


def _mask_of(seen):
    return seen["action_mask"] if isinstance(seen, dict) else None
