"""References of the test bed that are the best policy of a grid, on simulated episodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from testbed_solvers import Arrays, Linear, Policy, Reference, best_of, module_of


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
    best, (gain,) = best_of(((gain,) for gain in np.linspace(0.2, 1.0, 9)), earned)
    return Reference(naive, best, policies={"actors": lambda t, seen: np.clip(gain * seen.mean(1, keepdims=True), -0.5, 0.5)})


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


def synthesis() -> Reference:
    """Hold a temperature in proportion to the distance from it, feed what is warm enough, and keep the catalyst in step with the feed."""
    bed = Arrays("synthesis", 200)

    def earned(act: Callable[..., Any]) -> float:
        return float(bed.returns(act, 400, ("rng", "p"), ("rng", "p")).mean())

    def law(wanted: float, gain: float, thick: float) -> Callable[..., Any]:
        def act(
            raw: np.ndarray, product: np.ndarray, catalyst: np.ndarray, temperature: np.ndarray, strength: np.ndarray
        ) -> tuple[np.ndarray, ...]:
            feed = 1.0e-3 * np.clip((temperature - wanted + 20.0) / 10.0, 0.0, 1.0)
            dose = np.clip(feed * thick + 1.0e-3 * (thick - catalyst), 0.0, 1.0e-4)
            return feed, dose, np.clip(gain * (wanted - temperature), -2.0e5, 1.0e5)

        return act

    constants = itertools.product((0.0, 3.0e-4, 6.0e-4, 1.0e-3), (0.0, 1.0e-5, 3.0e-5, 6.0e-5, 1.0e-4), np.linspace(-1.0e5, 1.0e5, 9))
    naive, _ = best_of(constants, lambda *action: earned(lambda *_: action))
    grid = itertools.product(np.linspace(335.0, 350.0, 7), (3.0e4, 6.0e4, 1.2e5), (0.04, 0.06, 0.08, 0.1))
    best, numbers = best_of(grid, lambda *numbers: earned(law(*numbers)))
    return Reference(naive, best, lambda t, seen: np.stack(law(*numbers)(*seen.T), -1))


def shield() -> Reference:
    """The linear-quadratic regulator of the distance from the sample, with the cost of power from a grid, and cut at its bounds."""
    bed = Arrays("shield", 200)
    p = bed.p
    plate = np.array([p.passes, 1.0 - p.passes, 0.0, 0.0])
    shielded = np.array([1.0 - p.passes - p.loss, p.passes, 0.0, 0.0])
    sample = np.array([0.0, 0.0, 1.0 + p.keep, -p.keep])
    moves = np.stack([shielded, plate, sample, [0.0, 0.0, 1.0, 0.0]])  # of what is observed, less the temperature of the room
    away = np.array([1.0, 0.0, -1.0, 0.0])

    def law(cost: float) -> Callable[[np.ndarray], np.ndarray]:
        power = np.array([[cost]])
        system = Linear(moves, np.array([[0.0], [p.heat], [0.0], [0.0]]), np.outer(away, away), power, 0.0, np.eye(4))
        gain = system.costs(300, True)[1][0]
        return lambda seen: np.clip(-(seen - p.room) @ gain.T, -100.0, 100.0)

    def earned(act: Callable[..., Any]) -> float:
        return float(bed.returns(act, 300, ("rng",), ("rng", "p")).mean())

    def regulated(cost: float) -> float:
        act = law(cost)
        return earned(lambda *seen: (act(np.stack(seen, -1))[:, 0],))

    naive, _ = best_of(((power,) for power in np.linspace(-10.0, 20.0, 31)), lambda power: earned(lambda *_: (power,)))
    best, (cost,) = best_of(((cost,) for cost in np.geomspace(1.0e-9, 1.0e-4, 6)), regulated)
    act = law(cost)
    return Reference(naive, best, lambda t, seen: act(seen))


def detectors() -> Reference:
    """Calibrate where an index is largest: the weight times powers of error and drift; a naive policy is a schedule that drift decides.

    Powers of 4 and of -2 are Whittle's index of a random walk, since weights times the squared error are what a wait costs.
    """
    bed = module_of("detectors")
    p, drift, weight, episodes, steps = bed.Params(), np.array(bed.DRIFT), np.array(bed.WEIGHT), 400, 300
    every = np.arange(episodes)

    def earned(act: Policy) -> float:
        rng, total = np.random.default_rng(0), 0.0
        error = rng.uniform(-2.0, 2.0, (episodes, bed.DETECTORS))
        for t in range(steps):
            error[every, act(t, error)] = p.left * rng.standard_normal(episodes)
            total -= p.price * (error**2 @ weight).mean()
            error += drift * rng.standard_normal(error.shape)
        return float(total)

    def scheduled(power: float) -> float:
        due, order = np.zeros(bed.DETECTORS), []
        for _ in range(steps):
            due += (weight * drift**2) ** power
            order.append(int(due.argmax()))
            due[order[-1]] = 0.0
        return earned(lambda t, error: np.full(episodes, order[t]))

    def index(of_error: float, of_drift: float) -> Policy:
        return lambda t, error: (weight * np.abs(error) ** of_error * drift**of_drift).argmax(1)

    naive, _ = best_of(((power,) for power in np.linspace(0.0, 1.0, 9)), scheduled)
    best, powers = best_of(itertools.product((1, 2, 3, 4), (-2.0, -1.5, -1.0, -0.5, 0.0)), lambda *powers: earned(index(*powers)))
    return Reference(naive, best, index(*powers))


def island() -> Reference:
    """Set points by output, frequency and its rate; batteries join one by one as the frequency is further off. The naive policy idles."""
    episodes = 100
    bed = Arrays("island", episodes, (8,))
    module, p, number = bed.module, bed.p, np.arange(bed.module.BATTERIES)[:, None]

    def set_points(
        output: np.ndarray, frequency: np.ndarray, rate: np.ndarray, hold: float, to_frequency: float, to_rate: float
    ) -> np.ndarray:
        return np.clip(hold * output - to_frequency * frequency - to_rate * rate, -1.5, 1.5)

    def choices(number: np.ndarray, frequency: np.ndarray, apart: float) -> np.ndarray:
        least = apart * (number + 0.5)
        return np.where(np.abs(frequency) > least, np.where(frequency < 0.0, 2, 0), 1)

    def earned(*numbers: float) -> float:
        rng, total, zero = np.random.default_rng(0), 0.0, np.zeros((module.GENERATORS, episodes))
        makers = module.Generator(*(zero + each for each in module.reset_generator(rng)))
        stores = module.Battery(module.reset_battery(rng).charge[: module.BATTERIES], 0.0)
        for _ in range(200):
            output, _, _, frequency, rate = module.see_generator(makers)
            action = set_points(output, frequency, rate, *numbers[:-1])
            chosen = choices(number, makers.frequency[0], numbers[-1])
            chosen = np.where(module.mask(0, stores, p), chosen, np.maximum(chosen, 1))
            chosen = np.where(module.mask(2, stores, p), chosen, np.minimum(chosen, 1))
            makers, stores = module.generate(makers, (action,), rng, p)[0], module.store(stores, chosen, p)[0]
            sums = [module.Generator(*(each.sum(0) for each in makers)), module.Battery(*(each.sum(0) for each in stores))]
            makers = module.swing(makers, p, *sums)[0]
            total += module.score(makers, p, makers)[1].mean()
        return float(total)

    naive = earned(0.0, 0.0, 0.0, np.inf)
    best, numbers = best_of(itertools.product((0.0, 0.5, 0.8), (2.0, 5.0, 10.0), (20.0, 40.0, 80.0), (0.005, 0.01, 0.02)), earned)
    return Reference(
        naive,
        best,
        policies={
            "generators": lambda t, seen: set_points(*seen.T[[0, 3, 4]], *numbers[:-1])[:, None],
            "batteries": lambda t, seen: choices(seen[:, 1], seen[:, 2], numbers[-1]),
        },
    )


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
