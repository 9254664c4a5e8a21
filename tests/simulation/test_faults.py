"""What kernels find that is not finite: exactly the planted environment, step, group and place, in the rollout where it occurs.

CUDA kernels find the same in tests/ptx/test_environments.py.
"""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.environments import clockwork, flawed
from tests.environments.flawed import MASK, MASK_LATER, OBS_INF, OBS_NAN, REWARD_INF, REWARD_NAN, Params
from tests.selection import few
from tests.simulation.rollouts import CASES, CPU, TANH, RandomPolicies, acting, engine_of, make
from warprun.environment import Box, Discrete, Environment, Group, Phase, float32
from warprun.simulation.allocation import POISON
from warprun.simulation.device import Device, choose
from warprun.simulation.exploration import Exploration
from warprun.simulation.faults import Fault
from warprun.simulation.trajectory import GroupTrajectory

HORIZON, N_ENVS = 4, 3
NAN, INF = math.nan, math.inf

# flaw, environment, step, group, actor
PLANTED: dict[str, tuple[Params, Fault | None]] = {
    "nothing": (Params(), None),
    "reward nan": (Params(REWARD_NAN, 2, 7, 0, 1), Fault(2, 7, "miners", "reward", 1, 0, NAN)),
    "reward inf": (Params(REWARD_INF, 1, 1, 1, 0), Fault(1, 1, "planner", "reward", 0, 0, INF)),
    "observation nan": (Params(OBS_NAN, 2, 6, 2, 1), Fault(2, 6, "traders", "observation", 1, 1, NAN)),
    "observation -inf": (Params(OBS_INF, 0, 8, 1, 0), Fault(0, 8, "planner", "observation", 0, 2, -INF)),
    "final observation": (Params(OBS_NAN, 1, 5, 0, 2), Fault(1, 5, "miners", "final observation", 2, 1, NAN)),
    "the second final observation": (Params(OBS_INF, 2, 10, 2, 0), Fault(2, 10, "traders", "final observation", 0, 1, -INF)),
    "mask": (Params(MASK, 1, 3, 0, 1), Fault(1, 3, "miners", "mask", 1, 0, 0.0)),
    "mask of one choice": (Params(MASK_LATER, 0, 9, 1, 0), Fault(0, 9, "planner", "mask", 0, 1, 0.0)),
}


def find(case: str, device: Device, fused: bool, n_envs: int = N_ENVS) -> Fault | None:
    """Return what the engine finds after the first rollout in which it finds anything."""
    environment = flawed.environment("groups")
    networks = acting(environment, TANH, device, fused=True).networks() if fused else None
    params = PLANTED[case][0]
    engine = make(environment, "flawed", device=device, n_envs=n_envs, horizon=HORIZON, params=params, seed=3, networks=networks)
    act = RandomPolicies(engine)
    for _ in range(3):
        engine.collect(act)
        fault = engine.fault()
        if fault:
            # In the rollout where it occurs, not later.
            assert engine.steps - HORIZON < fault.step <= engine.steps
            return fault
    return None


def same(found: Fault | None, expected: Fault | None) -> bool:
    """Compare with NaN equal to NaN."""
    return repr(found) == repr(expected)


@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["stepwise", "fused"])
@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_fault_is_found_where_it_is(case, fused):
    assert same(find(case, CPU, fused), PLANTED[case][1])


class Broken(RandomPolicies):
    def __init__(self, engine, group, output, value):
        super().__init__(engine)
        self.broken = (group, output, value)

    def __call__(self, trajectory, row):
        super().__call__(trajectory, row)
        group, output, value = self.broken
        if row == 2:
            trajectory.groups[group].policy_output[1, -1, output] = value


@pytest.mark.parametrize("greedy", [False, True], ids=["sampled", "greedy"])
@pytest.mark.parametrize(
    ("group", "output", "value", "actor"),
    [("miners", 1, NAN, 2), ("miners", 0, INF, 2), ("planner", 4, NAN, 0), ("traders", 0, NAN, 1), ("traders", 3, NAN, 1)],
)
def test_what_a_policy_gives_is_looked_at(group, output, value, actor, greedy):
    engine = make(flawed.environment("groups"), "flawed", n_envs=70, horizon=HORIZON)
    engine.collect(Broken(engine, group, output, value), greedy)
    fault = engine.fault()
    assert (fault.environment, fault.step, fault.group, fault.field, fault.actor) == (1, 3, group, "action", actor)


@pytest.mark.long
def test_an_action_that_explores_is_looked_at():
    environment = flawed.environment("box")
    exploration = Exploration("explored", {"agent": torch.tensor([0.0, 0.2, 1.0])})
    engine = make(environment, "flawed", n_envs=70, horizon=HORIZON, exploration=exploration)
    engine.collect(Broken(engine, "agent", 0, math.nan))
    assert str(engine.fault()) == "environment 1 was given an action of nan by the policy at step 3 (group agent, actor 0, component 0)"


