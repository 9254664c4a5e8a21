"""The exact optima: every published row, known saddles of the analytic surfaces, and a brute-force search."""

import heapq

import numpy as np
import pytest

import warprun
from tests.envs.catalysis.helpers import needs_grids
from warprun.envs.catalysis import optimum, surfaces
from warprun.envs.catalysis.landscape import Landscape, landscape
from warprun.runs.evaluation import evaluate_run

# scenario: fewest steps; at discount 0.99 steps, return, discounted return, barrier; undiscounted steps, return, barrier; lowest barrier
ROWS = {
    "lh": (18, 18, 28.1389, 23.5657, 1.1454, 20, 28.2119, 0.5301, 0.5301),
    "er1": (8, 8, 28.9848, 26.9705, 0, 8, 28.9848, 0, 0),
    "er2": (13, 13, 27.9762, 24.6600, 0, 13, 27.9762, 0, 0),
    "diffusion3d": (15, 15, 28.6183, 24.7540, 4.3072, 19, 28.9518, 1.6316, 1.6316),
}


@needs_grids
@pytest.mark.parametrize("scenario", ROWS)
def test_exact_optima(scenario):
    made = landscape(scenario)
    best, undiscounted = optimum.highest_return(made, 0.99), optimum.highest_return(made, 1.0)
    found = (
        optimum.fewest_steps(made).steps,
        *(best.steps, best.rewards.sum(), best.discounted(0.99), best.barrier),
        *(undiscounted.steps, undiscounted.rewards.sum(), undiscounted.barrier),
        optimum.lowest_barrier(made).barrier,
    )
    np.testing.assert_allclose(found, ROWS[scenario], atol=6e-5)


@needs_grids
@pytest.mark.parametrize(("goal_reward", "gamma", "low"), [(30, 0.99, False), (10, 0.997, True), (30, 0.998, False), (30, 0.999, True)])
def test_when_the_low_pass_is_optimal(goal_reward, gamma, low):
    barrier = optimum.highest_return(landscape("lh", goal_reward=goal_reward), gamma).barrier
    assert barrier == pytest.approx(0.5301 if low else 1.1454, abs=6e-5)


@needs_grids
@pytest.mark.parametrize(
    ("scenario", "gamma", "moves", "energy", "least"),
    [
        *((name, 0.99, 1.0, 0.0, 1.0) for name in ("lh", "er1", "er2", "diffusion3d", "lh_fine", "er2_fine")),
        ("diffusion2d", 0.99, 1.0, 0.0, 0.994),
        ("lh_lowbarrier", 0.999, 0.5, 3.0, 1.0),
    ],
)
def test_shaping_leaves_the_best_path_the_best(scenario, gamma, moves, energy, least):
    """Of value V, V - cost obeys the equation of rewards less (1 - gamma) cost of the cell that is reached: what the shaping adds."""
    made = landscape(scenario)
    goal = (made.goal[0], made.goal[1], made.goal[2] - made.z_lower)
    apart = [np.abs(index - at) for index, at in zip(np.indices(made.energy.shape), goal, strict=True)]
    if scenario != "lh_lowbarrier":  # the one without minimum images
        apart[:2] = (np.minimum(a, size - a) for a, size in zip(apart[:2], made.energy.shape[:2], strict=True))
    cost = moves * sum(apart) + energy * np.minimum(made.energy - made.reference, made.energy_scale)
    cost[goal] = 0.0
    rewards = np.clip((made.reference - made.energy) / made.energy_scale, -1.0, 0.0) - (1 - gamma) * cost
    rewards[goal] += made.goal_reward
    _, chosen = optimum.best_values(rewards, np.array(goal), gamma, made.periodic)
    start = np.array(made.start) - (0, 0, made.z_lower)
    found = optimum.describe(made, optimum.follow(chosen, start, made.periodic) + (0, 0, made.z_lower))
    best = optimum.highest_return(made, gamma)
    assert found.discounted(gamma) >= least * best.discounted(gamma) - 1e-9
    assert least < 1.0 or found.barrier == best.barrier


def test_the_analytic_surfaces_have_their_published_stationary_points():
    for point, energy in {(0.7415, 1.3034): -4.5092, (3.0013, -1.3043): -2.6203, (2.0208, -0.1729): -0.8752}.items():
        assert surfaces.leps(*point) == pytest.approx(energy, abs=1e-4)
        assert np.abs(gradient(surfaces.leps, point)).max() < 2e-3
    known = {
        (-0.5582, 1.4417): -146.6995,
        (0.6235, 0.0280): -108.1667,
        (-0.0500, 0.4667): -80.7678,
        (-0.8220, 0.6243): -40.6648,
        (0.2125, 0.2930): -72.2489,
    }
    for point, energy in known.items():
        assert surfaces.muller_brown(*point) == pytest.approx(energy, abs=1e-3)
        assert np.abs(gradient(surfaces.muller_brown, point)).max() < 0.2


