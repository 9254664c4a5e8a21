"""The published dynamics against a reference of their own, and the options that are off by default."""

import numpy as np
import pytest
import torch

from tests.envs.catalysis.helpers import Reference, engine, environment, needs_grids
from warprun import data
from warprun.envs.catalysis import continuous
from warprun.envs.catalysis.landscape import landscape

SCENARIOS = {
    "lh": ("en_array", 28, 50, -227.689938, (3, 6, 30), (5, 16, 38), 30),
    "er1": ("en_array", 28, 50, -227.689938, (3, 15, 43), (5, 16, 38), 30),
    "er2": ("en_array", 28, 50, -227.689938, (3, 12, 45), (5, 16, 38), 30),
    "lh_fine": ("en_array_double_grids", 56, 99, -227.689938, (6, 12, 60), (10, 32, 76), 50),
    "er2_fine": ("en_array_double_grids", 56, 99, -227.689938, (6, 24, 90), (10, 32, 76), 30),
    "diffusion2d": ("en_array_diffusion", 58, 100, -193.6023, (5, 9, 60), (10, 0, 60), 10),
    "diffusion3d": ("en_array_diffusion", 58, 100, -193.6023, (5, 9, 61), (10, 0, 60), 30),
}
STEPS = 20_000


@needs_grids
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_random_walks_equal_the_reference(scenario):
    grid, *rest = SCENARIOS[scenario]
    reference = Reference(np.load(data.folder("catalysis") / f"{grid}.npy"), *rest)
    walk = engine(n_envs=1, horizon=STEPS, scenario=scenario)
    taken = walk.trajectory
    actions = np.random.default_rng(0).integers(0, 6, STEPS)
    for n in range(STEPS):
        toward = [g - c for g, c in zip(reference.goal, reference.cell, strict=True)]
        axis = int(np.argmax(np.abs(toward)))
        if n >= STEPS // 2 and n % 2:  # in the second half every other step leads to the goal
            actions[n] = 2 * axis + (toward[axis] < 0)
        _, terminated, truncated = reference.step(actions[n])
        if terminated or truncated:
            reference.reset()
    reference.reset()
    taken.groups["agent"].action[:, 0, 0, 0] = torch.from_numpy(actions)
    walk.retrace()
    reached = cut = 0
    seen, rewards = taken.groups["agent"].obs[:, 0, 0].numpy(), taken.groups["agent"].reward[:, 0, 0].numpy()
    expected = np.empty((STEPS, 5))
    ends = np.empty((STEPS, 2), bool)
    np.testing.assert_allclose(seen[0], reference.observe(), rtol=1e-6)
    for n, action in enumerate(actions):
        reward, terminated, truncated = reference.step(action)
        reached, cut = reached + terminated, cut + truncated
        if terminated or truncated:
            reference.reset()
        expected[n] = (*reference.observe(), reward)
        ends[n] = terminated, truncated
    np.testing.assert_array_equal(taken.terminated[:, 0], ends[:, 0])
    np.testing.assert_array_equal(taken.truncated[:, 0], ends[:, 1])
    np.testing.assert_allclose(seen[1:], expected[:, :4], rtol=1e-6)
    np.testing.assert_allclose(rewards, expected[:, 4], rtol=1e-6, atol=2e-7)
    assert cut > 10
    assert reached > 10


def walked(actions, params=None, **options):
    """Return the trajectory and the states of given actions, one environment for each row of `actions` [N, T]."""
    actions = np.atleast_2d(actions)
    walk = engine(n_envs=len(actions), horizon=actions.shape[1], params=params, **options)
    taken = walk.trajectory
    taken.groups["agent"].action[:, :, 0, 0] = torch.from_numpy(actions.T.copy())
    walk.retrace()
    return taken.groups["agent"], taken, walk


@pytest.mark.long
def test_edges_of_surfaces_that_are_not_periodic_cost_and_stop():
    made = landscape("leps")
    group, _, walk = walked([1] * (made.start[0] + 2))
    assert walk.state_of("agent")["x"].item() == 0
    np.testing.assert_array_equal(group.reward[-2:, 0, 0], [-1.0, -1.0])
    assert group.reward[-3, 0, 0] > -1.0


