"""The games of tag: every golden transition, the worked ones, and where actors start.

The golden transitions are of WarpDrive 2.7.1, from its Python classes with NumPy. They are taken in plain Python;
that compiled kernels take the same, `warprun check` sees (tests/checking).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest

from tests.words import words
from warprun.environment import Environment
from warprun.envs.tag import continuous, gridworld
from warprun.errors import UserError
from warprun.simulation.kernel_module import typed
from warprun.simulation.plain import PlainEnvironment

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "tag_golden.npz")
TOLERANCE = 1e-5
STATE = {"x": "x", "y": "y", "v": "speed", "th": "direction", "acc": "acceleration"}
"""Names in the golden file -> fields."""
OPTIONS, PARAMS = (
    dict(pair.split("=") for pair in words(text))
    for text in (
        "neighbours=k acceleration_levels=na min_acceleration=amin max_acceleration=amax turn_levels=nw min_turn=wmin max_turn=wmax",
        """
        length=L episode=T max_speed=vmax skill_tagger=skill_t skill_runner=skill_r tagging_distance=tagdist tag_reward=tag
        tag_penalty=pen end_reward=end step_tagger=step_t step_runner=step_r edge_penalty=edge exits=exits
        """,
    )
)
"""Options and parameters of the plane -> names in the golden file."""


Rows: TypeAlias = dict[str, np.ndarray]


class After(NamedTuple):
    state: Rows
    """Field -> [N, all actors]."""
    reward: np.ndarray
    """[N, all actors]."""
    observation: np.ndarray
    """[N, all actors, F]."""
    alive: Rows
    """Group -> [N, A] bool, of the groups whose actors can leave."""
    terminated: np.ndarray
    """[N] bool."""


class Staying(PlainEnvironment):
    """An environment that stays in its final state."""

    def _begin(self, now: int) -> None:
        pass


def in_plain_python(environment: Environment, params: Any, before: Rows, t: np.ndarray, action: np.ndarray) -> After:
    """Take a step from states [N, all actors] at times [N] with actions [N, all actors, C]."""
    parts = parts_of(environment)
    state: dict[str, list[np.ndarray]] = {name: [] for name in before}
    rewards, observations, alive, terminated = [], [], {}, []
    for n in range(len(t)):
        played = Staying(environment, n, seed=0, params=typed(params), tables=environment.make_tables())
        for group in environment.groups:
            for field in group.fields:
                if field.name in before:
                    played.put(group, field, before[field.name][n, parts[group.name]])
        played.clock = np.int32(t[n])
        taken = played.step({name: action[n, own] for name, own in parts.items()})
        for name, values in state.items():
            values.append(np.concatenate([played.field(g, f) for g in environment.groups for f in g.fields if f.name == name]))
        rewards.append(np.concatenate(list(taken.reward.values())))
        observations.append(np.concatenate(list(taken.seen.observation.values())))
        terminated.append(taken.terminated)
        for name, values in taken.seen.alive.items():
            alive.setdefault(name, []).append(values)
    stacked = {name: np.array(values) for name, values in state.items()}
    left = {name: np.array(values) for name, values in alive.items()}
    return After(stacked, np.array(rewards), np.array(observations), left, np.array(terminated))


def parts_of(environment: Environment) -> dict[str, slice]:
    """Return the actors of each group among all."""
    ends = np.cumsum([group.size for group in environment.groups])
    return {group.name: slice(end - group.size, end) for group, end in zip(environment.groups, ends, strict=True)}


def beginnings(environment: Environment, params: Any, n_envs: int, field: str) -> np.ndarray:
    """Return a field of all actors, [N, all actors], at the beginning of the first episode."""
    found = []
    for n in range(n_envs):
        played = PlainEnvironment(environment, n, seed=0, params=typed(params), tables=environment.make_tables())
        played.reset()
        found.append(np.concatenate([played.field(g, f) for g in environment.groups for f in g.fields if f.name == field]))
    return np.array(found)


def golden(block: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the parameters of a block."""
    arrays = {key.partition("/")[2]: GOLDEN[key] for key in GOLDEN.files if key.startswith(f"{block}/")}
    return arrays, json.loads(str(arrays.pop("params")))


def gridworld_of(given: dict[str, Any]) -> tuple[Any, Any]:
    made = gridworld.environment(given["taggers"], "full" if given["full"] else "near")
    costs = {"wall_penalty": given["wall"], "tag_reward": given["tag"], "tag_penalty": given["pen"], "step_cost": given["cost"]}
    return made, gridworld.Params(size=given["L"], episode=given["T"], **costs)


def continuous_of(given: dict[str, Any]) -> tuple[Any, Any]:
    options = {name: given[key] for name, key in OPTIONS.items()}
    made = continuous.environment(given["taggers"], given["runners"], "full" if given["full"] else "near", **options)
    return made, continuous.Params(**{name: given[key] for name, key in PARAMS.items()})


