"""Observations and actions of Gymnasium's spaces."""

from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from tests.simulation.external.simulators import act, chosen, environment, seeds, simulator
from warprun.errors import ContractError
from warprun.simulation.external.spaces import actions, bounds_of, observations
from warprun.spec import Box, Discrete, Field, MultiDiscrete

OBSERVED = [
    spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    spaces.Box(0, 255, (4,), np.uint8),
    spaces.Box(-1.0, 1.0, ()),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([3, 2]),
    spaces.MultiBinary((2, 2)),
    spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))),
    spaces.Box(0, 1, (4, 5, 2), np.bool_),
    spaces.Box(0, 9, (4, 5, 2), np.uint8),
    spaces.Dict({"b": spaces.Box(-1.0, 1.0, (2,)), "a": spaces.Dict({"c": spaces.Discrete(2), "d": spaces.MultiBinary(2)})}),
]


@pytest.mark.parametrize("space", OBSERVED, ids=str)
def test_observations_are_flattened_as_gymnasium_does(space: Any) -> None:
    space.seed(3)
    conversion, drawn = observations(space), [space.sample() for _ in range(20)]
    assert conversion.size == spaces.flatdim(space)
    expected = np.array([spaces.flatten(space, one) for one in drawn], np.float32)
    found = [conversion.flatten(one) for one in drawn]
    assert found[0].dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    together = concatenate(space, drawn, create_empty_array(space, 20))
    np.testing.assert_array_equal(conversion.flatten_batch(together, batch_space(space, 20)), expected)


CAMERA = spaces.Box(0, 255, (8, 9, 3), np.uint8)


def test_numbers_of_images_are_divided_by_255() -> None:
    space = spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (2,)), "camera": CAMERA, "gear": spaces.Discrete(3)})
    space.seed(5)
    drawn = space.sample()
    conversion = observations(space)
    camera = (drawn["camera"].ravel() / 255).astype(np.float32)
    np.testing.assert_array_equal(conversion.flatten(drawn), [*camera, *np.eye(3)[drawn["gear"]], *drawn["speed"]])
    assert conversion.fields == (Field(0, (3, 8, 9), True, "image"),)
    np.testing.assert_array_equal(observations(CAMERA).flatten(drawn["camera"]), camera)


@pytest.mark.parametrize(
    ("space", "channels", "field"),
    [
        (spaces.Box(-1.0, 1.0, (2, 8, 3)), None, Field(0, (2, 8, 3))),
        (spaces.Box(-1.0, 1.0, (3, 8, 2)), None, Field(0, (2, 3, 8), True)),
        (spaces.Box(-1.0, 1.0, (3, 8, 2)), "first", Field(0, (3, 8, 2))),
        (spaces.Box(-1.0, 1.0, (9, 2)), None, Field(0, (9, 2))),
        (spaces.Box(-1.0, 1.0, (9, 2)), "last", Field(0, (2, 9), True)),
        (spaces.Box(0, 1, (4, 4, 3), np.bool_), None, Field(0, (3, 4, 4), True, "binary")),
        (spaces.Box(0, 255, (8, 9), np.uint8), None, Field(0, (1, 8, 9), False, "image")),
        (spaces.Box(0, 3, (8, 9), np.uint8), None, Field(0, (8, 9))),
        (spaces.Box(-1.0, 1.0, (2, 2, 2, 2)), None, None),
    ],
    ids=str,
)
def test_which_axis_has_the_channels(space: Any, channels: str | None, field: Field | None) -> None:
    assert observations(space, channels).fields == ((field,) if field else ())


