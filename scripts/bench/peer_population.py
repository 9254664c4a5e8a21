"""Populations of agents by JAX, vectorized over agents with vmap: the peers of population.py.

    python scripts/bench/peer_population.py solve AGENTS TOGETHER

trains agents with POPULATION's settings, evaluates them, and prints what came out as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import peer_work as spec
from peer_jax import ENV, ENV_PARAMS, State, first_state, forward, iteration, make
from peer_work import AGENT_ENVS, AGENT_HORIZON, AGENT_STEPS, POPULATION, Iterate, Work

WIDTHS = (4, 16, 64, 256)
"""Agents of a call, as far as they divide all agents; or all at once."""
STEPS = AGENT_ENVS * AGENT_HORIZON
"""Environment steps of an agent in an iteration."""
SOLVING_ENVS = 4
"""Environments of an agent that has to solve CartPole, PureJaxRL's own number: 64 leave it too few updates."""

Step = Callable[[Any], Any]
First = Callable[[jax.Array], Any]
"""Makes the first state of an agent from a key."""


def mapped(step: Callable[..., Any], **options: Any) -> Any:
    """Return `step` for many agents, compiled."""
    return jax.jit(jax.vmap(step), **options)


def keys(agents: int, seed: int) -> jax.Array:
    """Return a key for each agent of a call."""
    return jax.random.split(jax.random.key(seed), agents)


def best(first: First, step: Step, agents: int, widths: tuple[int, ...] = WIDTHS) -> tuple[Iterate, str]:
    """Return an iteration of every agent, in calls of the width that is fastest, and the rates of all widths."""
    runs, rates, compiled_s, make_states = {}, {}, {}, mapped(first)
    for width in [width for width in sorted({*widths, agents}) if agents % width == 0]:
        start = time.perf_counter()
        states = jax.block_until_ready(make_states(keys(width, 0)))
        run = runs[width] = mapped(step, donate_argnums=0).lower(states).compile()
        compiled_s[width] = time.perf_counter() - start
        states = jax.block_until_ready(run(states))
        start = time.perf_counter()
        jax.block_until_ready(run(states))
        rates[width] = width * STEPS / (time.perf_counter() - start)
    chosen = max(rates, key=lambda width: rates[width])
    parts = [make_states(keys(chosen, seed)) for seed in range(agents // chosen)]

    def iterate() -> int:
        for n, part in enumerate(parts):
            parts[n] = runs[chosen](part)
        jax.block_until_ready(parts)
        return agents * STEPS

    told = ", ".join(f"{width}: {rate / 1e6:.3g}" for width, rate in rates.items())
    return iterate, f"vmap over {chosen} agents, compiled in {compiled_s[chosen]:.1f} s; M steps/s by agents: {told}"


def prepare(work: Work, variant: str, agents: int, threads: int, widths: tuple[int, ...] = WIDTHS) -> tuple[Iterate, str]:
    """Return an iteration of every agent by the learner of peer_jax; `variant` is the random number generator."""
    jax.config.update("jax_default_prng_impl", variant)
    return best(lambda key: first_state(key, work, AGENT_ENVS), lambda state: iteration(state, work), agents, widths)


def prepare_rejax(work: Work, variant: str, agents: int, threads: int) -> tuple[Iterate, str]:
    """Return an iteration of every agent by rejax's PPO, which has no schedule of the learning rate."""
    jax.config.update("jax_default_prng_impl", variant)
    agent = make(AGENT_ENVS, work)
    return best(agent.init_state, agent.train_iteration, agents)


# Solved ---------------------------------------------------------------------------------------------------------------


def solve(agents: int, together: int) -> dict[str, float]:
    """Train agents for their whole budget, `together` in a call; return how many solve CartPole, and seconds.

    The greedy policy plays spec.EPISODES episodes of each agent after training.
    """
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    iterations = AGENT_STEPS // (SOLVING_ENVS * AGENT_HORIZON)
    work = POPULATION._replace(anneal_over=iterations * POPULATION.epochs * POPULATION.minibatches)
    make_states = mapped(lambda key: first_state(key, work, SOLVING_ENVS))

    def train(state: State) -> State:
        return jax.lax.fori_loop(0, iterations, lambda _, state: iteration(state, work), state)

    start = time.perf_counter()
    states = make_states(keys(together, 0))
    run, play = (mapped(step).lower(states).compile() for step in (train, greedy_returns))
    compiled_s = time.perf_counter() - start
    start, cpu_s, solved = time.perf_counter(), time.process_time(), 0
    for seed in range(agents // together):
        returns = play(run(make_states(keys(together, seed))))
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
    print(json.dumps(solve(*map(int, sys.argv[2:]))))
