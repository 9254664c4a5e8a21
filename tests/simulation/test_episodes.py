"""How episodes end and begin: terminated or truncated, final observations, auto-reset, statistics, parameters that vary."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.environments import clockwork
from tests.selection import few
from tests.simulation.rollouts import CASES, make
from warprun.environment import Box, Discrete, float32, int32, single_agent

LIMIT = clockwork.environment.time_limit
N_ENVS, HORIZON = 70, 11  # a tile and a part of one; 4 truncations where nothing terminates
VARY = {"weight": (-1.0, 3.0), "length": (5.0, 6.0)}
LONG = 1_000_000
TICKET, STEPS, CLOCK, WEIGHT, LENGTH = range(5)


def roll(seed=0, ends=0.0, horizon=HORIZON, collects=1):
    """Roll out with a share `ends` of actions that terminate; return the engine, and per rollout (trajectory, actions)."""
    engine = make(clockwork.environment, "clockwork", n_envs=N_ENVS, horizon=horizon, seed=seed, vary=VARY, threads=2)
    draw, rollouts = np.random.default_rng(5), []
    for _ in range(collects):
        taken = engine.trajectory
        if rollouts:
            engine.carry_over()
        agent = taken.groups["agent"]
        agent.action.copy_(torch.from_numpy(draw.random(agent.action.shape) < ends))
        for row in range(horizon):
            engine.step(row)
        kept = {name: getattr(agent, name)[:, :, 0].clone() for name in ("obs", "final_obs", "reward")}
        kept |= {"terminated": taken.terminated.clone(), "truncated": taken.truncated.clone()}
        rollouts.append((kept, agent.action[..., 0, 0].clone()))
    return engine, rollouts


@pytest.mark.parametrize("ends", [0.0, 0.3])
def test_every_step_by_hand(ends):
    """Clock, reward, kind of end, final observation and next episode, for two rollouts on end."""
    engine, rollouts = roll(ends=ends, collects=2)
    clock, returns = np.zeros(N_ENVS, int), np.zeros(N_ENVS)
    lengths, totals = [], []
    for taken, action in rollouts:
        cuts = np.zeros(N_ENVS, int)
        for row in range(HORIZON):
            for env in range(N_ENVS):
                before, after = taken["obs"][row, env], taken["obs"][row + 1, env]
                clock[env] += 1
                returns[env] += clock[env]
                assert before[STEPS] == before[CLOCK] == clock[env] - 1
                assert taken["reward"][row, env] == clock[env]
                terminated = action[row, env] == 1
                truncated = not terminated and clock[env] == LIMIT
                assert taken["terminated"][row, env] == terminated
                assert taken["truncated"][row, env] == truncated
                if truncated:
                    final = taken["final_obs"][cuts[env], env]
                    assert final[TICKET] == before[TICKET]
                    assert final[STEPS] == final[CLOCK] == LIMIT
                    assert torch.equal(final[WEIGHT:], before[WEIGHT:])
                    cuts[env] += 1
                if terminated or truncated:
                    lengths.append(clock[env])
                    totals.append(returns[env])
                    clock[env], returns[env] = 0, 0
                    assert after[STEPS] == after[CLOCK] == 0
                    assert after[TICKET] != before[TICKET]
                else:
                    assert after[TICKET] == before[TICKET]
    found = engine.episodes()
    assert (found.count, found.mean_length, found.mean_return["agent"]) == pytest.approx((len(lengths), np.mean(lengths), np.mean(totals)))
    again = engine.episodes()
    assert again.count == 0
    assert np.isnan(again.mean_length)


class Waiting(NamedTuple):
    steps: int32


def begin_waiting():
    return Waiting(int32(0))


def wait(s, t):
    return Waiting(int32(s.steps + 1)), 0.1, t == LONG - 1


def test_a_return_is_the_sum_of_its_rewards_in_long_episodes():
    """Sums of float32 would be 1 % off."""
    waiting = single_agent(
        state=Waiting, observation=Box(1), action=Discrete(2), reset=begin_waiting, step=wait, observe=lambda s: (float32(s.steps),)
    )
    engine = make(waiting, "waiting", n_envs=1, horizon=1000)
    for _ in range(LONG // 1000):
        engine.retrace()
    found = engine.episodes()
    assert (found.count, found.mean_length) == (1, LONG)
    assert found.mean_return["agent"] == pytest.approx(LONG * float(np.float32(0.1)), rel=1e-7)


def test_terminated_wins_over_truncated():
    """An action that terminates at the very step of the time limit."""
    engine = make(clockwork.environment, "clockwork", n_envs=N_ENVS, horizon=LIMIT, vary=VARY)
    taken = engine.trajectory
    taken.groups["agent"].action[LIMIT - 1, ::2] = 1
    for row in range(LIMIT):
        engine.step(row)
    assert taken.terminated[-1, ::2].all()
    assert not taken.truncated[-1, ::2].any()
    assert taken.truncated[-1, 1::2].all()
    assert not taken.terminated[-1, 1::2].any()
    assert not (taken.terminated | taken.truncated)[:-1].any()


def test_the_first_two_episodes_differ():
    """Also where the first ends with the first step of the run."""
    engine = make(clockwork.environment, "clockwork", n_envs=N_ENVS, horizon=2, vary=VARY)
    agent = engine.trajectory.groups["agent"]
    agent.action.fill_(1)
    engine.step(0)
    assert (agent.obs[0, :, 0, TICKET] != agent.obs[1, :, 0, TICKET]).all()
    assert (agent.obs[0, :, 0, WEIGHT] != agent.obs[1, :, 0, WEIGHT]).all()


def test_reset_in_the_middle_of_a_run_begins_new_episodes():
    engine = make(clockwork.environment, "clockwork", n_envs=N_ENVS, horizon=2, vary=VARY)
    agent = engine.trajectory.groups["agent"]
    engine.step(0)
    engine.step(1)
    engine.reset()
    seen = []
    engine.collect(lambda taken, row: seen.append(agent.obs[row, :, 0].clone()))
    assert (seen[0][:, STEPS] == 0).all()
    assert torch.equal(seen[0], agent.obs[0, :, 0])
    assert (seen[1][:, TICKET] == seen[0][:, TICKET])[agent.action[0, :, 0, 0] == 0].all()


def test_varied_parameters_hold_for_an_episode_and_lie_in_their_bounds():
    _, rollouts = roll(ends=0.3, horizon=40)
    taken, _ = rollouts[0]
    obs, over = taken["obs"], taken["terminated"] | taken["truncated"]
    for n, (low, high) in zip((WEIGHT, LENGTH), VARY.values(), strict=True):
        values = obs[..., n]
        assert (values >= low).all()
        assert (values <= high).all()
        assert ((values[1:] != values[:-1]) == over).all()
        episodes = values[:-1][over].numpy()
        assert len(np.unique(episodes)) > 0.99 * episodes.size
        # Uniform: mean and standard deviation of a few hundred draws.
        assert episodes.mean() == pytest.approx((low + high) / 2, abs=0.05 * (high - low))
        assert episodes.std() == pytest.approx((high - low) / 12**0.5, rel=0.1)
    for n in (TICKET, WEIGHT, LENGTH):
        assert len(np.unique(obs[0, :, n])) == N_ENVS
    assert abs(np.corrcoef(obs[0, :, WEIGHT], obs[0, :, LENGTH])[0, 1]) < 0.4


def test_parameters_that_do_not_vary_keep_what_they_are_set_to():
    engine = make(clockwork.environment, "clockwork", params=clockwork.Params(weight=7.5))
    assert (engine.trajectory.groups["agent"].obs[0, :, 0, WEIGHT] == 7.5).all()


@pytest.mark.by_default(0)
@pytest.mark.parametrize("case", few(["cartpole", "market"], "cartpole"))
def test_retracing_equals_stepping(case):
    """Twice, for a rollout begins where the one before ended."""
    engines = [make(CASES[case].environment, case, horizon=8, n_envs=70, seed=3) for _ in range(2)]
    for round_ in range(2):
        for engine in engines:
            for group in engine.trajectory.groups.values():
                group.action.copy_(torch.randint(0, 2, group.action.shape, generator=torch.Generator().manual_seed(round_)))
        engines[0].retrace()
        if round_:
            engines[1].carry_over()
        for row in range(8):
            engines[1].step(row)
        first, second = (engine.trajectory for engine in engines)
        assert torch.equal(first.terminated, second.terminated)
        for name, group in first.groups.items():
            assert torch.equal(group.obs, second.groups[name].obs)
            assert torch.equal(group.reward, second.groups[name].reward)
    assert engines[0].steps == engines[1].steps == 16