PARTS = spaces.Dict({"charge": spaces.Box(0.0, 1.0, (1,)), "lidar": spaces.Tuple((spaces.Box(0.0, 9.0, (3,)), spaces.Discrete(2)))})
LIDAR = (np.zeros(3), 1)
WRONG: list[tuple[Any, Any, str]] = [
    (CAMERA, np.zeros((8, 9, 3)), "has the dtype float64, and the observation space uint8"),
    (spaces.Dict({"camera": CAMERA}), {"camera": np.zeros((8, 9, 3), np.int64)}, "has the dtype int64, and the observation space uint8"),
    (spaces.Box(-1.0, 1.0, (3,)), np.zeros((3, 1)), r"shape \(3, 1\), and the observation space \(3,\)"),
    (spaces.Box(-1.0, 1.0, (3,)), "cold", "could not convert"),
    (spaces.Discrete(3, start=1), 0, "is not in the space"),
    (spaces.Discrete(3), 3, "is not in the space"),
    (spaces.Discrete(3), -1, "is not in the space"),
    (spaces.MultiDiscrete([3, 2]), np.array([0, 2]), "is not in the space"),
    (PARTS, {"lidar": LIDAR}, "the observation lacks 'charge', which its space has; it has 'lidar'"),
    (PARTS, {"lidar": LIDAR, "charge": np.ones(1), "speed": 1.0}, "the observation has 'speed', which observation_space lacks"),
    (PARTS, {"charge": np.zeros(2), "lidar": LIDAR}, r"the part \['charge'\] of .* must be numbers of the shape \(1,\), .*"),
    (PARTS, {"charge": ["full"], "lidar": LIDAR}, r"the part \['charge'\] of the observation must be numbers of .*full"),
    (PARTS, {"charge": np.zeros(1), "lidar": (np.zeros(4), 1)}, r"the part \['lidar'\]\[0\] of .* must be numbers of the shape \(3,\)"),
    (PARTS, {"charge": np.zeros(1), "lidar": (np.zeros(3), 2)}, r"the part \['lidar'\]\[1\] 2 is not in the space Discrete\(2\)"),
    (PARTS, {"charge": np.zeros(1), "lidar": (np.zeros(3),)}, r"the part \['lidar'\] of the observation must be a tuple of 2 parts"),
    (PARTS, np.zeros(5), "the observation must be a dict with 'charge', 'lidar', as its space"),
]


@pytest.mark.parametrize(("space", "given", "told"), WRONG)
def test_an_observation_that_is_not_in_its_space_is_refused(space: Any, given: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        observations(space).flatten(given)


@pytest.mark.parametrize("space", [spaces.Text(8), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)])
def test_other_observations_are_refused_by_name(space: Any) -> None:
    with pytest.raises(ContractError) as refused:
        observations(space)
    assert type(space).__name__ in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(ContractError, match=r"env\.channels=last: no part of the observations"):
        observations(spaces.Discrete(3), "last")


def test_real_actions_are_within_bounds_that_float32_does_not_have() -> None:
    space = spaces.Box(np.array([-0.3, 0.1]), np.array([0.1, 0.7]), dtype=np.float64)
    for row in actions(space).convert(np.array([[-1.0, -1.0], [1.0, 1.0]], np.float32)):
        assert space.contains(row)


def test_equal_bounds_of_observations_are_one_number() -> None:
    """A picture has many components, and the spec goes to every worker."""
    assert bounds_of(CAMERA) == (0.0, 1.0) and bounds_of(spaces.Box(-2.0, np.inf, (3,))) == (-2.0, np.inf)
    assert bounds_of(spaces.Box(np.float32([0, -1]), np.float32([1, 1]))) == ((0.0, -1.0), 1.0)
    assert bounds_of(spaces.Tuple([spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,))])) == ((0.0, 0.0, -1.0), 1.0)


CHOSEN = [
    (spaces.Discrete(3, start=-1), Discrete(3, -1), [[0], [2]], [-1, 1]),
    (spaces.MultiDiscrete([3, 2], start=[1, -5]), MultiDiscrete((3, 2), (1, -5)), [[2, 1]], [[3, -4]]),
    (spaces.MultiDiscrete([[3, 2], [4, 5]]), MultiDiscrete((3, 2, 4, 5)), [[2, 1, 3, 4]], [[[2, 1], [3, 4]]]),
    (spaces.MultiBinary(3), MultiDiscrete((2, 2, 2)), [[0, 1, 1]], [[0, 1, 1]]),
    (spaces.Box(-2.0, 4.0, (2,)), Box(2, (-2.0, -2.0), (4.0, 4.0)), [[-1.0, 1.0], [0.0, 7.0]], [[-2.0, 4.0], [1.0, 4.0]]),
    (spaces.Box(-np.inf, np.inf, (1, 2)), Box(2, (-np.inf,) * 2, (np.inf,) * 2), [[-3.0, 9.0]], [[[-3.0, 9.0]]]),
    (spaces.Box(0.0, np.inf, (1,)), Box(1, (0.0,), (np.inf,)), [[-3.0], [9.0]], [[0.0], [9.0]]),
]


