"""Time rejax (command `peer_solve.py CACHE`) and warprun from command to solved."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from peer_work import EPISODES, HORIZON, SOLVED_AT, TIME_LIMIT

N_ENVS, TOGETHER, MOST = 1_000, 10, 400
"""Environments, iterations between two evaluations, and the largest number of evaluations."""
MINIBATCHES, LEARNING_RATE = 16, 3e-3
"""Settings with which rejax solves CartPole in one epoch per rollout; no others were tried."""


def rejax_command(scratch: str) -> list[str]:
    """Return rejax's command; its compiled programs are kept in `scratch`."""
    return [sys.executable, "-W", "ignore", __file__, os.path.join(scratch, "jax")]


def warprun_command(scratch: str) -> list[str]:
    """Return `warprun env=cartpole n_envs=10000`, for a run folder in `scratch`."""
    script = "import sys; from warprun.cli.main import main; sys.exit(main())"
    return [sys.executable, "-c", script, "env=cartpole", "n_envs=10000", f"output_root={scratch}"]


def solve_rounds(commands: dict[str, list[str]], rounds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row per command: wall and CPU seconds of `rounds` alternating runs, after one that fills the caches."""
    rows: dict[str, dict[str, Any]] = {name: {"name": name, "wall": [], "cpu": []} for name in commands}
    for n in range(rounds + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert process.stdout
            lines = [line.strip() for line in process.stdout if "solved" in line]
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            wall, cpu = time.perf_counter() - start, used.ru_utime + used.ru_stime
            say(f"solve: {name}: {wall:.1f} s, {cpu:.1f} CPU s, exit code {process.returncode}{'' if n else ' (fills the cache)'}")
            rows[name]["line"] = lines[-1].replace("|", "/") if lines else f"exit code {process.returncode}"
            if n:
                rows[name]["wall"].append(wall)
                rows[name]["cpu"].append(cpu)
    for row in rows.values():
        row |= {"wall_median": median(row["wall"]), "cpu_median": median(row["cpu"])}
    return list(rows.values())


def main() -> None:
    """Train with rejax until the greedy return is high enough; print steps and return."""
    import jax
    import jax.numpy as jnp
    from peer_rejax import make

    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    agent = make(N_ENVS, HORIZON, 64, 1, MINIBATCHES, LEARNING_RATE)
    env, params = agent.env, agent.env_params

    def greedy_return(actor: Any, key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, EPISODES)

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            obs, state, going_on, total = carry
            action = agent.actor.apply(actor, obs, method="_action_dist").logits.argmax(-1)
            obs, state, _, done, _ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, action, params)
            # The step that ends an episode still counts.
            return obs, state, going_on & ~done, total + going_on

        obs, state = jax.vmap(env.reset, (0, None))(keys, params)
        first = (obs, state, jnp.ones(EPISODES, bool), jnp.zeros(EPISODES))
        # No longer than the longest episode; the time limit ends them all.
        return jax.lax.while_loop(lambda carry: carry[2].any() & (carry[3].max() < TIME_LIMIT), step, first)[3].mean()

    @jax.jit
    def several(state: Any) -> tuple[Any, jax.Array]:
        state = jax.lax.fori_loop(0, TOGETHER, lambda _, state: agent.train_iteration(state), state)
        return state, greedy_return(state.actor_ts.params, state.rng)

    state = jax.jit(agent.init_state)(jax.random.key(0))
    result = 0.0
    for n in range(1, MOST + 1):
        state, mean = several(state)
        result = float(mean)
        if result >= SOLVED_AT:
            print(f"solved: {n * TOGETHER * N_ENVS * HORIZON} steps, greedy return {result:.1f}")
            return
    sys.exit(f"not solved: greedy return {result:.1f}")


if __name__ == "__main__":
    main()
