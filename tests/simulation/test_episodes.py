"""How episodes end and begin, and what may not change a result: threads, other environments, the length of a rollout, engine.debug."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.environments import clockwork, dice
from tests.environments.conditional import environment
from tests.finished import QUIET, weights
from tests.selection import few
from tests.simulation.rollouts import CASES, RandomPolicies, engine_of, make, record
from warprun.config.compose import compose
from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.kernels.flow import unassigned, writes_the_same
from warprun.runs.train import train
from warprun.simulation import comparison
from warprun.simulation.codegen.expressions import Expressions
from warprun.simulation.device import choose
from warprun.simulation.kernel_engine import first_cuts

LIMIT = clockwork.environment.time_limit
N_ENVS, HORIZON = 70, 11  # a tile and a part of one; 4 truncations where nothing terminates
VARY = {"weight": (-1.0, 3.0), "length": (5.0, 6.0)}
LONG = 1_000_000
TICKET, STEPS, CLOCK, WEIGHT, LENGTH = range(5)


def roll(seed=0, ends=0.0, horizon=HORIZON, collects=1, **more):
    """Roll out with a share `ends` of actions that terminate; return the engine, and per rollout (trajectory, actions)."""
    engine = make(clockwork.environment, "clockwork", n_envs=N_ENVS, horizon=horizon, seed=seed, vary=VARY, threads=2, **more)
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


@pytest.mark.parametrize("first", ["", "cut off", "whole"])
@pytest.mark.parametrize("ends", [0.0, 0.3])
def test_every_step_by_hand(ends, first):
    """Clock, reward, kind of end, final observation and next episode, for two rollouts on end."""
    engine, rollouts = roll(ends=ends, collects=2, first_env=5, staggered=first != "", whole=first == "whole")
    cut_at = first_cuts(LIMIT, 5, N_ENVS) if first == "cut off" else [-1] * N_ENVS
    clock, returns, now = np.zeros(N_ENVS, int), np.zeros(N_ENVS), -1
    lengths, totals = [], []
    for taken, action in rollouts:
        cuts = np.zeros(N_ENVS, int)
        for row in range(HORIZON):
            now += 1
            for env in range(N_ENVS):
                before, after = taken["obs"][row, env], taken["obs"][row + 1, env]
                clock[env] += 1
                returns[env] += clock[env]
                assert before[STEPS] == before[CLOCK] == clock[env] - 1
                assert taken["reward"][row, env] == clock[env]
                terminated = action[row, env] == 1
                truncated = not terminated and (clock[env] == LIMIT or now == cut_at[env])
                assert taken["terminated"][row, env] == terminated
                assert taken["truncated"][row, env] == truncated
                if truncated:
                    final = taken["final_obs"][cuts[env], env]
                    assert final[TICKET] == before[TICKET]
                    assert final[STEPS] == final[CLOCK] == clock[env]
                    assert torch.equal(final[WEIGHT:], before[WEIGHT:])
                    cuts[env] += 1
                if terminated or truncated:
                    if now > cut_at[env]:
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


def test_first_cuts_are_spread_over_the_limit_by_the_number_of_an_environment():
    """So several processes stagger as one does."""
    whole = first_cuts(200, 0, 1000)
    assert np.array_equal(whole[400:], first_cuts(200, 400, 600))
    counts = np.bincount(whole // 20)
    assert len(counts) == 10 and counts.min() > 95 and counts.max() < 105


def test_episodes_are_staggered_after_every_reset():
    engine = make(clockwork.environment, "clockwork", n_envs=N_ENVS, horizon=LIMIT, staggered=True, vary=VARY)
    for _ in range(2):
        engine.reset()
        for _ in range(3):  # in each rollout at the same step: first the cut, then the time limit
            cut = engine.retrace().truncated.numpy()
            assert np.array_equal(cut.sum(0), np.ones(N_ENVS)) and np.array_equal(cut.argmax(0), first_cuts(LIMIT, 0, N_ENVS))


class Waiting(NamedTuple):
    steps: int32


def begin_waiting():
    return Waiting(int32(0))


def wait(s, t):
    return Waiting(int32(s.steps + 1)), 0.1, t == LONG - 1


@pytest.mark.long
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


def test_a_whole_number_is_drawn_from_both_ends_and_all_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "SECONDS", 1e9)  # plain Python draws the same
    engine = make(dice.environment, "dice", n_envs=200, horizon=6, vary={"sides": (-1.0, 3.0), "worth": (1.0, 2.0)}, compares=True)
    seen = []
    for _ in range(4):
        engine.collect(RandomPolicies(engine))
        seen.append(engine.trajectory.groups["agent"].obs[:-1:2, :, 0, 1].clone())
        engine.carry_over()
    found, counts = np.unique(torch.cat(seen).numpy(), return_counts=True)
    assert found.tolist() == [-1, 0, 1, 2, 3]
    assert (abs(counts - counts.mean()) < 4 * counts.mean() ** 0.5).all()
    params = engine.params_of(0)
    assert (type(params.sides), type(params.worth)) == (np.int32, np.float32)


def seen(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    high = x > 0.5
    return np.stack([x, high, np.where(~high & (n < 3), n, 0), np.maximum(n, 0)], -1).astype(np.float32)


def test_rows_that_are_used_again() -> None:
    engine = make(environment, "conditional", n_envs=5, horizon=4)
    taken = engine.trajectory.groups["agent"]
    x, n, t = np.zeros(5), np.zeros(5, int), 0
    cut = 0
    for rollout in range(6):
        for row in range(4):
            actions = (np.arange(5) + rollout * row) % 2
            taken.action[row, :, 0, 0] = taken.action.new_tensor(actions)
            engine.step(row)
            over = x > 0.7
            before = x
            x = np.where(over, 0.0, x + np.where(actions == 0, 0.25, 0.125))
            n = np.where(over, 1, n + actions)
            reward = np.where(over, 1.0, np.where(actions == 0, 0.5, 1.0))
            assert (taken.reward[row, :, 0].numpy() == reward).all(), before
            t += 1
            if t == 7:
                assert (taken.final_obs[0, :, 0].numpy() == seen(x, n)).all()
                x, n, t, cut = np.zeros(5), np.zeros(5, int), 0, cut + 1
            assert (taken.obs[row + 1, :, 0].numpy() == seen(x, n)).all(), (rollout, row)
        engine.carry_over()
    assert cut == 3


CELLS = 4


def by_condition(s, out):
    out[0] = s.x
    if s.x > 0.5:
        out[1] = 1.0
    else:
        out[2] = 1.0


def in_another_order(s, out):
    if s.x > 0.5:
        out[0] = 1.0
        out[1] = 2.0
    else:
        out[1] = 0.0
        out[0] = 3.0


def of_actor(s, i, out):
    for n in range(CELLS):
        out[n] = s.x
    out[CELLS + i] = 1.0


def some_turns(s, out):
    for n in range(CELLS):
        if s.x > 0.5:
            break
        out[n] = s.x


def ends_early(s, out):
    out[0] = s.x
    if s.x > 0.5:
        return
    out[1] = 1.0


def adds(s, out):
    out[0] = s.x
    out[1] += 1.0


def of_parameter(s, p, out):
    n = 0
    while n < p.n:
        out[n] = s.x
        n += 1


def at_place(s, out):
    out[int(s.x)] = 1.0


@pytest.mark.parametrize(
    ("function", "same"),
    [(by_condition, False), (in_another_order, True), (of_actor, True), (some_turns, False)]
    + [(ends_early, False), (adds, False), (of_parameter, False), (at_place, False)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_rows_are_cleared_only_where_they_have_to_be(function, same: bool) -> None:
    assert writes_the_same(function) is same


def always_set(s, p):
    while True:
        a = 1
        if s.x > 0:
            break
    for n in range(CELLS):
        if s.x > n:
            continue
    for m in range(2):
        c = m
    if s.x > 1:
        d = 1
    elif s.x > 0:
        d = 2
    else:
        return 0
    if CELLS == 4:
        e = 1
    match n:
        case 0:
            f = 1
        case 1 if p > 0:
            return 0
        case f:
            pass
    return a + c + d + e + f + n + p


def sometimes_set(s, p):
    for n in range(p):
        a = n
    if s.x > 0 and (b := s.x):
        pass
    while s.x < 3:
        c = 1
    match n:
        case 0:
            d = 1
        case e if p > 0:
            d = e
    return a, b, c, d, n


def test_variables_without_a_value() -> None:
    assert unassigned(always_set) == {}
    assert sorted(unassigned(sometimes_set)) == ["a", "b", "c", "d", "n"]


NAMES = ("cartpole", "pendulum", "market")


def roll_case(name, n_envs, threads=1, horizon=8, collects=2, seed=0):
    case = CASES[name]
    return record(make(case.environment, name, n_envs=n_envs, threads=threads, horizon=horizon, seed=seed, vary=dict(case.vary)), collects)


def assert_same(a, b):
    for name in a.keys() - {"episodes", "returns"}:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def assert_close(a, b, n_envs):
    """Compare the first environments: integers exactly, floats up to the rounding of fused multiply-adds.

    The last tile, if it is not full, is computed without SIMD, and there LLVM may fuse other multiplications and additions.
    """
    for name in a.keys() - {"episodes", "returns"}:
        part = slice(n_envs) if ".state." in name else (slice(None), slice(n_envs))
        rtol = 1e-5 if a[name].dtype.kind == "f" else 0
        np.testing.assert_allclose(a[name][part], b[name][part], rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", NAMES)
def test_threads_other_environments_and_the_length_of_a_rollout_change_nothing(name):
    many = roll_case(name, 100)
    for n_envs in (1, 37):
        one, two = roll_case(name, n_envs, threads=1), roll_case(name, n_envs, threads=2)
        assert_same(one, two)
        np.testing.assert_array_equal(one["returns"], two["returns"])
        assert_close(one, many, n_envs)
    short, long = roll_case(name, 5, horizon=8, collects=2), roll_case(name, 5, horizon=16, collects=1)
    assert_same({key: value for key, value in short.items() if "first_obs" not in key}, long)


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", NAMES)
def test_seeds_change_everything(name):
    """Either half of the seed; the policy is the same."""
    first, low, high = (roll_case(name, 5, seed=seed) for seed in (0, 1, 2**32))
    for a, b in ((first, low), (first, high), (low, high)):
        for key in (key for key in a if key.endswith(".obs")):
            assert (a[key] != b[key]).mean() > 0.3, key


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", few(CASES, "cartpole", "market", "crane", "leaving", "tag_continuous"))
def test_rollouts_stay(name):
    plain, debugged = (record(engine_of(CASES[name], name, choose("cpu"), debug=debug), CASES[name].collects) for debug in (False, True))
    unknown = {array for array in plain if array.endswith(".log_prob") and CASES[name].exploration}
    for array in plain.keys() - unknown:
        np.testing.assert_array_equal(plain[array], debugged[array], array)
    assert all(np.isnan(debugged[array]).all() for array in unknown), "nobody writes these"


@pytest.mark.by_default(0)
@pytest.mark.parametrize(
    "run",
    [
        ["env=cartpole", "agent=a2c", "agent.horizon=8", "total_steps=768"],
        ["env=cartpole", "agent=dqn", "agent.learning_starts=64", "agent.batch_size=16", "total_steps=320"],
        ["env=pendulum", "agent=sac", "agent.learning_starts=64", "agent.batch_size=16", "total_steps=320", "env.time_limit=9"],
    ],
    ids=lambda run: f"{run[0]} {run[1]}",
)
def test_trainings_stay(run, tmp_path):
    for name in ("plain", "debugged"):
        train(compose([*QUIET, *run, "n_envs=32", f"run_dir={tmp_path}/{name}", f"engine.debug={name == 'debugged'}"]))
    plain, debugged = (weights(tmp_path / name) for name in ("plain", "debugged"))
    assert all(torch.equal(plain[name], debugged[name]) for name in plain)


@pytest.mark.long
def test_a_number_that_nobody_writes_shows(monkeypatch):
    monkeypatch.setattr(Expressions, "reductions", lambda *given: "")
    case = replace(CASES["market"], vary=())
    found = record(engine_of(case, "market", choose("cpu"), debug=True), 1)
    assert np.isnan(found["regulator.obs"]).any()
