"""The work of every peer, and the process of a peer.

python scripts/bench/peer_work.py MODULE:FUNCTION THREADS     # answers lines of JSON from stdin on stdout
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

FEATURES, ACTIONS, TIME_LIMIT = 4, 2, 500
"""Sizes of CartPole-v1."""
HORIZON = 16
"""Steps of every environment in a rollout."""
GAMMA, LAMBDA, VALUE_COEF, ENTROPY_COEF, MAX_NORM, CLIP = 0.99, 0.95, 0.5, 0.01, 0.5, 0.2
LEARNING_RATE = 1e-3
SOLVED_AT, EPISODES = 475.0, 128
"""Greedy mean return at which CartPole-v1 counts as solved, and its number of episodes."""

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


WORKS = {
    "rollout-64": Work("rollout, 64-64", "none", 64, 0, 0),
    "a2c-64": Work("A2C, 64-64", "a2c", 64, 1, 1),
    "a2c-32": Work("A2C, 32-32", "a2c", 32, 1, 1),
    "ppo-64": Work("PPO 4 x 4, 64-64", "ppo", 64, 4, 4),
    "lstm-128": Work("PPO 4 x 4, 64-64, LSTM 64, 128 steps", "ppo", 64, 4, 4, horizon=128, units=64),
    "lstm-16": Work("PPO 4 x 4, 64-64, LSTM 64, 16 steps", "ppo", 64, 4, 4, units=64),
}
AGENT_STEPS, AGENT_ENVS, AGENT_HORIZON = 500_000, 64, 128
"""Environment steps, environments and horizon of an agent of a population."""
POPULATION = Work(
    "PPO 4 x 4, 64-64, a population",
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
"""What PureJaxRL trains CartPole with by default, with more environments: scripts/bench/population.py measures it."""


def rate(iterate: Iterate, seconds: float) -> dict[str, float]:
    """Return the steps, and the wall time that they took, of iterations for `seconds` at least."""
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        steps += iterate()
    return {"steps": steps, "wall_s": time.perf_counter() - start}


def main() -> None:
    """Answer {"work", "variant", "n_envs"} with the settings, {"seconds"} with steps and time, until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    module, _, function = sys.argv[1].partition(":")
    prepare, threads = getattr(importlib.import_module(module), function), int(sys.argv[2])
    iterate, works = None, WORKS | {"population": POPULATION}
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        if "work" in asked:
            iterate = None
            gc.collect()
            start = time.perf_counter()
            iterate, settings = prepare(works[asked["work"]], asked["variant"], asked["n_envs"], threads)
            # Twice: the first call compiles, the second allocates.
            iterate()
            iterate()
            answer = {"settings": settings, "prepared_s": time.perf_counter() - start}
        else:
            assert iterate
            answer = rate(iterate, asked["seconds"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