def test_the_first_of_several_is_named():
    engine = make(clockwork.environment, "clockwork", n_envs=200, horizon=6, vary={"weight": (0.0, 1.0), "length": (5.0, 6.0)})
    engine.steps = 2**32 - 3  # where the count of the kernels begins anew
    engine.reset()

    def act(trajectory, row):
        trajectory.groups["agent"].policy_output[:] = 0.0
        if row >= 3:
            trajectory.groups["agent"].policy_output[150:] = math.nan
        if row >= 4:
            trajectory.groups["agent"].policy_output[3:] = math.nan

    engine.collect(act)
    fault = engine.fault()
    assert (fault.environment, fault.step) == (150, 2**32 + 1)
    engine.reset()
    assert engine.fault() is None


@pytest.mark.parametrize("replaces", [False, True])
def test_a_reset_is_looked_at(replaces):
    """An environment that is wrong from the start is a fault also where others begin anew."""
    engine = make(
        clockwork.environment, "clockwork", n_envs=70, vary={"weight": (math.nan, math.nan), "length": (5.0, 6.0)}, replaces=replaces
    )
    fault = engine.fault()
    assert (fault.environment, fault.step, fault.field, fault.component) == (0, 0, "observation", 3)


@pytest.mark.parametrize("flaw", [REWARD_NAN, OBS_INF, MASK], ids=["reward", "observation", "mask"])
@pytest.mark.parametrize("actions", few(["discrete", "groups"], "discrete"))
def test_environments_that_went_wrong_begin_anew_and_are_counted(actions, flaw):
    """Number, rewards, ends, draws and statistics, against a count in plain Python."""
    if actions == "discrete" and flaw == MASK:
        return
    every, wrong, horizon, collects, n_envs = 7, 65, 8, 4, 70
    params = flawed.Params(flaw, wrong, every, again=True)
    engine = make(flawed.environment(actions), "flawed", n_envs=n_envs, horizon=horizon, params=params, replaces=True)
    name = engine.environment.groups[0].name
    count, lengths, returns, clock, earned = 0, [], [], [0] * n_envs, [0.0] * n_envs
    for n in range(collects):
        taken = engine.collect(RandomPolicies(engine))
        reward, obs = taken.groups[name].reward.double().mean(-1), taken.groups[name].obs
        assert all(group.obs.isfinite().all() and group.reward.isfinite().all() for group in taken.groups.values())
        for row in range(horizon):
            for env in range(n_envs):
                clock[env] += 1
                earned[env] += float(reward[row, env])
                if env == wrong and (n * horizon + row + 1) % every == 0:
                    count += 1
                    assert reward[row, env] == 0.0
                    assert taken.terminated[row, env]
                    assert not taken.truncated[row, env]
                    assert obs[row + 1, env, 0, 0] != obs[row, env, 0, 0]
                elif clock[env] == 5:
                    lengths.append(clock[env])
                    returns.append(earned[env])
                    assert taken.truncated[row, env]
                else:
                    assert not taken.truncated[row, env]
                    assert not taken.terminated[row, env]
                    continue
                clock[env], earned[env] = 0, 0.0
    assert engine.fault() is None
    ended = engine.episodes()
    assert ended.replaced == count == horizon * collects // every
    assert engine.episodes().replaced == 0
    assert (ended.count, ended.mean_length) == (len(lengths), 5.0)
    assert ended.mean_return[name] == pytest.approx(sum(returns) / len(returns), rel=1e-6)


# With engine.debug what a rollout has to write is NaN before it; nothing reads it -------------------------------------


class State(NamedTuple):
    x: float32


def observe(s, i, out):
    out[0] = s.x
    out[1 + i] = 1.0


def test_entries_that_are_never_written_are_0():
    """Also those that are others for each actor."""
    actors = Group("actors", 3, State, Box(5), Discrete(2), lambda: State(1.0), observe)
    made = make(Environment((actors,), (Phase("actors", lambda s: (s, 0.0, False)),)), "one_of_three", debug=True)
    seen = made.collect(RandomPolicies(made)).groups["actors"].obs
    assert (seen.numpy() == np.concatenate([np.ones((3, 1)), np.eye(3), np.zeros((3, 1))], 1)).all()


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", ["leaving", "market"])
def test_all_that_a_rollout_has_to_write_is_filled(name, monkeypatch):
    made = engine_of(CASES[name], name, choose("cpu"), debug=True)
    monkeypatch.setattr(made, "_roll_out", lambda *given: None)
    taken = made.collect(None)
    kept = {"began", "clock", "cuts", "ended", "ended_steps", "fault", "any_fault", "varied", "vary_bounds", "f", "i"}
    kept |= {"episode_return", "ended_return", "noise", "exploration"}
    tensors = {name: tensor for name, tensor in made.arrays.by_name().items() if name.rpartition(".")[2] not in kept}
    for name, group in taken.groups.items():
        tensors |= {f"{name}.{n}": tensor[1:] if n in ("obs", "mask", "alive") else tensor for n, tensor in named(group).items()}
    assert tensors
    for name, tensor in tensors.items():
        assert (tensor.isnan() if tensor.is_floating_point() else tensor == (tensor.dtype == torch.bool or POISON)).all(), name


def named(group: GroupTrajectory) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in vars(group).items() if tensor is not None}
