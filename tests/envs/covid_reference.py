"""The COVID-19 economy once more, from its specification: NumPy in float64, vectorised over environments and states.

It shares only the data with the environment. N environments; governors' arrays are [N, 51], the planner's [N].
"""

import numpy as np

from warprun.envs.covid.data import Data, load

START, DELAY, WINDOW, COOLDOWN, INTERVAL = 81, 29, 600, 28, 90
GAMMA, MORTALITY, VACCINE_START = 1 / 14, 0.02, 296


class Covid:
    """`n` economies, an episode of `length` days from 2020-03-22."""

    def __init__(self, n: int, priorities: tuple[float, float] = (0.3, 0.45), length: int = 540, data: Data | None = None) -> None:
        self.data = data or load()
        self.n, self.length, self.priorities = n, length, priorities
        self.people = self.data.population.astype(float)
        # The constant output of a worker, and of the states at level 1 without a pandemic.
        idle = (np.log(2) + self.data.unemployment_bias) * self.people / 100
        workers = int(0.6 * 328737916 - idle.sum())
        self.wage = 65300 / (workers / 328737916) / 365
        self.full = self.wage * (0.6 * self.people - idle)
        self.bounds = np.stack([self.data.health_bounds, self.data.economy_bounds])  # [index, end, 52]
        self.fade = np.exp(-1 / self.data.filter_time)[:, None, None]
        self.lost = np.exp(-WINDOW / self.data.filter_time)[:, None, None]
        self.reset()

    def reset(self) -> None:
        data, n = self.data, self.n
        self.t = 0
        history = data.level[: START + 1].astype(float)
        # Levels by day, the start at index `origin`; before the table they are 1.
        self.origin = WINDOW + 1
        self.levels = np.ones((self.origin + self.length + 1, n, 51))
        self.levels[self.origin - START : self.origin + 1] = history[:, None]
        changes = np.diff(self.levels[: self.origin + 1, 0], axis=0)[::-1][:WINDOW]  # the latest first
        age = np.arange(WINDOW)[:, None]
        sums = np.stack([(np.exp(-age / time) * changes).sum(0) for time in data.filter_time])
        self.filters = np.repeat(sums[:, None], n, 1)  # [5, N, 51]
        columns = (data.susceptible, data.infected, data.recovered, data.vaccinated, data.unemployed)
        self.S, self.I, self.R, self.V, self.U = (np.repeat(c[START][None], n, 0) for c in columns)
        self.D = MORTALITY * self.R
        self.Q = np.zeros((n, 51))
        self.subsidy = np.zeros(n, int)
        self.until = np.zeros((n, 51), int)

    def level(self, day: int) -> np.ndarray:
        """Return the levels [N, 51] of a day, which may be negative."""
        return self.levels[self.origin + day]

    def step(self, governors: np.ndarray, planner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take actions [N, 51] and [N]; return the rewards."""
        if self.t % INTERVAL == 0:
            self.subsidy = planner
        return self.live(np.where(governors > 0, governors, self.level(self.t)), governors)

    def live(self, level: np.ndarray, governors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Live a day with levels [N, 51] and the subsidy as it is; return the rewards."""
        data, people = self.data, self.people
        self.t += 1
        t = self.t
        self.levels[self.origin + t] = level
        self.until = np.where(self.until == t - 1, np.where(governors > 0, t - 1 + COOLDOWN, t), self.until)
        paid = self.subsidy[:, None] / 20 * people * 20000 / 365
        doses = np.floor(3000 * people / 1e6) if t >= VACCINE_START else np.zeros(51)
        beta = data.beta_intercept + data.beta_slope * self.level(t - DELAY)
        share, given = np.minimum(1, doses / (self.S + 1e-10)), np.minimum(doses, self.S)
        dS = -beta * (self.S / people) * self.I * (1 - share) - given
        dR = GAMMA * self.I + given
        dI = -dS - dR
        self.S, self.I, self.R = (np.maximum(0, x + dx) for x, dx in ((self.S, dS), (self.I, dI), (self.R, dR)))
        self.V = self.V + given
        before, self.D = self.D, MORTALITY * (self.R - self.V)
        leaving = self.level(t - WINDOW) - self.level(t - WINDOW - 1)
        self.filters = self.fade * self.filters + (self.level(t) - self.level(t - 1)) - self.lost * leaving
        z = (data.filter_weight[:, None] * self.filters).sum(0)
        self.U = (np.logaddexp(0, z) + data.unemployment_bias) * people / 100
        able = np.maximum(0, 0.6 * people - 0.6 * (0.1 * self.I + self.D) - self.U)
        self.Q = able * self.wage + paid
        died = self.D - before
        governors_reward = self.reward(died, self.Q, self.full, slice(0, 51), self.priorities[0])
        left = self.Q.sum(1) - 1.03 * paid.sum(1)
        return governors_reward, self.reward(died.sum(1), left, self.full.sum(), 51, self.priorities[1])

    def reward(self, died, output, full, actor, priority):
        health = -died * 1e7 / (365 * full)
        y = np.clip(output / full, 0.1, 3)
        economy = (2 - 1 / y) / 365
        scaled = [(x - low) / (high - low + 1e-10) for x, (low, high) in zip((health, economy), self.bounds[..., actor], strict=True)]
        odds = priority * self.data.alpha[actor] / (1 - self.data.alpha[actor])
        weight = odds / (1 + odds)
        return weight * scaled[0] + (1 - weight) * scaled[1]

    def features(self) -> list[np.ndarray]:
        """Return what is observed of the states, nine times [N, 51]."""
        shares = [x / self.people for x in (self.S, self.I, self.R, self.D, self.V, self.U)]
        return [*shares, self.Q / self.full, self.level(self.t + 1 - DELAY) / 10, self.level(self.t) / 10]

    def day(self) -> np.ndarray:
        """Return what is observed of the day, [N, 4]."""
        clock = 0.0 if self.t == VACCINE_START - 1 else 1.0
        same = (self.t / self.length, (INTERVAL - self.t % INTERVAL) / INTERVAL, self.subsidy / 20, clock)
        return np.stack([np.broadcast_to(x, self.n) for x in same], 1)

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the observations: [N, 51, 64], nine features, the day, who it is; and [N, 463]."""
        features, day = self.features(), self.day()
        own = np.stack(features, 2)
        everywhere = np.repeat(day[:, None], 51, 1)
        identity = np.repeat(np.eye(51)[None], self.n, 0)
        return np.concatenate([own, everywhere, identity], 2), np.concatenate([*features, day], 1)

    def masks(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which actions are allowed: [N, 51, 11] and [N, 21]."""
        governors = np.repeat((self.t >= self.until)[..., None], 11, 2)
        planner = np.full((self.n, 21), self.t % INTERVAL == 0)
        governors[..., 0] = planner[:, 0] = True
        return governors, planner
