"""The games of tag: every golden transition, the worked ones, and one engine against another.

The golden transitions are of WarpDrive 2.7.1, from its Python classes with NumPy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from warprun.envs.tag import continuous, gridworld
from warprun.errors import UserError
from warprun.kernels.compile import plain_function
from warprun.simulation.device import Device
from warprun.simulation.kernel_engine import KernelEngine

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "tag_golden.npz")
TOLERANCE = 1e-5
STATE = {"x": "x", "y": "y", "v": "speed", "th": "direction", "acc": "acceleration"}
"""Names in the golden file -> fields."""


KINDS = ["plain", pytest.param("compiled", marks=pytest.mark.slow)]
"""Plain Python, and compiled for CPU."""


def engine_of(environment: Any, params: Any, n_envs: int, kind: str) -> KernelEngine:
    """Return an engine for single steps, whose environments stay in their final states."""
    tables = environment.make_tables()
    given = {"n_envs": n_envs, "horizon": 1, "seed": 0, "threads": 1, "auto_reset": False, "build": plain_function}
    device = Device("python" if kind == "plain" else "cpu", "a test")
    engine = KernelEngine(environment, "tag", device=device, params=params, tables=tables, **given)
    engine.reset()
    return engine


def put(engine: KernelEngine, values: dict[str, np.ndarray], t: np.ndarray, action: np.ndarray) -> None:
    """Set states [N, all actors], times [N] and actions [N, all actors, C]."""
    first = 0
    for group in engine.environment.groups:
        own = slice(first, first + group.size)
        engine.set_state(group.name, **{name: torch.from_numpy(np.ascontiguousarray(v[:, own])) for name, v in values.items()})
        taken = engine.trajectory.groups[group.name]
        taken.action[0].copy_(torch.from_numpy(action[:, own]))
        if taken.alive is not None:
            taken.alive[0].copy_(torch.from_numpy(values["alive"][:, own] != 0))
        first += group.size
    clock = engine.arrays.common["clock"]
    padded = torch.zeros(clock.numel(), dtype=torch.int32)
    padded[: len(t)] = torch.from_numpy(t)
    clock.copy_(padded.view(clock.shape))


def together(engine: KernelEngine, row: Any) -> np.ndarray:
    """Return what `row` gives for each group, [N, A, ...] each, for all actors."""
    return np.concatenate([row(engine.trajectory.groups[group.name]).numpy() for group in engine.environment.groups], 1)


def states(engine: KernelEngine, name: str) -> np.ndarray:
    return np.concatenate([engine.state_of(group.name)[name].numpy().reshape(engine.n_envs, -1) for group in engine.environment.groups], 1)


def golden(block: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the parameters of a block."""
    arrays = {key.partition("/")[2]: GOLDEN[key] for key in GOLDEN.files if key.startswith(f"{block}/")}
    return arrays, json.loads(str(arrays.pop("params")))


def gridworld_of(given: dict[str, Any]) -> tuple[Any, Any]:
    made = gridworld.environment(given["taggers"], "full" if given["full"] else "near")
    costs = {"wall_penalty": given["wall"], "tag_reward": given["tag"], "tag_penalty": given["pen"], "step_cost": given["cost"]}
    return made, gridworld.Params(size=given["L"], episode=given["T"], **costs)