@pytest.mark.parametrize(("space", "mine", "rows", "expected"), CHOSEN, ids=[str(case[0]) for case in CHOSEN])
def test_actions(space: Any, mine: Any, rows: Any, expected: Any) -> None:
    conversion = actions(space)
    assert conversion.space == mine
    found = conversion.convert(np.array(rows, np.float32 if isinstance(mine, Box) else np.int32))
    np.testing.assert_array_equal(found, expected)
    for each in found:
        assert space.contains(each if conversion.space.shape else int(each))


@pytest.mark.parametrize("space", [spaces.Dict({"a": spaces.Discrete(2)}), spaces.Box(0, 9, (2,), np.int64), spaces.Text(3)], ids=str)
def test_other_actions_are_refused_by_name(space: Any) -> None:
    with pytest.raises(ContractError, match=r"the action space .* is not supported"):
        actions(space)


# Rollouts of env=gymnasium are those of Gymnasium alone: same seeds and actions, same observations, rewards and ends of episodes

FAMILIES = {
    "CartPole-v1": {},
    "Acrobot-v1": {},
    "MountainCar-v0": {},
    "MountainCarContinuous-v0": {},
    "Pendulum-v1": {},
    **({name: {} for name in ("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3")} if find_spec("Box2D") else {}),
    "FrozenLake-v1": {"is_slippery": False},
    "Taxi-v4": {},
    "CliffWalking-v1": {},
    "Blackjack-v1": {"natural": True},
}


def follow(name: str, steps: int, workers: int, time_limit: int | None = None) -> int:
    """Compare `steps` steps of three environments; return how many episodes ended."""
    kwargs = FAMILIES[name]
    horizon, n_envs = 50, 3
    of = environment(id=name, kwargs=dict(kwargs), time_limit=time_limit)
    theirs = [gymnasium.make(name, **kwargs, **({"max_episode_steps": time_limit} if time_limit else {})) for _ in range(n_envs)]
    space = theirs[0].observation_space
    ended = 0
    with simulator(of, n_envs, horizon, workers) as made:
        made.prepare()
        obs = [gymnasium.spaces.flatten(space, env.reset(seed=seed)[0]) for env, seed in zip(theirs, seeds(made), strict=True)]
        for _ in range(steps // horizon):
            taken = made.collect(act)
            group, slot = taken.groups["agent"], taken.final_slot()
            for row in range(horizon):
                for n, env in enumerate(theirs):
                    np.testing.assert_array_equal(group.obs[row, n, 0].numpy(), np.asarray(obs[n], np.float32), f"{name} {row}")
                    after, reward, terminated, truncated, _ = env.step(chosen(of, group.action[row, n, 0], env.action_space))
                    assert group.reward[row, n, 0] == np.float32(reward)
                    assert taken.terminated[row, n] == terminated
                    assert taken.truncated[row, n] == (truncated and not terminated)
                    after = gymnasium.spaces.flatten(space, after)
                    if taken.truncated[row, n]:
                        np.testing.assert_array_equal(group.final_obs[slot[row, n], n, 0].numpy(), np.asarray(after, np.float32))
                    if terminated or truncated:
                        ended += 1
                        after = gymnasium.spaces.flatten(space, env.reset()[0])
                    obs[n] = after
        assert made.fault() is None
        assert made.episodes().count == ended
    return ended


FIRST = ("CartPole", "Pendulum", "Taxi", "Blackjack")


@pytest.mark.by_default(5)
@pytest.mark.parametrize(
    ("name", "workers"), [("CartPole-v1", 2), *((name, 0) for name in sorted(FAMILIES, key=lambda name: not name.startswith(FIRST)))]
)
def test_steps_are_those_of_gymnasium(name: str, workers: int) -> None:
    # Most of them end no episode within 100 steps, so a time limit ends some.
    assert follow(name, 100, workers, time_limit=30) >= 9
