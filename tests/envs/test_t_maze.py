"""The T-maze: every transition against the maze drawn by hand, what can be seen of the goal, and its options."""

import itertools

import numpy as np
import pytest

from warprun.config.compose import compose
from warprun.config.registry import import_environment
from warprun.config.schema import load_environment
from warprun.envs.t_maze import EAST, NORTH, SOUTH, WEST, Params, State, Tables, observe, step
from warprun.errors import UserError
from warprun.simulation.kernel_module import typed
from warprun.simulation.plain import PlainEnvironment

MAZE = Tables(3)
CORRIDOR, JUNCTION = (1.0, 0.0, 1.0), (0.0, 1.0, 0.0)
SIGNS = {NORTH: (0.0, 1.0, 1.0), SOUTH: (1.0, 1.0, 0.0)}
"""Codes of Bakker 2001."""


@pytest.mark.parametrize("goal", [NORTH, SOUTH])
@pytest.mark.parametrize(
    ("place", "action", "after", "reward"),
    [
        (0, NORTH, 0, -0.1),
        (0, EAST, 1, 0.0),
        (0, SOUTH, 0, -0.1),
        (0, WEST, 0, -0.1),
        (2, NORTH, 2, -0.1),
        (2, EAST, 3, 0.0),
        (2, SOUTH, 2, -0.1),
        (2, WEST, 1, 0.0),
        (3, EAST, 3, -0.1),
        (3, WEST, 2, 0.0),
    ],
)
def test_steps_that_do_not_end(goal: int, place: int, action: int, after: int, reward: float) -> None:
    state, given, terminated = step(State(np.int32(place), np.int32(goal)), action, Params(), MAZE)
    assert (state, given, terminated) == (State(after, goal), reward, False)


@pytest.mark.parametrize("goal", [NORTH, SOUTH])
@pytest.mark.parametrize("action", [NORTH, SOUTH])
def test_a_turn_ends(goal: int, action: int) -> None:
    _, reward, terminated = step(State(np.int32(3), np.int32(goal)), action, Params(), MAZE)
    assert terminated and reward == (4.0 if action == goal else -0.1)


def test_the_goal_is_seen_in_the_first_observation_only() -> None:
    """Along every path of five actions both goals look the same after the first step."""
    for actions in itertools.product((NORTH, EAST, SOUTH, WEST), repeat=5):
        seen = {}
        for goal, sign in SIGNS.items():
            state, path = State(np.int32(0), np.int32(goal)), []
            assert observe(state, 0, MAZE) == sign
            for t, action in enumerate(actions, 1):
                state, _, terminated = step(state, action, Params(), MAZE)
                if terminated:
                    break
                path.append(observe(state, t, MAZE))
                assert path[-1] == (JUNCTION if state.place == 3 else CORRIDOR)
            seen[goal] = path
        assert seen[NORTH] == seen[SOUTH]


def test_both_goals_are_drawn() -> None:
    environment, _ = import_environment("warprun.envs.t_maze", {"length": 3})
    goals = set()
    for n in range(20):
        played = PlainEnvironment(environment, n, seed=0, params=typed(Params()), tables=MAZE)
        played.reset()
        (group,) = environment.groups
        goals |= {int(played.field(group, field)[0]) for field in group.fields if field.name == "goal"}
    assert goals == {NORTH, SOUTH}


@pytest.mark.parametrize("length", ["0", "2.5", "true", "far"])
def test_a_length_that_is_none_is_refused(length: str) -> None:
    with pytest.raises(UserError, match=r"env.length=.*1 or more"):
        load_environment(compose(["env=t_maze", f"env.length={length}", "device=cpu"]).env)


def test_the_time_limit_grows_with_the_length() -> None:
    assert load_environment(compose(["env=t_maze", "env.length=7"]).env)[0].spec.time_limit == 70
    assert load_environment(compose(["env=t_maze", "env.length=7", "env.time_limit=9"]).env)[0].spec.time_limit == 9


@pytest.mark.parametrize(("name", "kept"), [("cartpole", [0, 2]), ("pendulum", [0, 1])])
def test_without_velocities_the_other_numbers_are_the_same(name: str, kept: list[int]) -> None:
    seen = []
    for velocity in (True, False):
        environment, module = import_environment(f"warprun.envs.{name}", {"velocity": velocity})
        state = module.State(*np.linspace(0.1, 0.7, len(module.State._fields), dtype=np.float32))
        seen.append(environment.groups[0].observe(state))
    assert seen[1] == tuple(seen[0][n] for n in kept)


def test_velocity_is_true_or_false() -> None:
    with pytest.raises(UserError, match=r"env.velocity=3 must be true or false"):
        load_environment(compose(["env=cartpole", "env.velocity=3"]).env)
