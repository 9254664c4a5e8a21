"""The market, two groups in four phases, against a second telling of its rules: loops over one environment at a time in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.environments import market
from tests.environments.market import MEMORY, PRODUCERS, Params
from tests.simulation.rollouts import CASES, make
from warprun.random import Rng, normal, randint, uniform

SEED = 2**33 + 5
HORIZON, COLLECTS, N_ENVS = 40, 3, 21
TIME_LIMIT = CASES["market"].time_limit
IMITATION = dict(CASES["market"].vary)["imitation"]
TOLERANCE = 2e-5
"""Relative to 1 + |value|: float32 over at most 6 steps, then a reset."""
REGULATOR = PRODUCERS
"""Its number among all actors of an environment."""
RESET, STEP, VARIATION = 0, 1, 3


class Reference:
    """One environment."""

    def __init__(self, env: int) -> None:
        self.env = env
        self.p = Params()._asdict()
        self.table = market.tables(0.05)
        self.begin(2**32 - 1)

    def rng(self, now: int, purpose: int, actor: int) -> Rng:
        return Rng(*(np.uint32(word) for word in (SEED % 2**32, SEED >> 32, self.env, now, purpose * 2**24 + actor)))

    def begin(self, now: int) -> None:
        self.t = 0
        self.p["imitation"] = float(uniform(self.rng(now, VARIATION, 0), 0, *map(np.float32, IMITATION)))
        draws = [self.rng(now, RESET, actor) for actor in range(PRODUCERS + 1)]
        self.price = [float(uniform(rng, 0, 0.5, 1.5)) for rng in draws[:PRODUCERS]]
        self.stock = [int(randint(rng, 1, 4)) for rng in draws[:PRODUCERS]]
        self.sold = [0] * PRODUCERS
        self.history = [[0] * MEMORY for _ in range(PRODUCERS)]
        self.visits = [[0, actor] for actor in range(PRODUCERS)]
        self.tax, self.quota, self.peak = 0.0, 1, 0.0
        self.income = float(uniform(draws[REGULATOR], 0, 0.0, 0.1))
        self.returns = np.zeros(2)

    def step(self, now: int, producers: np.ndarray, regulator: np.ndarray) -> tuple[list[float], float, bool]:
        p, n = self.p, self.t
        self.tax, self.quota = 0.1 * regulator[0], 1 + 2 * regulator[1]
        regulator_reward = -0.01 * n - 0.1 * max(self.stock)
        over = False
        price, history, rewards = list(self.price), [list(h) for h in self.history], []
        for a in range(PRODUCERS):
            rng = self.rng(now, STEP + 16 * 1, a)  # phase 1
            b = (a + 1) % PRODUCERS
            sold = min(producers[a], self.stock[a], self.quota)
            self.price[a] += p["imitation"] * (price[b] - price[a]) + 0.01 * history[b][n % MEMORY] - p["slope"] * sold
            self.price[a] += float(self.table.demand[n % 7, a]) + p["noise"] * float(normal(rng, 1))
            self.history[a][n % MEMORY] = sold
            self.visits[a][int(sold > 0)] += 1
            self.stock[a] += int(randint(rng, 0, p["restock"] + 1)) - sold + int(self.table.bonus[producers[a] % 3])
            self.sold[a] = sold
            rewards.append(self.price[a] * sold * (1 - self.tax))
            over |= self.price[a] > p["crash"]
        self.income += self.tax * sum(self.sold)
        self.peak = max(self.peak, self.price[0])
        regulator_reward += 0.5 * self.income - 0.01 * max(self.stock)
        over |= self.income > p["target"]
        rewards = [reward - 0.05 * self.peak * sold for reward, sold in zip(rewards, self.sold, strict=True)]
        self.t += 1
        self.returns += [sum(rewards) / PRODUCERS, regulator_reward]
        return rewards, regulator_reward, over

    def observe(self) -> tuple[list[list[float]], list[float]]:
        producers = [
            [self.price[a], self.stock[a], self.history[a][1], self.visits[a][1], self.tax, sum(self.sold), self.price[a - 1]]
            for a in range(PRODUCERS)
        ]
        return producers, [*self.price, *(h[0] for h in self.history), self.income, max(self.stock), self.t]

    def masks(self) -> tuple[list[list[bool]], list[bool]]:
        producers = [[k <= self.stock[a] and k <= self.quota for k in range(4)] for a in range(PRODUCERS)]
        return producers, [True, True, self.income > 0.4, True, self.t % 2 == 0]


def close(found: torch.Tensor, expected: object) -> bool:
    return np.allclose(found.numpy(), np.asarray(expected), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.fixture(scope="module")
def engine():
    environment = CASES["market"].environment
    return make(environment, "market", n_envs=N_ENVS, horizon=HORIZON, seed=SEED, threads=2, vary={"imitation": IMITATION})


@pytest.mark.long
def test_everything_equals_the_reference(engine):
    """120 steps of 21 environments: observations, masks, rewards, both kinds of ends, final observations and statistics."""
    references = [Reference(env) for env in range(N_ENVS)]
    taken = engine.trajectory
    producers, regulator = taken.groups["producers"], taken.groups["regulator"]
    # Uneven preferences: high taxes end episodes by the regulator, no sales end them by a producer.
    draw = np.random.default_rng(1)
    episodes, steps, returns, ends = 0, 0, np.zeros(2), set()

    def act(trajectory, row):
        for group in (producers, regulator):
            group.policy_output.copy_(torch.from_numpy(draw.normal(0, 2, group.policy_output.shape)))

    for collect in range(COLLECTS):
        engine.collect(act)
        cuts = [0] * N_ENVS
        for row in range(HORIZON):
            now = collect * HORIZON + row
            for env, reference in enumerate(references):
                check_observation(reference, producers, regulator, row, env)
                choices, decision = producers.action[row, env, :, 0].numpy(), regulator.action[row, env, 0].numpy()
                allowed = reference.masks()
                assert all(allowed[0][a][k] for a, k in enumerate(choices))
                assert allowed[1][decision[0]]
                assert allowed[1][3 + decision[1]]
                rewards, reward, over = reference.step(now, choices, decision)
                assert close(producers.reward[row, env], rewards)
                assert close(regulator.reward[row, env], [reward])
                cut = reference.t >= TIME_LIMIT and not over
                assert bool(taken.terminated[row, env]) == over
                assert bool(taken.truncated[row, env]) == cut
                if cut:
                    seen = reference.observe()
                    assert int(taken.final_slot()[row, env]) == cuts[env]
                    assert close(producers.final_obs[cuts[env], env], seen[0])
                    assert close(regulator.final_obs[cuts[env], env, 0], seen[1])
                    cuts[env] += 1
                if over or cut:
                    kind = "cut" if cut else "crash" if max(reference.price) > reference.p["crash"] else "target"
                    ends.add(kind)
                    episodes, steps, returns = episodes + 1, steps + reference.t, returns + reference.returns
                    reference.begin(now)
        for env, reference in enumerate(references):
            check_observation(reference, producers, regulator, HORIZON, env)
    assert ends == {"cut", "crash", "target"}
    found = engine.episodes()
    assert found.count == episodes
    assert found.mean_length == steps / episodes
    assert list(found.mean_return.values()) == pytest.approx(list(returns / episodes), abs=1e-4)


def check_observation(reference, producers, regulator, row, env):
    for group, seen, allowed in zip((producers, regulator), reference.observe(), reference.masks(), strict=True):
        assert close(group.obs[row, env].squeeze(0), seen)
        assert (group.mask[row, env].squeeze(0).numpy() == np.asarray(allowed)).all()


def test_state_can_be_read_and_written(engine):
    state = engine.state_of("producers")
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "price": (N_ENVS, PRODUCERS),
        "stock": (N_ENVS, PRODUCERS),
        "sold": (N_ENVS, PRODUCERS),
        "history": (N_ENVS, PRODUCERS, MEMORY),
        "visits": (N_ENVS, PRODUCERS, 2),
    }
    numbers = torch.arange(N_ENVS * PRODUCERS * MEMORY, dtype=torch.float32).reshape(N_ENVS, PRODUCERS, MEMORY)
    engine.set_state("producers", history=numbers, price=numbers[..., 0] / 1000)
    after = engine.state_of("producers")
    assert torch.equal(after["history"], numbers)
    assert torch.equal(after["price"], numbers[..., 0] / 1000)
    assert torch.equal(after["visits"], state["visits"])
