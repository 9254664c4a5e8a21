"""References of the test bed that are optima: dynamic programming and enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from testbed_solvers import Chain, Cycle, Reference, module_of


def chain_of(following: Sequence[np.ndarray], probability: Sequence[np.ndarray], reward: np.ndarray) -> Chain:
    """Return the chain of outcomes, each with the following states and its probability, [A, ...] as the reward; axes after A are states."""
    size = (len(reward), reward[0].size, -1)
    return Chain(np.stack(following, -1).reshape(size), np.stack(probability, -1).reshape(size), reward.reshape(size[:2]))


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
    chain = chain_of(following, probability, reward)
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


def reservoir() -> Reference:
    """Dynamic programming over the water and the kind of spell, with another chain in each month."""
    bed = module_of("reservoir")
    p, room = bed.Params(), bed.ROOM
    release, water, wet = np.ogrid[: bed.RELEASES, : room + 1, :2]
    size = (bed.RELEASES, 2 * (room + 1), -1)

    def chain(month: int) -> Chain:
        there = water + np.where(wet == 1, bed.WET[month], bed.DRY[month])
        released = np.minimum(release, there)
        left = np.minimum(there - released, room)
        missing, above = np.maximum(bed.NEED[month] - released, 0.0), np.maximum(there - left - p.safe, 0.0)
        reward = -(p.short * missing**2 + p.flood * above**2).reshape(size[:2])
        following = np.stack([2 * left + wet, 2 * left + 1 - wet], -1)
        change = np.where(wet == 1, p.dries, p.wets)
        probability = np.broadcast_to(np.stack([1.0 - change, change], -1), following.shape)
        return Chain(following.reshape(size), probability.reshape(size), reward)

    months = [chain(month) for month in range(bed.MONTHS)]
    start = np.full(2 * (room + 1), 0.5 / (room + 1))
    cycle = Cycle([month for month in months for _ in range(bed.MONTH)])
    return cycle.reference(5000, start, lambda seen: 2 * seen[:, 0] + seen[:, 1])


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


def forest() -> Reference:
    """Dynamic programming over the wood and the price."""
    bed = module_of("forest")
    p, room = bed.Params(), bed.ROOM
    tenths, wood, dear = np.meshgrid(bed.TENTHS, np.arange(room + 1), np.arange(2), indexing="ij")
    cut = tenths * wood // 10
    rest = wood - cut
    grows = p.grows * rest * (1.0 - rest / room)
    following, probability = [], []
    for grown, changed in itertools.product((0, 1), repeat=2):
        following.append(2 * np.minimum(rest + grown, room) + (dear ^ changed))
        probability.append((grows if grown else 1.0 - grows) * (p.changes if changed else 1.0 - p.changes))
    reward = cut * np.where(dear, p.high, 1.0) - p.way * (tenths > 0)
    chain = chain_of(following, probability, reward)
    start = np.zeros((room + 1, 2))
    start[50:150] = 1.0 / 200.0
    return chain.reference(4000, start.ravel(), lambda seen: 2 * seen[:, 0] + seen[:, 1])


def pump() -> Reference:
    """Dynamic programming over the wear and what is asked for."""
    bed = module_of("pump")
    p, end = bed.Params(), bed.WORN
    action, wear, busy = np.meshgrid(np.arange(3), np.arange(end + 1), np.arange(2), indexing="ij")
    repaired = action == bed.REPAIR
    wears = np.where(action == bed.FULL, p.fast, p.slowly)
    following, probability = [], []
    for worn, changed in itertools.product((0, 1), repeat=2):
        following.append(2 * np.where(repaired, 0, np.minimum(wear + worn, end)) + (busy ^ changed))
        probability.append((wears if worn else 1.0 - wears) * (p.changes if changed else 1.0 - p.changes))
    speed = 1.0 + np.where(action == bed.FULL, np.where(busy, p.rush, p.calm), 0.0)
    reward = np.where(repaired, -p.repair, speed * (1.0 - p.loss * wear))
    chain = chain_of(following, probability, reward)
    start = np.zeros((end + 1, 2))
    start[:20] = 1.0 / 40.0
    return chain.reference(3000, start.ravel(), lambda seen: 2 * seen[:, 0] + seen[:, 1])


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
