"""What computes the references of the test bed: episodes on arrays, dynamic programming, linear systems with quadratic costs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from common import ROOT

Policy = Callable[[int, np.ndarray], np.ndarray]
"""Step of the episode and observations [N, F] -> actions [N], or [N, D] of a Box."""


class Reference(NamedTuple):
    """What a task can give."""

    naive: float
    """Return of the best policy that does not look: a constant action, or what the function says."""
    best: float
    """Return of the optimum, or of the best policy of a grid."""
    policy: Policy | None = None
    """Earns `best`; None where it needs more than observations, and for several actors."""
    policies: Mapping[str, Policy] = {}
    """The same for several actors, by group; rows of observations are actors."""


def module_of(task: str) -> ModuleType:
    """Return the module of an environment of scripts/testbed, newly loaded."""
    spec = importlib.util.spec_from_file_location(f"testbed_{task}", ROOT / "scripts" / "testbed" / f"{task}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Arrays:
    """Episodes of an environment without branches: its functions on arrays, with NumPy's functions in the place of warprun's."""

    def __init__(self, task: str, episodes: int, shape: tuple[int, ...] = ()) -> None:
        self.module, self.p = module_of(task), module_of(task).Params()
        size = (*shape, episodes)
        in_place = {
            "uniform": lambda rng, n, low, high: rng.uniform(low, high, size),
            "normal": lambda rng, n: rng.standard_normal(size),
            "maximum": np.maximum,
            "clip": np.clip,
            "where": np.where,
            "exp": np.exp,
            "log": np.log,
            "float32": np.asarray,
        }
        for name in in_place.keys() & vars(self.module).keys():
            setattr(self.module, name, in_place[name])

    def returns(self, act: Callable[..., Any], steps: int, reset: Sequence[str], step: Sequence[str]) -> np.ndarray:
        """Return the returns of episodes; `act` takes an observation, `reset` and `step` name arguments of these functions."""
        given = {"rng": np.random.default_rng(0), "p": self.p}
        state, total = self.module.reset(*(given[name] for name in reset)), 0.0
        for _ in range(steps):
            state, reward, _ = self.module.step(state, act(*self.module.observe(state)), *(given[name] for name in step))
            total = total + reward
        return np.asarray(total)


def best_of(grid: Iterable[tuple[float, ...]], earned: Callable[..., float]) -> tuple[float, tuple[float, ...]]:
    """Return the largest return of a grid of policies, and the numbers of its policy."""
    return max((earned(*numbers), numbers) for numbers in grid)


class Chain(NamedTuple):
    """A Markov decision process of A actions, S states and K outcomes of a step."""

    following: np.ndarray
    """[A, S, K]: states."""
    probability: np.ndarray
    """[A, S, K], or with 1 in the place of S or K."""
    reward: np.ndarray
    """[A, S]: its expectation."""
    spread: np.ndarray | None = None
    """[S, S], the probabilities of states after noise that follows these outcomes; None without."""

    def backward(self, value: np.ndarray) -> np.ndarray:
        """Return the values [A, S] of an action, if `value` [S] is what follows."""
        value = value if self.spread is None else self.spread @ value
        later: np.ndarray = self.reward + (self.probability * value[self.following]).sum(-1)
        return later

    def only(self, action: int) -> Chain:
        """Return the chain with this action alone."""
        some = slice(action, action + 1)
        return Chain(self.following[some], self.probability[some], self.reward[some], self.spread)

    def values(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest return [S] of so many steps, and the best actions [steps, S]."""
        return Cycle([self]).values(steps)

    def constant(self, steps: int) -> np.ndarray:
        """Return the returns [A, S] of so many steps with the same action."""
        return Cycle([self]).constant(steps)

    def reference(self, steps: int, start: np.ndarray, state: Callable[[np.ndarray], np.ndarray]) -> Reference:
        """Return the reference of episodes that begin in state s with probability start[s]; `state` of an observation [N, F]."""
        return Cycle([self]).reference(steps, start, state)


class Cycle(NamedTuple):
    """Chains of the same states and actions that follow each other, and begin anew after the last."""

    chains: Sequence[Chain]

    def values(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest return [S] of so many steps, and the best actions [steps, S]."""
        value, actions = np.zeros(self.chains[0].reward.shape[1]), []
        for t in reversed(range(steps)):
            of_actions = self.chains[t % len(self.chains)].backward(value)
            actions.append(of_actions.argmax(0))
            value = of_actions.max(0)
        return value, np.array(actions[::-1])

    def constant(self, steps: int) -> np.ndarray:
        """Return the returns [A, S] of so many steps with the same action."""
        every = range(len(self.chains[0].reward))
        return np.array([Cycle([chain.only(action) for chain in self.chains]).values(steps)[0] for action in every])

    def reference(self, steps: int, start: np.ndarray, state: Callable[[np.ndarray], np.ndarray]) -> Reference:
        """Return the reference of episodes that begin in state s with probability start[s]; `state` of an observation [N, F]."""
        value, actions = self.values(steps)
        constant = (self.constant(steps) @ start).max()
        return Reference(float(constant), float(value @ start), lambda t, seen: actions[t, state(seen.astype(int))])


class Linear(NamedTuple):
    """x' = A x + B u + noise, with costs x' Q x + u' R u of each step."""

    a: np.ndarray
    b: np.ndarray
    q: np.ndarray
    r: np.ndarray
    noise: float | np.ndarray
    """Standard deviation in each direction, or in all."""
    start: np.ndarray
    """Covariance of x at the start, with mean 0."""

    def costs(self, steps: int, regulated: bool) -> tuple[float, list[np.ndarray]]:
        """Return the expected cost of an episode, and the gains K of u = -K x, first step first; not `regulated`: all 0."""
        later, constant, gains = np.zeros_like(self.q), 0.0, []
        for _ in range(steps):
            gain = np.linalg.solve(self.r + self.b.T @ later @ self.b, self.b.T @ later @ self.a)
            gain = gain if regulated else np.zeros_like(gain)
            closed = self.a - self.b @ gain
            constant += (self.noise**2 * np.diag(later)).sum()
            later = self.q + gain.T @ self.r @ gain + closed.T @ later @ closed
            gains.append(gain)
        return float(np.trace(later @ self.start) + constant), gains[::-1]

    def reference(self, steps: int, low: float, high: float) -> Reference:
        """Return the reference with actions from `low` to `high`; bounds are not in `best`, so nothing earns more."""
        naive, _ = self.costs(steps, False)  # the best constant is 0, because everything is symmetric
        best, gains = self.costs(steps, True)
        return Reference(-naive, -best, lambda t, seen: np.clip(-seen @ gains[t].T, low, high))