@pytest.mark.parametrize("block", ["grid_full", "grid_near", "grid_default"])
def test_every_golden_transition_of_the_grid(block: str) -> None:
    arrays, given = golden(block)
    environment, params = gridworld_of(given)
    before = {"x": arrays["x"], "y": arrays["y"], "caught": np.zeros_like(arrays["x"])}
    after = in_plain_python(environment, params, before, arrays["t"], arrays["action"][..., None])
    for name in ("x", "y"):
        np.testing.assert_array_equal(after.state[name], arrays[f"next_{name}"])
    np.testing.assert_allclose(after.reward, arrays["reward"], atol=TOLERANCE)
    np.testing.assert_array_equal(after.terminated, arrays["done"])
    np.testing.assert_allclose(after.observation, arrays["next_obs"], atol=TOLERANCE)


@pytest.mark.parametrize("block", ["cont_near", "cont_full", "cont_stay", "cont_default"])
def test_every_golden_transition_of_the_plane(block: str) -> None:
    arrays, given = golden(block)
    environment, params = continuous_of(given)
    before = {field: arrays[name] for name, field in STATE.items()} | {"alive": arrays["alive"], "seen": arrays["alive"]}
    after = in_plain_python(environment, params, before, arrays["t"], arrays["action"])
    for name, field in STATE.items():
        np.testing.assert_allclose(after.state[field], arrays[f"next_{name}"], atol=TOLERANCE, err_msg=name)
    np.testing.assert_array_equal(after.state["alive"], arrays["next_alive"])
    np.testing.assert_allclose(after.reward, arrays["reward"], atol=TOLERANCE)
    np.testing.assert_array_equal(after.terminated, arrays["done"])
    np.testing.assert_allclose(after.observation, arrays["next_obs"], atol=TOLERANCE)
    np.testing.assert_array_equal(after.alive["runners"], arrays["next_alive"][:, given["taggers"] :] != 0)


def test_actors_start_where_the_options_say() -> None:
    """fixed: the same places in every environment; pool: not at the edge; fresh: all over the square."""
    x = beginnings(continuous.environment(2, 30, start="fixed", start_seed=5), continuous.Params(), 3, "x")
    assert (x == x[0]).all() and len(np.unique(x)) == 32
    other = beginnings(continuous.environment(2, 30, start="fixed", start_seed=6), continuous.Params(), 3, "x")
    assert (other != x).all()
    fresh = continuous.environment(2, 30), continuous.Params(length=3.0)
    x, direction = beginnings(*fresh, 10, "x"), beginnings(*fresh, 1, "direction")
    assert len(np.unique(x)) > 300 and 0.0 <= x.min() < 0.1 and 2.9 < x.max() < 3.0
    np.testing.assert_allclose(np.unique(direction), np.arange(4) * np.pi / 2, atol=1e-6)
    pool = gridworld.environment(5, start="pool"), gridworld.Params(size=4), 20
    x = beginnings(*pool, "x")
    assert set(np.unique(x[:, :5])) == {1, 2, 3} and (x[:, 5] == 0).all()


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: gridworld.environment(taggers=0), "taggers=0 must be a whole number"),
        (lambda: gridworld.environment(observation="far"), "observation='far' must be one of full, near"),
        (lambda: gridworld.environment(start="fresh"), "start='fresh' must be one of fixed, pool"),
        (lambda: continuous.environment(runners=2.5), "runners=2.5 must be a whole number"),
        (lambda: continuous.environment(observation="all"), "observation='all' must be one of near, full"),
        (lambda: continuous.environment(start="pool"), "start='pool' must be one of fresh, fixed"),
        (lambda: continuous.environment(start_seed=-1), "start_seed=-1 must be a whole number"),
        (lambda: continuous.environment(max_turn=float("nan")), "max_turn=nan must be a finite number"),
    ],
)
def test_mistakes_in_options_are_told(made: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        made()


def test_pictures_show_all_actors() -> None:
    figure = pytest.importorskip("matplotlib.figure")
    numbers = {name: np.array([1.0, 2.0, 3.0], np.float32) for name in continuous.Actor._fields}
    now = continuous.Actor(**numbers | {"alive": np.array([1, 0, 1])})
    past = continuous.Actor(**{name: np.stack([values] * 4) for name, values in numbers.items()})
    axes = figure.Figure().add_subplot()
    show = continuous.draw(axes, continuous.Params())
    show({"taggers": now, "runners": now}, {"taggers": past, "runners": past})
    assert sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o") == 4
    axes = figure.Figure().add_subplot()
    actor = gridworld.Actor(np.array([1, 2]), np.array([3, 4]), np.array([0, 0]))
    show = gridworld.draw(axes, gridworld.Params())
    show({"taggers": actor, "runner": gridworld.Actor(5, 6, 0)})
    assert sum(np.size(line.get_xdata()) for line in axes.lines) == 3
