"""Populations of agents by JAX, vectorized over agents with vmap, on every core: the peers of population.py.

    python scripts/bench/peer_population.py solve AGENTS TOGETHER

trains agents with POPULATION's settings, evaluates them, and prints what came out as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

# Before the import of jax: a device for each core, which `pmap` gives a share of the agents.
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={len(os.sched_getaffinity(0))}"

import jax
import jax.numpy as jnp
import peer_work as spec
from peer_jax import ENV, ENV_PARAMS, State, first_state, forward, iteration, make
from peer_work import AGENT_ENVS, AGENT_HORIZON, AGENT_STEPS, POPULATION, Iterate, Work

CORES = len(os.sched_getaffinity(0))
WIDTHS = (4, 16, 64, 256)
"""Agents that a device trains at once."""
STEPS = AGENT_ENVS * AGENT_HORIZON
"""Environment steps of an agent in an iteration."""

Step = Callable[[Any], Any]
First = Callable[[jax.Array], Any]
"""Makes the first state of an agent from a key."""


class Shape(NamedTuple):
    """How a population is cut into calls: `devices` train `width` agents each."""

    devices: int
    width: int

    @property
    def together(self) -> int:
        """Agents of a call."""
        return self.devices * self.width

    def mapped(self, step: Callable[..., Any], **options: Any) -> Any:
        """Return `step` for all agents of a call: arrays [width, ...], of several devices [devices, width, ...]."""
        of_device = jax.vmap(step)
        return jax.jit(of_device, **options) if self.devices == 1 else jax.pmap(of_device, **options)

    def keys(self, seed: int) -> jax.Array:
        """Return a key for each agent of a call."""
        keys = jax.random.split(jax.random.key(seed), self.together)
        return keys if self.devices == 1 else keys.reshape(self.devices, self.width)


def best(first: First, step: Step, agents: int) -> tuple[Iterate, str]:
    """Return an iteration of every agent, in calls of the shape that is fastest, and the rates of all shapes."""
    rates, compiled_s = {}, {}
    for shape in shapes(agents):
        start = time.perf_counter()
        states = jax.block_until_ready(shape.mapped(first)(shape.keys(0)))
        run = shape.mapped(step).lower(states).compile()
        compiled_s[shape] = time.perf_counter() - start
        states = jax.block_until_ready(run(states))
        start = time.perf_counter()
        jax.block_until_ready(run(states))
        rates[shape] = shape.together * STEPS / (time.perf_counter() - start)
    chosen = max(rates, key=lambda shape: rates[shape])
    make_states, run = chosen.mapped(first), chosen.mapped(step, donate_argnums=0)
    parts = [make_states(chosen.keys(seed)) for seed in range(agents // chosen.together)]

    def iterate() -> int:
        for n, part in enumerate(parts):
            parts[n] = run(part)
        jax.block_until_ready(parts)
        return agents * STEPS

    told = "; ".join(f"{shape.devices} x {shape.width}: {rate / 1e6:.3g} M/s" for shape, rate in rates.items())
    return iterate, f"{chosen.devices} x {chosen.width} agents, compiled in {compiled_s[chosen]:.1f} s ({told})"


def shapes(agents: int) -> list[Shape]:
    """Return the shapes to try: those that cut the agents into equal calls."""
    widths = sorted({*WIDTHS, agents // CORES, agents})
    tried = [Shape(devices, width) for devices in sorted({1, CORES}) for width in widths]
    return [shape for shape in tried if shape.together <= agents and agents % shape.together == 0]


def prepare(work: Work, variant: str, agents: int, threads: int) -> tuple[Iterate, str]:
    """Return an iteration of every agent by the learner of peer_jax; `variant` is the random number generator."""
    jax.config.update("jax_default_prng_impl", variant)
    return best(lambda key: first_state(key, work, AGENT_ENVS), lambda state: iteration(state, work), agents)


def prepare_rejax(work: Work, variant: str, agents: int, threads: int) -> tuple[Iterate, str]:
    """Return an iteration of every agent by rejax's PPO, which has no schedule of the learning rate."""
    jax.config.update("jax_default_prng_impl", variant)
    agent = make(AGENT_ENVS, work)
    return best(agent.init_state, agent.train_iteration, agents)


# Solved ---------------------------------------------------------------------------------------------------------------


def solve(agents: int, together: int) -> dict[str, float]:
    """Train agents for their whole budget, `together` at a time; return how many solve CartPole, and seconds.

    The greedy policy plays spec.EPISODES episodes of each agent after training.
    """
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    shape = Shape(CORES, together // CORES)
    iterations = AGENT_STEPS // STEPS
    make_states = shape.mapped(lambda key: first_state(key, POPULATION, AGENT_ENVS))

    def train(state: State) -> State:
        return jax.lax.fori_loop(0, iterations, lambda _, state: iteration(state, POPULATION), state)

    start = time.perf_counter()
    states = make_states(shape.keys(0))
    run = shape.mapped(train).lower(states).compile()
    play = shape.mapped(greedy_returns).lower(states).compile()
    compiled_s = time.perf_counter() - start
    start, cpu_s, solved = time.perf_counter(), time.process_time(), 0
    for seed in range(agents // together):
        returns = play(run(make_states(shape.keys(seed)))).reshape(together, spec.EPISODES)
        error = returns.std(-1) / spec.EPISODES**0.5
        solved += int((returns.mean(-1) - 2.0 * error >= spec.SOLVED_AT).sum())
    found = {"wall_s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu_s, "compiled_s": compiled_s}
    return {"agents": agents // together * together, "solved": solved, **found}


def greedy_returns(state: State) -> jax.Array:
    """Return the returns of spec.EPISODES episodes of the most probable actions [spec.EPISODES]."""
    keys = jax.random.split(state.key, spec.EPISODES)

    def step(carry: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], None]:
        obs, env, going_on, total = carry
        action = forward(state.parameters, obs)[0].argmax(-1)
        obs, env, _, terminated, truncated, _ = jax.vmap(ENV.step, (0, 0, 0, None))(keys, env, action, ENV_PARAMS)
        return (obs, env, going_on & ~(terminated | truncated), total + going_on), None

    obs, env = jax.vmap(ENV.reset, (0, None))(keys, ENV_PARAMS)
    first = (obs, env, jnp.ones(spec.EPISODES, bool), jnp.zeros(spec.EPISODES))
    return jax.lax.scan(step, first, None, spec.TIME_LIMIT)[0][3]


if __name__ == "__main__":
    print(json.dumps(solve(int(sys.argv[2]), int(sys.argv[3]))))