def gradient(function, point, h=1e-5):
    """Return the central differences of a function of two coordinates."""
    x, y = point
    return np.array([(function(x + h, y) - function(x - h, y)) / (2 * h), (function(x, y + h) - function(x, y - h)) / (2 * h)])


@pytest.mark.parametrize(
    ("function", "low", "high", "start", "goal", "saddle", "error"),
    [
        (surfaces.leps, (0.4, -2.2), (3.5, 2.2), (0.7415, 1.3034), (3.0013, -1.3043), -0.8752, 0.02),
        (surfaces.muller_brown, (-1.5, -0.4), (1.2, 2.1), (0.6235, 0.028), (-0.5582, 1.4417), -40.6648, 0.5),
    ],
)
def test_the_lowest_barrier_is_the_saddle(function, low, high, start, goal, saddle, error):
    axes = [np.linspace(a, b, 600) for a, b in zip(low, high, strict=True)]
    cells = [tuple(int(np.abs(axis - v).argmin()) for axis, v in zip(axes, point, strict=True)) + (0,) for point in (start, goal)]
    energy = surfaces.on_lattice(function, axes)
    found = optimum.barriers(energy, np.array(cells[1]), False)[cells[0]]
    assert found == pytest.approx(saddle, abs=error)


def random_landscape(seed, periodic):
    draws = np.random.default_rng(seed)
    energy = draws.uniform(0.0, 4.0, (5, 4, 3)).round(1)  # ties
    return Landscape(energy, 7, 12, periodic, 0.0, (0, 1, 7), (3, 3, 9), float(draws.uniform(0.1, 5.0)), 2.0)


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_random_landscapes_against_dijkstra(seed, periodic):
    made = random_landscape(seed, periodic)
    cost, top = dijkstra(made, lambda a, b: a + b), dijkstra(made, max)
    best = optimum.highest_return(made, 1.0)
    assert best.rewards.sum() == pytest.approx(made.goal_reward - cost)
    start = made.energy[made.start[0], made.start[1], made.start[2] - 7]
    lowest = optimum.lowest_barrier(made)
    assert max(lowest.barrier + start, start) == pytest.approx(max(top * 2.0, start))
    assert tuple(best.cells[0]) == made.start
    assert tuple(best.cells[-1]) == made.goal


def dijkstra(made, join):
    """Return the least cost from start to goal, the cost of a cell joined to that of the way to it."""
    shape, goal = made.energy.shape, (made.goal[0], made.goal[1], made.goal[2] - made.z_lower)
    queue = [(0.0, (made.start[0], made.start[1], made.start[2] - made.z_lower))]
    done = set()
    while queue:
        so_far, cell = heapq.heappop(queue)
        if cell == goal:
            return so_far
        if cell in done:
            continue
        done.add(cell)
        for axis in range(3):
            for way in (-1, 1):
                there = list(cell)
                there[axis] += way
                if axis < 2 and made.periodic:
                    there[axis] %= shape[axis]
                if 0 <= there[axis] < shape[axis]:
                    price = made.energy[tuple(there)] / made.energy_scale
                    heapq.heappush(queue, (join(so_far, min(price, 1.0) if join is not max else price), tuple(there)))
    raise AssertionError("no path")


def test_cells_that_cost_nothing_do_not_lead_in_circles():
    made = random_landscape(0, True)
    free = made._replace(energy=np.zeros_like(made.energy))
    assert optimum.highest_return(free, 1.0).rewards.sum() == pytest.approx(made.goal_reward)


# Whether the settings that are shipped find the way, in fewer steps than they take ------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "seed"), [([], 0), *(pytest.param(["env.scenario=lh"], n, marks=needs_grids) for n in (4, 8))])
def test_shipped_settings_find_the_way(chosen, seed, tmp_path):
    """LEPS needs no download; with these seeds lh came to rest under discounted shaping."""
    settings = ["total_steps=2e6", f"seed={seed}", f"output_root={tmp_path}", "log.live=false", "device=cpu"]
    run = warprun.train(["env=catalysis", *chosen, *settings])
    found = evaluate_run(run.folder, 1000, False, "cpu", 1)
    assert found["terminated"] >= 0.99
    assert found["path/share_of_optimum"] >= 0.95
