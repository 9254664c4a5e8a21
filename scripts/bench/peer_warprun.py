"""warprun itself: engine and agent as a run makes them, without records and evaluations; and the rate of its matrix product."""

from __future__ import annotations

import time

import numpy as np
from peer_work import GAMMA, HORIZON, LAMBDA, LEARNING_RATE, MAX_NORM, Iterate, Work

from warprun.build import fuse, make_agent, make_engine
from warprun.compose import compose
from warprun.engine import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.engine.device import choose
from warprun.engine.simd import COLUMNS, WIDTH, multiply
from warprun.engine.threads import threads as threads_of_process


def prepare(work: Work, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return an iteration of `work`; `variant` is shared or separate (trunks of policy and value), or product."""
    if variant == "product":
        return _product(work.width, threads), f"{work.width} x {work.width} by {work.width} x {COLUMNS}, vectors of {WIDTH}"
    config = compose(
        [
            "env=cartpole",
            f"n_envs={n_envs}",
            "tuned=none",
            "device=cpu",
            f"concurrency.threads={threads}",
            f"agent={'ppo' if work.learner == 'ppo' else 'a2c'}",
            f"agent.horizon={HORIZON}",
            f"agent.learning_rate={LEARNING_RATE}",
            f"agent.gamma={GAMMA}",
            f"agent.gae_lambda={LAMBDA}",
            f"agent.max_grad_norm={MAX_NORM}",
            "agent.normalize_obs=false",
            "agent.normalize_reward=false",
            f"agent.network.hidden=[{work.width},{work.width}]",
            f"agent.network.shared={str(variant == 'shared').lower()}",
        ]
        + ([f"agent.epochs={work.epochs}", f"agent.minibatches={work.minibatches}"] if work.learner == "ppo" else [])
    )
    device = choose(config.device)
    agent = make_agent(config, device)
    engine = make_engine(config, device, n_envs, HORIZON, config.seed)
    path = fuse(config, engine, agent)
    engine.compile()

    def rollout() -> int:
        engine.collect(agent.act)
        return n_envs * HORIZON

    def train() -> int:
        agent.update(engine.collect(agent.act), 0.0)
        return n_envs * HORIZON

    return (rollout if work.learner == "none" else train), f"{path}, {threads} threads"


def _product(width: int, threads: int) -> Iterate:
    """Return an iteration whose "steps" are multiply-adds: products of a layer, in the first cache, on all threads."""
    import numba

    @numba.njit(nogil=True, fastmath=True)
    def many(w, start, x, y, count, width):  # type: ignore[no-untyped-def]
        for _ in range(count):
            multiply(w, width, 1, start, x, y, width, width)

    assert kernels
    rng = np.random.default_rng(0)
    w, start = rng.random(width * width, np.float32), np.zeros(width, np.float32)
    blocks = [(rng.random(width * COLUMNS, np.float32), np.zeros(width * COLUMNS, np.float32)) for _ in range(threads)]
    count = 40_000_000_000 // (width * width * COLUMNS) // 40

    def iterate() -> int:
        threads_of_process(threads).share(lambda begin, end, n: many(w, start, *blocks[n], count, width), threads)
        return threads * count * width * width * COLUMNS

    begin = time.perf_counter()
    iterate()
    assert time.perf_counter() > begin
    return iterate
