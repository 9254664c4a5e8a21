"""The work of every peer, and the process of a peer.

python scripts/bench/peer_work.py MODULE:FUNCTION THREADS     # answers lines of JSON from stdin on stdout
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

FEATURES, ACTIONS, TIME_LIMIT = 4, 2, 500
"""Sizes of CartPole-v1."""
HORIZON = 16
"""Steps of every environment in a rollout."""
GAMMA, LAMBDA, VALUE_COEF, ENTROPY_COEF, MAX_NORM, CLIP = 0.99, 0.95, 0.5, 0.01, 0.5, 0.2
LEARNING_RATE = 1e-3

BATCH, CAPACITY, FILLED, TOGETHER = 256, 100_000, 1_000, 32
"""Off policy: transitions of a gradient step and of the replay memory, random steps before the first, steps of an iteration."""
SIZES = {"cartpole": (4, 2), "pendulum": (3, 1)}
"""Features and actions."""
ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
"""For a process that is bound to a core: others of jax 0.10.2 can stand still."""
PACKAGES = ("warprun", "torch", "numba", "jax", "gymnax", "rejax", "sbx-rl", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy")

Iterate = Callable[[], int]
"""Does one piece of the work, waits for it, and returns its number of environment steps."""


class Work(NamedTuple):
    """A rollout of `horizon` steps and its update. With an LSTM a minibatch has whole sequences: all steps of some environments."""

    label: str
    learner: str
    """none, a2c or ppo."""
    width: int
    """Units in each of the two hidden layers, tanh."""
    epochs: int
    minibatches: int
    horizon: int = HORIZON
    learning_rate: float = LEARNING_RATE
    anneal_over: int = 0
    """Gradient steps in which the learning rate falls to zero; 0: it is constant."""
    separate: bool = False
    """Whether policy and value have a trunk each."""
    clips_value: bool = False
    """Whether values are clipped around those of the rollout, with half a squared error; else the whole one counts."""
    units: int = 0
    """Units of an LSTM between the hidden layers and the heads; 0: there is none."""

    def flop_per_step(self) -> float:
        """Return the operations of the matrix products for a shared trunk; a multiply-add counts as two."""
        hidden = 2.0 * self.width * self.width + 8.0 * (self.width + self.units) * self.units
        heads = 2.0 * (self.units or self.width) * (ACTIONS + 1)
        forward = 2.0 * FEATURES * self.width + hidden + heads
        # Backward: the gradient of every weight, and slopes of every layer's input but the observation's.
        return forward + self.epochs * (2 * forward + hidden + heads)


class OffPolicy(NamedTuple):
    """Steps with one environment or with several, and gradient steps with batches from a replay memory."""

    label: str
    learner: str
    """sac, td3 or dqn."""
    env: str
    """pendulum or cartpole."""
    width: int
    """Units in each of the two hidden layers of every network, ReLU."""
    updates: int = 1
    """Gradient steps after a step of all environments."""
    n_envs: int = 1

    def flop_per_step(self) -> float:
        """Return the operations of the matrix products for a step of one environment; a multiply-add counts as two."""
        features, actions = SIZES[self.env]
        acting, of_batch = self._gradient_step(features, actions)
        return acting + BATCH * of_batch * self.updates / self.n_envs

    def _gradient_step(self, features: int, actions: int) -> tuple[float, float]:
        """Return the operations to act, and those of a gradient step for one transition.

        Backward computes the gradients of weights and, except for the first layer, of inputs: each costs what forward costs.
        """
        if self.learner == "dqn":
            forward, first = self._forward(features, actions)
            return forward, 3 * forward - first + forward
        sac = self.learner == "sac"
        (actor, actor_first), (critic, critic_first) = self._forward(features, actions * (1 + sac)), self._forward(features + actions, 1)
        of_critics = actor + 2 * critic + 2 * (3 * critic - critic_first)
        judges = 1 + sac  # both critics judge the actions of SAC, in every step; one those of TD3, in every second
        return actor, of_critics + (3 * actor - actor_first + judges * 2 * critic) / (1 if sac else 2)

    def _forward(self, n_in: int, n_out: int) -> tuple[float, float]:
        """Return the operations of the forward pass of one row, and those of its first layer."""
        return 2.0 * sum(a * b for a, b in pairwise((n_in, self.width, self.width, n_out))), 2.0 * n_in * self.width


class Sweep(NamedTuple):
    """Agents that warprun trains by one command until they are solved."""

    label: str
    settings: str


WORKS: dict[str, Work | OffPolicy | Sweep] = {
    "rollout-64": Work("rollout, 64-64", "none", 64, 0, 0),
    "a2c-64": Work("A2C, 64-64", "a2c", 64, 1, 1),
    "a2c-32": Work("A2C, 32-32", "a2c", 32, 1, 1),
    "ppo-64": Work("PPO 4 x 4, 64-64", "ppo", 64, 4, 4),
    "few": Work("A2C, 64-64, one thread", "a2c", 64, 1, 1),
    "gymnax-a2c": Work("A2C, 64-64", "a2c", 64, 1, 1),
    "gymnax-one": Work("A2C, 64-64, one thread", "a2c", 64, 1, 1),
    "gymnax-ppo": Work("PPO 4 x 4, 64-64", "ppo", 64, 4, 4),
    "lstm-128": Work("PPO 4 x 4, 64-64, LSTM 64, 128 steps", "ppo", 64, 4, 4, horizon=128, units=64),
    "lstm-16": Work("PPO 4 x 4, 64-64, LSTM 64, 16 steps", "ppo", 64, 4, 4, units=64),
}
for _agent, _env in (("sac", "pendulum"), ("td3", "pendulum"), ("dqn", "cartpole")):
    for _width in (64, 256):
        WORKS[f"{_agent}-{_width}"] = OffPolicy(f"{_agent.upper()}, {_width}-{_width}", _agent, _env, _width)
    for _n_envs, _updates in ((16, 1), (1_000, 16)):
        WORKS[f"{_agent}-{_n_envs}-envs"] = OffPolicy(f"{_agent.upper()}, 64-64", _agent, _env, 64, _updates, _n_envs)
AGENT_ENVS, AGENT_HORIZON, AGENT_STEPS = 64, 128, 65_536
"""Environments and horizon of an agent of a population, and its environment steps."""
WORKS["population"] = Work(
    "PPO 4 x 4, 64-64",
    "ppo",
    64,
    epochs=4,
    minibatches=4,
    horizon=AGENT_HORIZON,
    learning_rate=2.5e-4,
    anneal_over=AGENT_STEPS // (AGENT_ENVS * AGENT_HORIZON) * 16,
    separate=True,
    clips_value=True,
)
"""What PureJaxRL trains CartPole with by default, with more environments."""
WORKS["seeds"] = Sweep("32 seeds of CartPole", "env=cartpole")
WORKS["solved"] = Sweep("A2C, 16 environments each", "experiment=cartpole_population")


def rate(iterate: Iterate, seconds: float) -> dict[str, float]:
    """Return the steps, and the wall time that they took, of iterations for `seconds` at least."""
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        steps += iterate()
    return {"steps": steps, "wall_s": time.perf_counter() - start}


def versions() -> dict[str, str]:
    """Return the versions of what is measured, as far as installed."""
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Answer {"work", "variant", "n_envs"} with the settings, {"seconds"} with steps and time, until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    threads = int(sys.argv[2])
    if threads == 1:
        os.environ.update(ONE_THREAD)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    module, _, function = sys.argv[1].partition(":")
    prepare = getattr(importlib.import_module(module), function)
    iterate = None
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        if "work" in asked:
            iterate = None
            gc.collect()
            start = time.perf_counter()
            iterate, settings = prepare(WORKS[asked["work"]], asked["variant"], asked["n_envs"], threads)
            # Twice: the first call compiles, the second allocates.
            iterate()
            iterate()
            answer = {"settings": settings, "prepared_s": time.perf_counter() - start}
        else:
            assert iterate
            answer = rate(iterate, asked["seconds"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    importlib.import_module("peer_work").main()  # not this copy of it: peers import the module, and compare classes
