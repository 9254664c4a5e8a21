"""An environment that computes a table of integer expressions in every step, with all kinds of integers that an environment can use.

    python -m tests.environments.arithmetic DEVICE FILE.npz

writes the results of DEVICE. The simulator and plain Python need their own processes.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy import uint32  # noqa: F401  for the expressions

from tests.simulation.rollouts import make
from warprun.environment import Box, Discrete, Environment, Group, Phase, float32, int32
from warprun.random import bits, randint  # noqa: F401  for the expressions
from warprun.simulation.device import choose
from warprun.simulation.kernel_engine import KernelEngine

# `h` is an integer field with all 32 bits in use, `n` a small one, `a` the action, `k` a parameter, `v` an element of a table,
# `w` one of an array field, `o` one of another group's field, `r` a draw and `t`, `i` the step and the actor.
EXPRESSIONS = {
    "shift_after_product": "((h * 5) >> 3) & 1048575",
    "product_of_fields": "(h * v) >> 20",
    "square": "(h * h) >> 31",
    "total": "(h + h) // 2",
    "difference": "(h - 2147483647) // 3",
    "shift_left": "(h << 7) >> 9",
    "mask": "h & 0x0F0F0F0F",
    "xor": "(h ^ (h >> 15)) * 73244475",
    "division": "(h * 3) // (n + 5)",
    "modulo": "(h * 7) % 1009",
    "modulo_of_negatives": "(-h) % (-(n + 3)) + h % -7",
    "negation": "-h >> 1",
    "comparison": "1 if h * 3 > 2147483647 else 0",
    "of_action": "(a * 1431655765) >> 2",
    "parameter": "(k * k) >> 33",
    "step_and_actor": "((t + 1) * (i + 1) * 900000000) >> 4",
    "of_array": "(w * w + h) >> 5",
    "other_group": "(o * o) >> 17",
    "truncated": "(int32(h * 9) * 3) >> 2",
    "module_truncated": "(np.int32(h * 9) * 5) >> 2",
    "unsigned": "(uint32(h * 9) * 3) >> 2",
    "draw": "(r * 3) >> 1",
    "helper": "scramble(h, n) >> 3",
    "float_to_integer": "int32(float32(h) * 0.5) * 3 >> 2",
    "integer_beside_float": "int32(h * 0.25) + n",
    "true_division": "int32(h / 7) * 2",
    "least": "min(h * 2, 2000000000) >> 1",
    "power": "(n + 40) ** 6 >> 10",
    "inverse": "~h * 3 >> 2",
    "local": "twice * h >> 30",
}

fields = [("h", int32), ("n", int32), ("r", int32), ("w", Annotated[np.ndarray, 3, int32]), *((name, int32) for name in EXPRESSIONS)]
State: Any = NamedTuple("State", fields)  # type: ignore[misc]
ACTORS = 2


class Other(NamedTuple):
    o: int32


class Params(NamedTuple):
    k: int = 2147483629


class Tables(NamedTuple):
    v: np.ndarray


TABLE = np.array([2147483647, -2147483648, 77777777, -5], np.int32)


def tables():
    return Tables(TABLE)


def scramble(a, b):
    return a * 3 + b * 65537


LINES = "\n".join(f"    {name} = {text}" for name, text in EXPRESSIONS.items())
SOURCE = f"""
def reset(rng, s):
    for n in range(3):
        s.w[n] = bits(rng, 4 + n)
    return State(int32(bits(rng, 0)), int32(randint(rng, 1, 17) - 8), 0, s.w, {", ".join(["0"] * len(EXPRESSIONS))})


def step(s, action, rng, p, tables, t, i, others):
    h, n, a, k, v, w, o, r = s.h, s.n, action, p.k, tables.v[t % 4], s.w[t % 3], others.o[i], randint(rng, 0, 2147483647)
    twice = h * 2
{LINES}
    s.w[t % 3] = h * 3 + t
    return State(h * 1103515245 + 12345 + t, -n, r, s.w, {", ".join(EXPRESSIONS)}), 0.0, False
"""
exec(SOURCE)  # written out it would be a second table


def reset_other(rng):
    return Other(int32(bits(rng, 0)))


def mix(s):
    return Other(s.o * 1664525 + 1013904223), 0.0, False


def observe(s):
    return (float32(s.n),)


def observe_other(s):
    return (float32(s.o & 255),)


environment = Environment(
    groups=(
        Group("actors", ACTORS, State, Box(1), Discrete(5), globals()["reset"], observe),
        Group("others", ACTORS, Other, Box(1), Discrete(5), reset_other, observe_other),
    ),
    phases=(Phase("actors", globals()["step"]), Phase("others", mix)),
    params=Params,
    tables=tables,
)


def record(device: str, steps: int = 12) -> dict[str, np.ndarray]:
    """Return every integer of the state, [steps + 1, N, A], and the actions of every step."""
    engine = make(environment, "arithmetic", device=choose(device), n_envs=3, horizon=1)
    states, actions = [integers(engine)], []
    for t in range(steps):
        engine.trajectory.groups["actors"].action[0] = torch.arange(3 * ACTORS).reshape(3, ACTORS, 1).add(t) % 5
        actions.append(engine.trajectory.groups["actors"].action[0, :, :, 0].numpy().copy())
        engine.step(0)
        states.append(integers(engine))
    return {name: np.stack([state[name] for state in states]) for name in states[0]} | {"action": np.stack(actions)}


def integers(engine: KernelEngine) -> dict[str, np.ndarray]:
    """Return a copy of every field of the state, [N, A]."""
    fields = engine.state_of("actors") | {"o": engine.state_of("others")["o"]}
    return {name: value.numpy().copy() for name, value in fields.items()}


if __name__ == "__main__":
    np.savez(sys.argv[2], **record(sys.argv[1]))
