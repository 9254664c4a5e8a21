"""Train every environment and every agent of the installed warprun for a moment, in the working folder.

    python .ci/tiny_runs.py WARPRUN        WARPRUN is the command to try; python is the one that it is installed for

Environments and agents are those that the installed package lists. An environment whose data can neither be found nor fetched here is named
as not tried, and one whose library is not installed. Exits with 1 if a run fails.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

from warprun.algorithms import config_class
from warprun.config.checks import check_requirements
from warprun.config.environments import environment_config
from warprun.config.registry import options
from warprun.config.schema import load_environment
from warprun.errors import NotInstalledError, UserError
from warprun.spec import Spec

SMALL = ["tuned=none", "n_envs=8", "total_steps=512", "env.time_limit=60"]
SHORT = ["eval.every=50%", "eval.episodes=4", "eval.final_episodes=4", "device=cpu", "concurrency.threads=1", "log.live=false"]
OFF_POLICY = ["agent.learning_starts=64", "agent.utd_ratio=0.05"]
IDS = {"gymnasium": "CartPole-v1", "gymnax": "CartPole-v1", "brax": "inverted_pendulum", "jumanji": "TSP-v1"}
"""Environment that stands for many -> the one of them that is tried."""

Outcome = Literal["done", "failed", "not tried"]


def spec_of(env: str) -> Spec:
    """Return the spec of an environment. Raises UserError."""
    config = environment_config(env)
    return load_environment(replace(config, id=IDS.get(env, config.id)))[0].spec


def able(agent: str, env: str) -> bool:
    """Return whether an agent can act in an environment."""
    try:
        check_requirements(agent, spec_of(env))
    except UserError:
        return False
    return True


def is_installed(env: str) -> bool:
    """Return whether the library of an environment is there; name it as not tried if not."""
    try:
        spec_of(env)
    except NotInstalledError as error:
        print(f"not tried: env={env}: {error}", flush=True)
        return False
    except UserError:
        pass  # its run says what is wrong
    return True


def pairs() -> list[tuple[str, str]]:
    """Return each environment with the first agent that can act in it, then each further agent with the first environment for it."""
    agents, envs = options("agent"), list(filter(is_installed, options("env")))
    chosen = [(env, next(agent for agent in agents if able(agent, env))) for env in envs]
    for agent in agents:
        if agent not in {taken for _, taken in chosen}:
            chosen.append((next(env for env in envs if able(agent, env)), agent))
    return chosen


def tiny_run(pair: tuple[str, str]) -> Outcome:
    """Train a pair in a process of its own."""
    env, agent = pair
    chosen = [f"env={env}", f"agent={agent}", *([f"env.id={IDS[env]}"] if env in IDS else [])]
    overrides = [*chosen, *SMALL, *SHORT, *(OFF_POLICY if config_class(agent).policies != "sampled" else [])]
    began = time.monotonic()
    done = subprocess.run([sys.argv[1], *overrides], capture_output=True, text=True)
    said = " ".join(done.stderr.split())
    no_data = done.returncode == 2 and "cannot download the data" in done.stderr
    state = "done" if done.returncode == 0 else "not tried" if no_data else "failed"
    reason = f": exit code {done.returncode}: {said[-2000:]}" if state != "done" else ""
    print(f"{state}: env={env} agent={agent}: {time.monotonic() - began:.0f} s{reason}", flush=True)
    return state


def main() -> int:
    """Make the runs, one on each core; return 1 if one fails."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return int("failed" in list(pool.map(tiny_run, pairs())))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"tiny_runs: {error}")
