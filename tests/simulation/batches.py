"""Batched environments: walkers in any library of arrays, and classes that do something wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tests.simulation.external.simulators import CPU
from warprun.config.batched import batched_environment
from warprun.config.external import External
from warprun.simulation.batched import BatchStepper
from warprun.simulation.stepped import SteppedSimulator
from warprun.spec import Box, Discrete, MultiDiscrete

EDGE = 4
LIMIT = 6


@contextmanager
def simulator(made: type, n_envs: int = 7, horizon: int = 20, limit: int | None = LIMIT, **arguments: Any) -> Iterator[SteppedSimulator]:
    """Yield a simulator that is prepared."""
    environment = batched_environment(made, External(kwargs=arguments), limit, "walk", "./walk.py")
    sizes = {"n_envs": n_envs, "first_env": 0, "horizon": horizon, "seed": 5}
    found = environment.make_simulator(device=CPU, exploration=None, **sizes)
    assert isinstance(found, SteppedSimulator)
    found.prepare()
    try:
        yield found
    finally:
        found.close()


def stepper(made: SteppedSimulator) -> BatchStepper:
    """Return what steps the batch of a simulator."""
    assert isinstance(made.stepper, BatchStepper)
    return made.stepper


class Walkers:
    """Action 1 goes right, 0 left. The library of its arrays is that of `arrays`, so it uses what all have in common."""

    arrays: Any = torch
    observation_space: Any = Box(2)
    action_space: Any = Discrete(2)

    def __init__(self, n_envs: int) -> None:
        self.state: Any = {"place": self.arrays.zeros(n_envs), "age": self.arrays.zeros(n_envs)}
        self.index = self.arrays.arange(n_envs)
        self.seeds: list[int] = []

    def reset(self, seed: int, mask: Any) -> Any:
        self.seeds.append(seed)
        fresh = (self.index * 7 + seed % 1000) % 5 - 2.0
        self.state = {"place": self.arrays.where(mask, fresh, self.state["place"]), "age": self.arrays.where(mask, 0.0, self.state["age"])}
        return self.observe()

    def step(self, actions: Any) -> Any:
        self.state = {"place": self.state["place"] + 2 * actions - 1, "age": self.state["age"] + 1}
        place = self.state["place"]
        return self.observe(), place * 0.5, abs(place) >= EDGE, self.state["age"] >= 7

    def observe(self) -> Any:
        return self.arrays.stack((self.state["place"], self.state["age"]), -1)


class Numpy(Walkers):
    arrays = np


class Saves(Walkers):
    """Tells its state by methods: a tensor, and numbers."""

    def get_state(self) -> Any:
        return [torch.stack((self.state["place"], self.state["age"])), 3, False]

    def set_state(self, state: Any) -> None:
        (place, age), number, flag = state
        assert (number, flag) == (3, False) and type(number) is int
        self.state = {"place": place, "age": age}


class Forgets(Walkers):
    """Has no state that it tells: a resumed run begins new episodes."""

    def __init__(self, n_envs: int) -> None:
        super().__init__(n_envs)
        self.hidden = self.state
        del self.state

    def __getattr__(self, name: str) -> Any:
        if name == "state" and "hidden" in vars(self):
            return self.hidden
        raise AttributeError(name)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__("hidden" if name == "state" and "hidden" in vars(self) else name, value)


class Pushes(Walkers):
    """Its action is a push within bounds, which becomes the observation; writes to `out`."""

    observation_space, action_space = Box(3), Box(3, (-1.0, 0.0, -np.inf), (1.0, 5.0, 2.0))

    def step(self, actions: Any, out: Any) -> Any:
        self.given, self.out = actions, out
        self.state = {"place": self.state["place"], "age": self.state["age"] + 1}
        out.copy_(actions)
        over = self.state["age"] >= 5
        return out, self.state["age"], over & (self.index % 2 == 0), over

    def observe(self) -> Any:
        return torch.zeros((len(self.index), 3))


class Turns(Pushes):
    """All components of its action have the same bounds."""

    action_space = Box(3, -2.0, 2.5)


class Changed(Walkers):
    """Returns something else from the step number `when` on: a part of the results is replaced."""

    def __init__(self, n_envs: int, part: int, value: Any, when: int = 0) -> None:
        super().__init__(n_envs)
        self.part, self.value, self.when, self.count = part, value, when, 0

    def step(self, actions: Any) -> Any:
        results = list(super().step(actions))
        self.count += 1
        if self.count > self.when:
            results[self.part] = self.value(results[self.part])
        return tuple(results)


class Fenced(Walkers):
    """Allows no step away from the place beyond `fence`; has two choices, of which the second counts for nothing."""

    action_space = MultiDiscrete((2, 3))

    def __init__(self, n_envs: int, fence: float = 2.0) -> None:
        super().__init__(n_envs)
        self.fence = fence

    def step(self, actions: Any) -> Any:
        return super().step(actions[:, 0])

    def action_mask(self) -> Any:
        place, others = self.state["place"], self.index[:, None] == self.arrays.arange(3)
        walks = self.arrays.stack((place > -self.fence, place < self.fence), -1)
        return self.arrays.concatenate((walks, others | (self.index[:, None] > 2)), -1)
