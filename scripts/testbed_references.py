"""Compute what the bars of the test bed are derived from: the return of the best policy that does not look, and a reference.

    python scripts/testbed_references.py [TASK ...]

A reference is the return of an optimum (dynamic programming, enumeration, a linear-quadratic regulator) or of the best policy of a grid.
All in NumPy with float64. Environments that step without branches are stepped by their own functions on arrays of episodes (`Arrays`); the
others have a model here, and a test plays its policy in the environment. What the functions share is in testbed_solvers.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from common import settings, table
from testbed_solvers import Arrays, Chain, Linear, Reference, best_of, module_of

# Environments on arrays -----------------------------------------------------------------------------------------------


def chemostat() -> Reference:
    """Dilute in proportion to the cells above a number."""
    bed = Arrays("chemostat", 200)

    def earned(act: Callable[..., Any]) -> float:
        return float(bed.returns(act, 500, ("rng", "p"), ("rng", "p")).mean())

    naive, _ = best_of(((rate,) for rate in np.linspace(0.0, 1.0, 41)), lambda rate: earned(lambda *_: (rate,)))
    grid = itertools.product(np.geomspace(0.2, 10.0, 9), np.linspace(1.5, 4.0, 11))
    best, (gain, above) = best_of(grid, lambda gain, above: earned(lambda cells, _: (np.clip(gain * (cells - above), 0.0, 1.0),)))
    return Reference(naive, best, lambda t, seen: np.clip(gain * (seen[:, :1] - above), 0.0, 1.0))


def epidemic() -> Reference:
    """Take one level of measures above a number of infected, and a lower one below it."""
    bed = Arrays("epidemic", 200)

    def earned(high: float, low: float, above: float) -> float:
        return float(bed.returns(lambda _, infected: np.where(infected > above, high, low), 52, ("rng",), ("p",)).mean())

    naive, _ = best_of(((level, level, 0.0) for level in range(4)), earned)
    levels = [(high, low) for high in range(4) for low in range(high)]
    grid = ((*pair, above) for pair in levels for above in np.geomspace(1.0e3, 1.0e5, 13))
    best, (high, low, above) = best_of(grid, earned)
    return Reference(naive, best, lambda t, seen: np.where(seen[:, 1] > above, high, low).astype(int))


def glucose() -> Reference:
    """Pump in proportion to glucose and to what the gut has, less for insulin that has not yet acted."""
    bed = Arrays("glucose", 100)

    def earned(act: Callable[..., Any]) -> float:
        return float(bed.returns(act, 288, ("rng",), ("rng", "p")).mean())

    def rate(base: float, to_glucose: float, to_gut: float, to_effect: float) -> Callable[..., Any]:
        def act(glucose: np.ndarray, effect: np.ndarray, insulin: np.ndarray, meal: np.ndarray) -> tuple[np.ndarray]:
            return (np.clip(base + to_glucose * glucose + to_gut * meal - to_effect * effect, 0.0, 100.0),)

        return act

    naive, _ = best_of(((base,) for base in np.linspace(0.0, 100.0, 41)), lambda base: earned(rate(base, 0.0, 0.0, 0.0)))
    grid = itertools.product((20.0, 30.0, 40.0), (20.0, 40.0, 80.0), (400.0, 800.0, 1200.0), (4.0e3, 8.0e3, 1.6e4))
    best, numbers = best_of(grid, lambda *numbers: earned(rate(*numbers)))
    return Reference(naive, best, lambda t, seen: rate(*numbers)(*seen.T)[0][:, None])


def ring() -> Reference:
    """Move in proportion to the mean distance of the neighbours."""
    bed = Arrays("ring", 100, (64,))
    module, every = bed.module, np.arange(64)

    def earned(gain: float) -> float:
        rng, total = np.random.default_rng(0), 0.0
        actors = module.reset(rng)
        for _ in range(50):
            move = gain * np.mean(module.observe(actors, every, actors), 0)
            actors, _, _ = module.move(actors, (np.clip(move, -0.5, 0.5),), rng, bed.p)
            actors, _, _ = module.measure(actors, module.Actor(actors.x.sum(0), 0.0))
            total += module.share(actors, module.Actor(0.0, actors.away.sum(0)))[1].mean()
        return total

    naive = earned(0.0)  # the same move of all changes nothing
    best, _ = best_of(((gain,) for gain in np.linspace(0.2, 1.0, 9)), earned)
    return Reference(naive, best)


# Dynamic programming --------------------------------------------------------------------------------------------------


def service() -> Reference:
    """Dynamic programming over customers and the kind of time."""
    bed = module_of("service")
    p, room = bed.Params(), bed.ROOM
    speed, waiting, busy = np.meshgrid(np.arange(bed.SPEEDS), np.arange(room + 1), np.arange(2), indexing="ij")
    following, probability = [], []
    for left, arrival, change in itertools.product((0, 1), repeat=3):
        after = np.minimum(waiting - left * (waiting > 0) + arrival, room)
        following.append(2 * after + np.where(change, 1 - busy, busy))
        served, comes = p.serve * speed, np.where(busy == 1, p.rush, p.calm)
        chances = [chance if yes else 1.0 - chance for yes, chance in ((left, served), (arrival, comes), (change, p.change))]
        probability.append(chances[0] * chances[1] * chances[2])
    reward = -(p.wait * waiting + p.work * speed**2.0)
    size = (bed.SPEEDS, 2 * (room + 1), -1)
    chain = Chain(np.stack(following, -1).reshape(size), np.stack(probability, -1).reshape(size), reward.reshape(size[:2]))
    start = np.zeros((room + 1, 2))
    start[:6] = 1.0 / 12.0
    return chain.reference(200, start.ravel(), lambda seen: 2 * seen[:, 0] + seen[:, 1])


def inventory() -> Reference:
    """Dynamic programming over the stock and what is on its way."""
    bed = module_of("inventory")
    p, orders, shelf = bed.Params(), bed.ORDERS, bed.SHELF
    shape = (orders, shelf + 1, orders, orders)
    order, stock, tomorrow, after, demand = np.ogrid[:orders, : shelf + 1, :orders, :orders, : bed.DEMANDS]
    rest, lost = np.maximum(stock - demand, 0), np.maximum(demand - stock, 0)
    following = (np.minimum(rest + tomorrow, shelf) * orders + after) * orders + order
    reward = -(p.hold * rest + p.lost * lost).mean(-1) - p.order * (order > 0)[..., 0]
    size = (orders, (shelf + 1) * orders**2)
    following = np.broadcast_to(following, (*shape, bed.DEMANDS)).reshape(*size, -1)
    chain = Chain(following, np.full((orders, 1, 1), 1.0 / bed.DEMANDS), np.broadcast_to(reward, shape).reshape(size))
    start = np.zeros((shelf + 1, orders, orders))
    start[:15, 0, 0] = 1.0 / 15.0
    return chain.reference(100, start.ravel(), lambda seen: (seen[:, 0] * orders + seen[:, 1]) * orders + seen[:, 2])


def maze() -> Reference:
    """Dynamic programming over the cells."""
    bed = module_of("maze")
    side, wall, goal = bed.SIDE, bed.WALL, bed.GOAL
    x, y = np.divmod(np.arange(side * side), side)
    walls = ((x == wall) & ~np.isin(y, bed.DOORS)) | ((y == wall) & ~np.isin(x, bed.DOORS))
    at_goal = (x == goal[0]) & (y == goal[1])
    following = []
    for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        cell = np.clip(x + dx, 0, side - 1) * side + np.clip(y + dy, 0, side - 1)
        following.append(np.where(walls[cell] | at_goal, np.arange(side * side), cell))
    reward = np.where(at_goal, 0.0, at_goal[following] - bed.Params().cost)
    start = np.where((x != wall) & (y != wall), 1.0 / (side - 1) ** 2, 0.0)
    start[0] += start[at_goal].sum()
    chain = Chain(np.array(following)[..., None], np.ones((4, 1, 1)), reward)
    return chain.reference(100, np.where(at_goal, 0.0, start), lambda seen: seen[:, 0] * side + seen[:, 1])


def battery() -> Reference:
    """Dynamic programming over the hour of the day, the noise of the price and the charge; the naive policy sells what there is."""
    bed = module_of("battery")
    p, room, levels, middle = bed.Params(), bed.ROOM, bed.LEVELS, bed.LEVELS // 2
    actions, pattern, end = 2 * bed.FASTEST + 1, np.array(bed.PATTERN), bed.LEVELS - 1
    action, hour, level, charge = np.meshgrid(*map(np.arange, (actions, 24, levels, room + 1)), indexing="ij")
    after, high = np.clip(charge + action - bed.FASTEST, 0, room), level / end
    bought, price = after - charge, pattern[hour] + bed.RISE * (level - middle)

    def number(hour: np.ndarray, level: np.ndarray, charge: np.ndarray) -> np.ndarray:
        """Return the numbers of states."""
        return (hour * levels + level) * (room + 1) + charge

    outcomes = ((-1, p.change * high), (1, p.change * (1.0 - high)), (0, 0.0 * high + 1.0 - p.change))
    following = [number((hour + 1) % 24, np.clip(level + change, 0, end), after) for change, _ in outcomes]
    size = (actions, 24 * levels * (room + 1), -1)
    probability = np.stack([chance for _, chance in outcomes], -1).reshape(size)
    reward = -price * bought * np.where(bought > 0, 1.0 + p.loss, 1.0 - p.loss)
    chain = Chain(np.stack(following, -1).reshape(size), probability, reward.reshape(size[:2]))
    start = np.zeros((24, levels, room + 1))
    start[0] = 1.0 / start[0].size

    def state(seen: np.ndarray) -> np.ndarray:
        return number(seen[:, 2], (seen[:, 1] - pattern[seen[:, 2]]) // bed.RISE + middle, seen[:, 0])

    return chain.reference(bed.WEEK, start.ravel(), state)


def switch() -> Reference:
    """Dynamic programming on a grid of 251 places and 41 pushes; values between places are interpolated."""
    p, steps = module_of("switch").Params(), 1000
    x, pushes = np.linspace(-2.5, 2.5, 251), np.linspace(-1.0, 1.0, 41)
    between = (x + p.dt * (x - x**3 + p.tilt + pushes[:, None]) - x[0]) / (x[1] - x[0])
    below = np.clip(between.astype(int), 0, len(x) - 2)
    above = np.clip(between - below, 0.0, 1.0)
    spread = np.exp(-0.5 * ((x - x[:, None]) / p.noise) ** 2 / p.dt)
    spread /= spread.sum(1, keepdims=True)
    reward = np.clip(x, 0.0, 1.0) - p.cost * pushes[:, None] ** 2
    chain = Chain(np.stack((below, below + 1), -1), np.stack((1.0 - above, above), -1), reward, spread)
    value, actions = chain.values(steps)

    def at_start(value: np.ndarray) -> float:
        return float(np.interp(np.linspace(-1.2, -0.8, 101), x, value).mean())

    def act(t: int, seen: np.ndarray) -> np.ndarray:
        return pushes[actions[t, np.abs(seen - x).argmin(1)]][:, None]

    return Reference(max(map(at_start, chain.constant(steps))), at_start(value), act)


def screening() -> Reference:
    """Enumerate tests, results and verdicts: each is the best for what is known."""
    bed = module_of("screening")
    p, kinds = bed.Params(), np.arange(bed.KINDS)
    positive = (np.array(bed.POSITIVE)[:, None] >> kinds) & 1
    chance = {result: np.where(positive == (result == 1), p.right, 1.0 - p.right) for result in (1, -1)}  # [tests, kinds]

    def after_two(belief: np.ndarray) -> np.ndarray:
        """Return the probabilities that the verdict is right, [second tests]."""
        return sum((belief * chance[result]).max(-1) for result in (1, -1))

    even = np.full(bed.KINDS, 1.0 / bed.KINDS)
    first = [sum(after_two(even * chance[result][test]).max() for result in (1, -1)) for test in kinds]

    def act(t: int, seen: np.ndarray) -> np.ndarray:
        if t == 0:
            return np.full(len(seen), int(np.argmax(first)))
        tests, results = seen[:, 0].astype(int), seen[:, 1]
        beliefs = [even * chance[int(result)][test] for test, result in zip(tests, results, strict=True)]
        if t == 1:
            return np.array([after_two(belief).argmax() for belief in beliefs])
        later = zip(beliefs, seen[:, 2].astype(int), seen[:, 3], strict=True)
        return np.array([(belief * chance[int(result)][test]).argmax() for belief, test, result in later])

    return Reference(p.prize / bed.KINDS, p.prize * float(max(first)), act)


def packing() -> Reference:
    """Try all sets of things; the naive policy takes the first that is not masked."""
    bed = module_of("packing")
    p, rng = bed.Params(), np.random.default_rng(0)
    sets = (np.arange(2**bed.THINGS)[:, None] >> np.arange(bed.THINGS)) & 1  # [sets, THINGS]

    def best_set(size: np.ndarray, worth: np.ndarray, room: np.ndarray) -> np.ndarray:
        """Return the number of the set that is worth most, [N]; sizes and worths [N, THINGS], room [N]."""
        return np.where(size @ sets.T <= room[:, None], worth @ sets.T, -1.0).argmax(1)

    def act(t: int, seen: np.ndarray) -> np.ndarray:
        size, worth, room = seen[:, : bed.THINGS], seen[:, bed.THINGS : -1], seen[:, -1]
        packed = worth == 0.0
        chosen = sets[best_set(np.where(packed, 9.0, size), worth, room - 1e-6)]
        return np.where(chosen.any(1), chosen.argmax(1), bed.CLOSE)

    size, worth = rng.uniform(0.1, 1.0, (2, 20_000, bed.THINGS))
    room, naive = np.full(len(size), p.room), np.zeros(len(size))
    for n in range(bed.THINGS):
        fits = size[:, n] <= room
        naive, room = naive + fits * worth[:, n], room - fits * size[:, n]
    best = (worth * sets[best_set(size, worth, np.full(len(size), p.room))]).sum(1)
    return Reference(float(naive.mean()), float(best.mean()), act)


def search() -> Reference:
    """Best of a grid: Bayes' rule, and of all cells the one with the most information, in units of `gain`, less the cost of the way."""
    bed = module_of("search")
    p, episodes, cells = bed.Params(), 20_000, np.arange(bed.CELLS)
    every, last = np.arange(episodes), bed.STEPS - 1
    height = np.exp(-0.5 * ((cells[:, None] - cells) / p.width) ** 2)  # [cells, peaks]

    def choose(gain: float, t: int, mean: np.ndarray, count: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Return cells, [N]; means and counts [N, cells], place [N]. The last choice is the best for what is known."""
        likely = (count * mean) @ height - 0.5 * count @ height**2  # log, times the squared noise, but for a constant
        belief = np.exp((likely - likely.max(1, keepdims=True)) / p.noise**2)
        belief /= belief.sum(1, keepdims=True)
        expected = belief @ height.T
        variance = np.maximum(belief @ height.T**2 - expected**2, 0.0)
        worth = p.prize * expected if t == last else gain * 0.5 * np.log1p(variance / p.noise**2)
        return (worth - p.move * np.abs(cells - place[:, None])).argmax(1)

    def earned(gain: float) -> float:
        rng = np.random.default_rng(0)
        peak, place = rng.integers(0, bed.CELLS, (2, episodes))
        sums, count, total = np.zeros((episodes, bed.CELLS)), np.zeros((episodes, bed.CELLS)), 0.0
        for t in range(bed.STEPS):
            cell = choose(gain, t, sums / np.maximum(count, 1.0), count, place)
            total -= p.move * np.abs(cell - place).mean()
            sums[every, cell] += height[cell, peak] + p.noise * rng.standard_normal(episodes)
            count[every, cell] += 1.0
            place = cell
        return float(total + p.prize * height[place, peak].mean())

    way = np.abs(cells - cells[:, None]).mean(1)  # the same cell in all steps
    best, (gain,) = best_of(((gain,) for gain in np.linspace(2.0, 6.0, 9)), earned)

    def act(t: int, seen: np.ndarray) -> np.ndarray:
        return choose(gain, t, seen[:, : bed.CELLS], seen[:, bed.CELLS : -1], seen[:, -1])

    return Reference(float((p.prize * height.mean(1) - p.move * way).max()), best, act)


# Linear systems with quadratic costs ----------------------------------------------------------------------------------


def plate() -> Reference:
    """Riccati's equation."""
    bed = module_of("plate")
    p, eye = bed.Params(), np.eye(bed.SPOTS)
    passed = np.roll(eye, 1, 0) + np.roll(eye, -1, 0)
    system = Linear(p.keep * eye + p.pass_on * passed, p.heat * eye, eye, p.power * eye, p.noise, eye / 12.0)
    return system.reference(100, -1000.0, 1000.0)


def antenna() -> Reference:
    """Riccati's equation, over the errors, their rates and the wind, of two axes each."""
    p, eye, none = module_of("antenna").Params(), np.eye(2), np.zeros((2, 2))
    turn = p.turn * np.array([[0.0, 1.0], [-1.0, 0.0]])
    rate = np.hstack([-p.dt * p.stiffness * eye, (1.0 - p.dt * p.damping) * eye + p.dt * turn, p.dt * eye])
    error = np.hstack([eye, none, none]) + p.dt * rate
    system = Linear(
        np.vstack([error, rate, np.hstack([none, none, p.keep * eye])]),
        p.dt * p.motor * np.vstack([p.dt * eye, eye, none]),
        np.diag([p.error, p.error, 0.0, 0.0, 0.0, 0.0]),
        p.power * eye,
        np.repeat([0.0, p.gust], (4, 2)),
        np.diag([4.0e-6 / 3.0, 4.0e-6 / 3.0, 0.0, 0.0, 0.0, 0.0]),
    )
    return system.reference(500, -10.0, 10.0)


def integrator() -> Reference:
    """Riccati's equation, with a scale of 1."""
    p = module_of("integrator").Params()
    system = Linear(
        np.array([[1.0, p.dt], [0.0, 1.0]]),
        np.array([[p.dt**2], [p.dt]]),
        np.diag([1.0, 0.0]),
        np.array([[p.effort]]),
        0.0,
        np.eye(2) / 3.0,
    )
    return system.reference(100, -3.0, 3.0)


# Shipped environments -------------------------------------------------------------------------------------------------


def heat_equation() -> Reference:
    """Cool in proportion to the sensor beside a heater and, less, to the two around it."""
    from warprun.envs.heat_equation import CHANGES, HEATERS, LOAD, POWER_COST, HeatEquation, bump

    env, episodes, steps = HeatEquation(), 200, 100
    eye, points = np.eye(env.cells), env.points - 1

    def after(u: np.ndarray, source: np.ndarray) -> np.ndarray:
        env.u[1:-1] = u
        env.diffuse(source)
        return env.u[1:-1].copy()

    spread = np.array([after(cell, 0.0 * cell) for cell in eye])  # [cells, cells], to be multiplied from the left
    heated = np.array([after(0.0 * cell, cell) for cell in eye])

    def earned(near: float, around: float) -> float:
        rng, total = np.random.default_rng(0), 0.0
        u = rng.uniform(-1.0, 1.0, (episodes, 3)) @ np.sin(np.pi * env.x * np.arange(1, 4)[:, None])
        changes = np.ones((episodes, 1), bool)
        load = np.zeros_like(u)
        for _ in range(steps):
            drawn = rng.uniform(-1.0, 1.0, (episodes, 1)) * LOAD * bump(env.x - rng.uniform(0.2, 0.8, (episodes, 1)))
            load = np.where(changes, drawn, load)
            seen = u[:, points]
            action = np.clip(-near * seen[:, 1::2] - around * (seen[:, :-1:2] + seen[:, 2::2]), -1.0, 1.0)
            u = u @ spread + (action @ env.heaters.T + load) @ heated
            total += (np.mean(u**2, 1) + POWER_COST * np.mean(action**2, 1)).mean()
            changes = rng.random((episodes, 1)) < CHANGES
        return -total

    assert env.heaters.shape == (env.cells, len(HEATERS))
    grid = itertools.product(np.linspace(0.5, 4.0, 8), np.linspace(0.0, 2.0, 6))
    return Reference(earned(0.0, 0.0), best_of(grid, earned)[0])


def booster(action: str = "discrete") -> Reference:
    """The quadratic regulator of docs/booster.md, on 2,000 episodes that are not those of its table; the naive policy is no control."""
    from warprun.envs.booster import control, environment

    made = environment(action=action)
    p, tables = made.params(), made.tables()
    episodes = control.simulate(p, 2000, 100)
    limit = control.limit_of(made.spec.groups[0].action, tables.changes)
    best = control.run(control.best_quadratic(episodes, p, tables, limit), episodes, p, tables, limit)
    return Reference(float(control.run(control.none, episodes, p, tables).returns.mean()), float(best.returns.mean()))


def booster_continuous() -> Reference:
    """The same with the limits of real-valued changes."""
    return booster("continuous")


def catalysis() -> Reference:
    """The exact best path of the LEPS surface, with a reward of 1 per step nearer to the goal; the naive policy goes back and forth."""
    from warprun.envs.catalysis import optimum
    from warprun.envs.catalysis.landscape import landscape

    made = landscape("leps")

    def earned(cells: np.ndarray) -> float:
        nearer = np.abs(cells[0] - made.goal).sum() - np.abs(cells[-1] - made.goal).sum()
        return float(optimum.describe(made, cells).rewards.sum() + nearer)

    ahead = np.arange(501)[:, None] % 2
    naive = max(earned(np.array(made.start) + ahead * move) for move in optimum.MOVES[:4])
    return Reference(naive, earned(optimum.highest_return(made, 1.0).cells))


REFERENCES: dict[str, Callable[[], Reference]] = {
    each.__name__: each
    for each in (
        *(heat_equation, booster, booster_continuous, catalysis),
        *(integrator, chemostat, glucose, service, inventory, epidemic, ring, maze, screening, plate, packing),
        *(battery, antenna, switch, search),
    )
}


def main() -> None:
    """Print the references."""
    names = settings(__doc__, "task*").task or list(REFERENCES)
    rows = [[name, f"{found.naive:.4g}", f"{found.best:.4g}"] for name in names for found in [REFERENCES[name]()]]
    print(table(["task", "does not look", "reference"], rows))


if __name__ == "__main__":
    main()