def continuous_of(given: dict[str, Any]) -> tuple[Any, Any]:
    made = continuous.environment(
        given["taggers"],
        given["runners"],
        "full" if given["full"] else "near",
        neighbours=given["k"],
        acceleration_levels=given["na"],
        min_acceleration=given["amin"],
        max_acceleration=given["amax"],
        turn_levels=given["nw"],
        min_turn=given["wmin"],
        max_turn=given["wmax"],
    )
    params = continuous.Params(
        length=given["L"],
        episode=given["T"],
        max_speed=given["vmax"],
        skill_tagger=given["skill_t"],
        skill_runner=given["skill_r"],
        tagging_distance=given["tagdist"],
        tag_reward=given["tag"],
        tag_penalty=given["pen"],
        end_reward=given["end"],
        step_tagger=given["step_t"],
        step_runner=given["step_r"],
        edge_penalty=given["edge"],
        exits=given["exits"],
    )
    return made, params


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", ["grid_full", "grid_near", "grid_default"])
def test_every_golden_transition_of_the_grid(block: str, kind: str) -> None:
    arrays, given = golden(block)
    environment, params = gridworld_of(given)
    engine = engine_of(environment, params, len(arrays["t"]), kind)
    before = {"x": arrays["x"], "y": arrays["y"], "caught": np.zeros_like(arrays["x"])}
    put(engine, before, arrays["t"], arrays["action"][..., None])
    engine.step(0)
    for name in ("x", "y"):
        np.testing.assert_array_equal(states(engine, name), arrays[f"next_{name}"])
    np.testing.assert_allclose(together(engine, lambda g: g.reward[0]), arrays["reward"], atol=TOLERANCE)
    np.testing.assert_array_equal(engine.trajectory.terminated[0].numpy(), arrays["done"])
    np.testing.assert_allclose(together(engine, lambda g: g.obs[1]), arrays["next_obs"], atol=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", ["cont_near", "cont_full", "cont_stay", "cont_default"])
def test_every_golden_transition_of_the_plane(block: str, kind: str) -> None:
    arrays, given = golden(block)
    environment, params = continuous_of(given)
    engine = engine_of(environment, params, len(arrays["t"]), kind)
    before = {field: arrays[name] for name, field in STATE.items()} | {"alive": arrays["alive"], "seen": arrays["alive"]}
    put(engine, before, arrays["t"], arrays["action"])
    engine.step(0)
    for name, field in STATE.items():
        np.testing.assert_allclose(states(engine, field), arrays[f"next_{name}"], atol=TOLERANCE, err_msg=name)
    np.testing.assert_array_equal(states(engine, "alive"), arrays["next_alive"])
    np.testing.assert_allclose(together(engine, lambda g: g.reward[0]), arrays["reward"], atol=TOLERANCE)
    np.testing.assert_array_equal(engine.trajectory.terminated[0].numpy(), arrays["done"])
    np.testing.assert_allclose(together(engine, lambda g: g.obs[1]), arrays["next_obs"], atol=TOLERANCE)
    alive = engine.trajectory.groups["runners"].alive
    assert alive is not None
    np.testing.assert_array_equal(alive[1].numpy(), arrays["next_alive"][:, given["taggers"] :] != 0)


def test_actors_start_where_the_options_say() -> None:
    """fixed: the same places in every environment; pool: not at the edge; fresh: all over the square."""
    fixed = engine_of(continuous.environment(2, 30, start="fixed", start_seed=5), continuous.Params(), 3, "plain")
    x = states(fixed, "x")
    assert (x == x[0]).all() and len(np.unique(x)) == 32
    other = engine_of(continuous.environment(2, 30, start="fixed", start_seed=6), continuous.Params(), 3, "plain")
    assert (states(other, "x") != x).all()
    fresh = engine_of(continuous.environment(2, 30), continuous.Params(length=3.0), 20, "plain")
    x, direction = states(fresh, "x"), states(fresh, "direction")
    assert len(np.unique(x)) > 600 and 0.0 <= x.min() < 0.1 and 2.9 < x.max() < 3.0
    np.testing.assert_allclose(np.unique(direction), np.arange(4) * np.pi / 2, atol=1e-6)
    pool = engine_of(gridworld.environment(5, start="pool"), gridworld.Params(size=4), 50, "plain")
    taggers = states(pool, "x")[:, :5]
    assert set(np.unique(taggers)) == {1, 2, 3} and (states(pool, "x")[:, 5] == 0).all()


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
    continuous.draw(axes, {"taggers": now, "runners": now}, continuous.Params(), {"taggers": past, "runners": past})
    assert sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o") == 4
    axes = figure.Figure().add_subplot()
    actor = gridworld.Actor(np.array([1, 2]), np.array([3, 4]), np.array([0, 0]))
    gridworld.draw(axes, {"taggers": actor, "runner": gridworld.Actor(5, 6, 0)}, gridworld.Params())
    assert sum(np.size(line.get_xdata()) for line in axes.lines) == 3
