"""The classic control environments against Gymnasium's: one step from random states, spaces, time limits, distributions at reset."""

import importlib
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from scipy import stats

from tests.compiled import compiled
from warprun.environment import Box, Environment, arguments
from warprun.random import RESET, Rng

STATES = 1000
u, f = np.uint32, np.float32

# Gymnasium's id; bounds of the random states, a little beyond where an episode ends; largest error relative to 1 + |value|
CASES = {
    "cartpole": SimpleNamespace(id="CartPole-v1", reach=(2.6, 4.0, 0.23, 4.0), tolerance=1e-6),
    "acrobot": SimpleNamespace(id="Acrobot-v1", reach=(np.pi, np.pi, 4 * np.pi, 9 * np.pi), tolerance=1e-5),
    "mountain_car": SimpleNamespace(id="MountainCar-v0", reach=((-1.2, 0.6), 0.07), tolerance=1e-6),
    "mountain_car_continuous": SimpleNamespace(id="MountainCarContinuous-v0", reach=((-1.2, 0.6), 0.07), tolerance=1e-6),
    "pendulum": SimpleNamespace(id="Pendulum-v1", reach=(20.0, 8.0), tolerance=1e-6),
}


def load(name: str) -> Environment:
    made = importlib.import_module(f"warprun.envs.{name}").environment
    return made() if callable(made) else made


MARGINS = {
    "cartpole": lambda after: [abs(after[0]) - 2.4, abs(after[2]) - 12 * np.pi / 180],
    "acrobot": lambda after: [-np.cos(after[0]) - np.cos(after[0] + after[1]) - 1.0],
    "mountain_car": lambda after: [after[0] - 0.5, after[1]],
    "mountain_car_continuous": lambda after: [after[0] - 0.45, after[1]],
    "pendulum": lambda after: [1.0],
}
"""How far a state after a step is from where `terminated` changes; float32 may see one that is very near on the other side."""


def tolerance(name: str, after: np.ndarray) -> float:
    """Return the largest error relative to 1 + |value| of a step to this state."""
    if name == "acrobot" and (abs(after[2]) >= 4 * np.pi or abs(after[3]) >= 9 * np.pi):
        return 3e-4  # accelerations of thousands of rad/s^2 cancel within the step that a speed limit ends
    return CASES[name].tolerance


def call(function, compiled, params, **given):
    """Call an environment function, compiled, with what it asks for by name."""
    given["p"] = params
    return compiled(*(given[name] for name in arguments(function)))


def single_precision(params) -> tuple:
    return type(params)(*(f(value) if type(value) is float else value for value in params))


def relative(ours, theirs) -> float:
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.max(np.abs(ours - theirs) / (1.0 + np.abs(theirs))))


@pytest.fixture(params=CASES)
def name(request):
    return request.param


@pytest.mark.filterwarnings("ignore")
def test_step(name):
    case, environment = CASES[name], load(name)
    group, step = environment.group("agent"), environment.phases[0].function
    theirs = gymnasium.make(case.id).unwrapped
    theirs.reset(seed=0)
    compiled_step, compiled_observe = compiled(step), compiled(group.observe)
    params = single_precision(environment.params())
    random = np.random.default_rng(20)
    bounds = np.array([b if isinstance(b, tuple) else (-b, b) for b in case.reach])
    terminations = 0
    for _ in range(STATES):
        state = random.uniform(*bounds.T).astype(f)
        if isinstance(group.action, Box):
            # Its reward is that of Gymnasium beyond the bounds of actions, too, where the force ends.
            reach = f(2.0 if name == "mountain_car_continuous" else 1.0)
            action = reach * random.uniform(*np.transpose(group.action.bounds())).astype(f)
            argument = tuple(action)
        else:
            action = int(random.integers(group.action.n))
            argument = np.int32(action)
        theirs.state = state.astype(np.float64)
        theirs.steps_beyond_terminated = None  # CartPole's reward would remember the state before
        expected_obs, expected_reward, expected_terminated, _, _ = theirs.step(action)
        after = np.asarray(theirs.state, np.float64)
        ours, reward, terminated = call(step, compiled_step, params, s=group.state(*state), action=argument, t=np.int32(0), i=np.int32(0))
        assert isinstance(terminated, bool)
        limit = tolerance(name, after)
        message = f"state {state}, action {action}"
        obs = call(group.observe, compiled_observe, params, s=ours, t=np.int32(1), i=np.int32(0))
        assert relative(obs, expected_obs) < limit, message
        difference = np.subtract(ours, after, dtype=np.float64)
        if name == "acrobot":  # -pi and pi are the same angle
            difference[:2] -= 2 * np.pi * np.round(difference[:2] / (2 * np.pi))
        assert np.max(np.abs(difference) / (1.0 + np.abs(after))) < limit, message
        if min(map(abs, MARGINS[name](after))) >= 1e-5:
            assert terminated == expected_terminated, message
            terminations += terminated
            assert name == "pendulum" or relative(reward, expected_reward) < limit, message
        if name == "pendulum" and abs(np.remainder(float(state[0]), 2 * np.pi) - np.pi) > 1e-4:
            assert relative(reward, expected_reward) < limit, message
    assert (0 < terminations < STATES) == (name != "pendulum")


def test_spaces_and_time_limit(name):
    environment, theirs = load(name), gymnasium.make(CASES[name].id)
    group = environment.group("agent")
    assert environment.time_limit == theirs.spec.max_episode_steps
    for ours, space in ((group.observation, theirs.observation_space), (group.action, theirs.action_space)):
        if isinstance(ours, Box):
            np.testing.assert_array_equal(f(ours.bounds()), np.transpose([space.low, space.high]))
        else:
            assert ours.n == space.n


def test_reset_distribution(name):
    environment, theirs = load(name), gymnasium.make(CASES[name].id).unwrapped
    group = environment.group("agent")
    reset = compiled(group.reset)
    params = single_precision(environment.params())
    theirs.reset(seed=11)
    expected, ours = [], []
    for n in range(2 * STATES):
        theirs.reset()
        expected.append(np.asarray(theirs.state, f))
        rng = Rng(u(5), u(0), u(n), u(0), u(RESET << 24))
        ours.append(call(group.reset, reset, params, rng=rng, i=np.int32(0)))
    for a, b in zip(np.transpose(ours), np.transpose(expected), strict=True):
        assert stats.ks_2samp(a, b).pvalue > 1e-3
        np.testing.assert_allclose([a.min(), a.max()], [b.min(), b.max()], rtol=0.01)  # KS sees little of the ends
    correlations = np.corrcoef(np.transpose(ours)[np.std(ours, axis=0) > 0])
    assert np.abs(np.atleast_2d(correlations)[np.triu_indices(np.atleast_2d(correlations).shape[0], 1)]).max(initial=0.0) < 0.1
