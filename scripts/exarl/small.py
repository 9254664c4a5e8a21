"""Claims that need one process: targets one at a time or together (4), and collisions of random reads (10).

    python scripts/exarl/small.py

prints the seconds, and the shares of rounds with collisions, as JSON. Nothing here decides a claim.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from warprun.parallel.rma import drawn, newest_of
from warprun.state import derived_seed

BATCH, FEATURES, ACTIONS, WIDTH = 32, 4, 2, 64
GAMMA = 0.99
REPEATS = 50
ACTORS, LEARNERS, ROUNDS = 16, (2, 4, 8, 16), 20_000


def network() -> nn.Module:
    """Return a network as DQN has it."""
    torch.set_num_threads(1)
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, ACTIONS))


def one_at_a_time(count: int = BATCH) -> Callable[[], object]:
    """Return a function that computes the targets of `count` experiences with a forward pass of both networks for each."""
    online, target, next_obs = network(), network(), torch.randn(count, FEATURES)

    @torch.no_grad()
    def compute() -> list[float]:
        return [1.0 + GAMMA * float(target(row[None])[0, online(row[None]).argmax()]) for row in next_obs]

    return compute


def together() -> Callable[[], object]:
    """Return a function that computes the same with one forward pass of each network for all."""
    online, target, next_obs = network(), network(), torch.randn(BATCH, FEATURES)

    @torch.no_grad()
    def compute() -> torch.Tensor:
        return 1.0 + GAMMA * target(next_obs).gather(1, online(next_obs).argmax(1, keepdim=True))

    return compute


def gradient_step() -> Callable[[], object]:
    """Return a function that makes a gradient step from a batch and its targets."""
    online = network()
    optimizer = torch.optim.Adam(online.parameters())
    obs, targets = torch.randn(BATCH, FEATURES), torch.randn(BATCH, ACTIONS)

    def step() -> None:
        optimizer.zero_grad()
        (online(obs) - targets).square().mean().backward()
        optimizer.step()

    return step


def median_s(action: Callable[[], object]) -> float:
    """Return the median seconds of a call."""
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def share_s(processes: int) -> float:
    """Return the mean seconds of the share of one of `processes` processes in a batch. A mean: it has the time without a core, too."""
    compute = one_at_a_time(BATCH // processes)
    compute()
    began = time.perf_counter()
    for _ in range(REPEATS):
        compute()
    return (time.perf_counter() - began) / REPEATS


def generation() -> dict[str, float]:
    """Return the seconds of a gradient step, of the targets together, and of those one at a time in 1, 2 and 4 processes at once."""
    found = {"cores": float(os.cpu_count() or 1), "step": median_s(gradient_step()), "together": median_s(together())}
    for processes in (1, 2, 4):
        with ProcessPoolExecutor(processes) as pool:
            list(pool.map(time.sleep, [0.5] * processes))  # all have started
            found[f"one at a time, {processes}"] = max(pool.map(share_s, [processes] * processes))
    return found


def collision_chance(learners: int, actors: int = ACTORS) -> float:
    """Return the probability that `learners` do not draw different ones of `actors`: 1 - A! / ((A - L)! A^L)."""
    return 1.0 - math.perm(actors, learners) / actors**learners


def redundant_share(learners: int, actors: int = ACTORS) -> float:
    """Return the expected share of reads of a rollout that another learner reads, too, but the first."""
    return 1.0 - actors * (1.0 - (1.0 - 1.0 / actors) ** learners) / learners


class Drawn:
    """Stands in for the memory of all ranks: notes which rank is read."""

    def __init__(self) -> None:
        self.layout = SimpleNamespace(rank=lambda actor: actor)
        self.newest, self.rank = self, -1

    def read(self, rank: int, into: Any) -> int:
        """Note the rank."""
        self.rank = rank
        return 1


def collisions() -> dict[str, dict[str, float]]:
    """Return, for each number of learners, the counted shares of rounds with a collision and of redundant reads, and the closed forms.

    The draws are those of the function that learners of a run use, with the seeds of a run with seed 0.
    """
    found = {}
    for learners in LEARNERS:
        memories = [Drawn() for _ in range(learners)]
        draws = [drawn(ACTORS, derived_seed(0, "learner", rank)) for rank in range(learners)]
        takes = [newest_of(memory, draw) for memory, draw in zip(memories, draws, strict=True)]  # type: ignore[arg-type]
        different = np.zeros(ROUNDS, np.int64)
        for number in range(ROUNDS):
            for take in takes:
                take(SimpleNamespace(memory=None))  # type: ignore[arg-type]
            different[number] = len({memory.rank for memory in memories})
        found[str(learners)] = {
            "counted": float((different < learners).mean()),
            "chance": collision_chance(learners),
            "redundant": float(1.0 - different.mean() / learners),
            "expected": redundant_share(learners),
        }
    return found


if __name__ == "__main__":
    print(json.dumps({"generation": generation(), "collisions": collisions()}, indent=1))