@pytest.mark.by_default(0)
@pytest.mark.parametrize("continuous", [False, True])
def test_shaping_adds_up_to_the_potential_of_the_start(continuous):
    """Along any path, the sum of shaping is the start's potential less the last one's: what a step closer gains, a step back loses."""
    actions = np.random.default_rng(1).integers(0, 6, 60)
    shaped = {"shaping": 0.7, "energy_shaping": 0.3}
    if continuous:
        (plain, last), (more, _) = drift({}), drift(shaped)
    else:
        (plain, last), (more, _) = (
            (w[0].reward[:, 0, 0].double(), w[2].state_of("agent")) for w in (walked(actions), walked(actions, shaped))
        )
    made, tables = landscape("leps"), environment(continuous=continuous).tables()

    def cost(point):
        apart = np.abs(np.subtract(point, made.goal))
        height = continuous_energy(point, tables)
        return 0.7 * (np.linalg.norm(apart) if continuous else apart.sum()) + 0.3 * min(height, 20.0)

    end = tuple(float(last[axis].item()) for axis in "xyz")
    assert float((more - plain).sum()) == pytest.approx(cost(made.start) - cost(end), abs=2e-3)


def continuous_energy(point, tables):
    return float(continuous.energy_at(*(np.float32(v) for v in point), tables))


def drift(params):
    """Return the rewards of 60 random steps of any direction, and the last state."""
    walk = engine(n_envs=1, horizon=60, params=params, continuous=True)
    steps = np.random.default_rng(2).uniform(-1, 1, (60, 3)) * (1, 1, 0)
    walk.trajectory.groups["agent"].action[:, 0, 0] = torch.from_numpy(steps)
    for row in range(60):
        walk.step(row)
    return walk.trajectory.groups["agent"].reward[:, 0, 0].double(), walk.state_of("agent")


@needs_grids
def test_start_jitter_stays_near_the_start():
    starts = engine(n_envs=500, params={"start_jitter": 2}, scenario="lh").state_of("agent")
    for axis, start in zip("xyz", (3, 6, 30), strict=True):
        assert set(starts[axis].flatten().tolist()) == set(range(start - 2, start + 3))


@needs_grids
def test_start_jitter_never_starts_in_the_goal():
    starts = engine(n_envs=2000, params={"start_jitter": 6}, scenario="er1").state_of("agent")
    cells = torch.stack([starts[axis].flatten() for axis in "xyz"], 1)
    assert not (cells == torch.tensor((5, 16, 38))).all(1).any()
    assert cells.min() >= 0
    assert (cells.max(0).values < torch.tensor([20, 18, 48])).all()


@needs_grids
def test_minimum_image_and_periodic_observation():
    actions = [3] * 8  # y from 6 to 16, across the edge
    plain, nearest = (walked(actions, {"minimum_image": value}, scenario="lh")[0].obs[-1, 0, 0].numpy() for value in (False, True))
    assert plain[1] == pytest.approx(16 / 18)
    assert plain[3] == nearest[3] == pytest.approx(np.hypot(2, 8) / np.sqrt(4 + 100 + 64))
    early = [walked([3], {"minimum_image": value}, scenario="lh")[0].obs[-1, 0, 0, 3].item() for value in (False, True)]
    np.testing.assert_allclose(early, np.sqrt(np.array([4 + 121 + 64, 4 + 49 + 64]) / 168), rtol=1e-6)
    circle = walked(actions, scenario="lh", observation="periodic")[0].obs[-1, 0, 0].numpy()
    x, y = 2 * np.pi * 3 / 20, 2 * np.pi * 16 / 18
    np.testing.assert_allclose(circle, [np.sin(x), np.cos(x), np.sin(y), np.cos(y), 30 / 50, plain[3]], atol=1e-6)


@needs_grids
def test_interpolation_meets_the_cells_and_lies_between_them():
    tables = environment(scenario="lh").tables()
    for x, y, z in ((0, 0, 28), (19, 17, 47), (7, 3, 40)):
        assert continuous_energy((x, y, z), tables) == tables.energy[x, y, z - 28]
    across = continuous_energy((19.5, 17.25, 30.5), tables)
    corners = [tables.energy[x, y, z] * (0.75 if y == 17 else 0.25) / 4 for x in (19, 0) for y in (17, 0) for z in (2, 3)]
    assert across == pytest.approx(sum(corners), rel=1e-5)


@needs_grids
def test_a_continuous_step_ends_in_the_ball_around_the_goal():
    walk = engine(n_envs=2, horizon=1, continuous=True, scenario="er1", auto_reset=False)
    walk.set_state("agent", x=torch.tensor([5.0, 5.0]), y=torch.tensor([16.0, 16.0]), z=torch.tensor([39.4, 39.6]))
    walk.trajectory.groups["agent"].action[0] = torch.tensor([0.0, 0.0, -1.0])
    walk.step(0)
    assert walk.trajectory.terminated[0].tolist() == [True, False]
