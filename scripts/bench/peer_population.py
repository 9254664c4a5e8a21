"""Populations of agents by JAX, vectorized over agents with vmap."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from peer_jax import first_state, iteration, make
from peer_work import AGENT_ENVS, AGENT_HORIZON, Iterate, Work

WIDTHS = (4, 16, 64, 256)
"""Agents of a call, as far as they divide all agents; or all at once."""
STEPS = AGENT_ENVS * AGENT_HORIZON
"""Environment steps of an agent in an iteration."""

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
    if threads > 1:
        return on_cores("prepare", variant, agents, threads)
    jax.config.update("jax_default_prng_impl", variant)
    return best(lambda key: first_state(key, work, AGENT_ENVS), lambda state: iteration(state, work), agents, widths)


def prepare_rejax(work: Work, variant: str, agents: int, threads: int) -> tuple[Iterate, str]:
    """Return an iteration of every agent by rejax's PPO, which has no schedule of the learning rate."""
    if threads > 1:
        return on_cores("prepare_rejax", variant, agents, threads)
    jax.config.update("jax_default_prng_impl", variant)
    agent = make(AGENT_ENVS, work)
    return best(agent.init_state, agent.train_iteration, agents)


def on_cores(function: str, variant: str, agents: int, processes: int) -> tuple[Iterate, str]:
    """Return an iteration of every agent by processes that are bound to a core each: those free to use all stand still with jax 0.10.2."""
    from peers import Worker  # with all of warprun, for which the check of a GPU has no time

    cores, workers = os.sched_getaffinity(0), list[Worker]()
    for core in sorted(cores)[:processes]:
        os.sched_setaffinity(0, {core})  # for the process that begins
        workers.append(Worker(f"peer_population:{function}", 1))
    os.sched_setaffinity(0, cores)
    threads = ThreadPoolExecutor(processes)

    def ask(**question: Any) -> list[dict[str, Any]]:
        return list(threads.map(lambda worker: worker.ask(**question), workers))

    told = ask(work="population", variant=variant, n_envs=agents // processes)[0]["settings"]
    return lambda: sum(answer["steps"] for answer in ask(seconds=1e-3)), told
