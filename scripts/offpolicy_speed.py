"""Measure steps per second of TD3, SAC and DQN against Stable-Baselines3, interleaved.

    python scripts/offpolicy_speed.py [--rounds 3] [--steps 1500] [--threads N] [--only CASE ...] [--processor-time]

One environment, one gradient step per environment step, the same networks and batches on both sides, no evaluation. The ratio is the median
over rounds. The limit is the rate of the matrix products alone: the operations of a gradient step at the rate that
`warprun.kernels.peak` measures in the same run. Needs stable-baselines3 and gymnasium, which warprun itself does not need.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise

import torch

from warprun.config.compose import compose
from warprun.kernels import peak
from warprun.runs.build import make_agent, make_simulator, set_up

WARMUP = 500
CASES = {
    "TD3 pendulum 64-64": ("td3", "pendulum", "Pendulum-v1", [64, 64], 256),
    "TD3 pendulum 256-256": ("td3", "pendulum", "Pendulum-v1", [256, 256], 256),
    "SAC pendulum 64-64": ("sac", "pendulum", "Pendulum-v1", [64, 64], 256),
    "SAC pendulum 256-256": ("sac", "pendulum", "Pendulum-v1", [256, 256], 256),
    "DQN cartpole 64-64": ("dqn", "cartpole", "CartPole-v1", [64, 64], 64),
    "DQN cartpole 256-256": ("dqn", "cartpole", "CartPole-v1", [256, 256], 64),
}


def operations(agent_name: str, hidden: list[int], batch: int) -> float:
    """Return the floating-point operations of the matrix products of one gradient step."""

    def network(n_in: int, n_out: int) -> tuple[int, int]:
        """Return the operations of the forward pass of one row, and those of its first layer."""
        sizes = [n_in, *hidden, n_out]
        return 2 * sum(a * b for a, b in pairwise(sizes)), 2 * n_in * hidden[0]

    # Backward computes the gradients of the weights and, except for the first layer, of the inputs: each costs as much as forward.
    if agent_name == "dqn":
        forward, first = network(4, 2)
        return batch * (3 * forward + 2 * forward - first)
    (actor, actor_first), (critic, critic_first) = network(3, 2 if agent_name == "sac" else 1), network(4, 1)
    of_critics = actor + 2 * critic + 2 * (critic + 2 * critic - critic_first)
    if agent_name == "sac":  # both critics judge the actions, in every step
        return batch * (of_critics + actor + 2 * (critic + critic) + 2 * actor - actor_first)
    of_actor = actor + critic + critic + 2 * actor - actor_first
    return batch * (of_critics + of_actor / 2)


def own(agent_name: str, env: str, hidden: list[int], batch: int, threads: int) -> Callable[[int], None]:
    """Return a function that takes a number of steps, the warm-up being over."""
    sizes = ",".join(map(str, hidden))
    overrides = [f"env={env}", f"agent={agent_name}", "tuned=none", "n_envs=1", f"agent.network.hidden=[{sizes}]"]
    overrides += [f"agent.batch_size={batch}", f"agent.learning_starts={WARMUP}", f"concurrency.threads={threads}", "device=cpu"]
    config = compose(overrides)
    setup = set_up(config)
    agent = make_agent(setup)
    engine = make_simulator(setup, 1, config.agent.horizon, 0, agent)
    engine.prepare()

    def run(steps: int) -> None:
        for _ in range(steps):
            agent.update(engine.collect(agent.act), 0.1)

    run(WARMUP + 20)
    return run


def theirs(agent_name: str, env: str, hidden: list[int], batch: int) -> Callable[[int], None]:
    """Return the same for Stable-Baselines3."""
    from stable_baselines3 import DQN, SAC, TD3

    common = {"batch_size": batch, "learning_starts": WARMUP, "train_freq": 1, "gradient_steps": 1, "buffer_size": 100_000, "device": "cpu"}
    model = {"td3": TD3, "sac": SAC, "dqn": DQN}[agent_name]("MlpPolicy", env, policy_kwargs={"net_arch": hidden}, **common)
    model.learn(WARMUP + 20)

    def run(steps: int) -> None:
        # learn() begins a new run, which must learn from its first step.
        model.learning_starts = 0
        model.learn(steps, reset_num_timesteps=True)

    return run


def rate(run: Callable[[int], None], steps: int, threads: int, clock: Callable[[], float]) -> float:
    """Return steps per second of `clock`."""
    torch.set_num_threads(threads)
    time.sleep(0.5)  # idle threads of the other side spin for a while before they sleep
    began = clock()
    run(steps)
    return steps / (clock() - began)


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000, help="environment steps of a measurement; four times as many of warprun")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--processor-time", action="store_true", help="for a busy machine: seconds of the processor, on one thread")
    chosen = parser.parse_args()
    threads, clock = (1, time.process_time) if chosen.processor_time else (chosen.threads, time.perf_counter)
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        print("offpolicy_speed: needs Stable-Baselines3; run: pip install stable-baselines3", file=sys.stderr)
        return 2
    rate_of_products = peak.measure(threads)
    print(f"matrix products: {rate_of_products / 1e9:.0f} GFLOP/s on {threads} threads\n")
    print("| case | warprun steps/s | limit | Stable-Baselines3 steps/s | ratio, median |\n|---|---|---|---|---|")
    for name in chosen.only or CASES:
        agent, env, gym_env, hidden, batch = CASES[name]
        ours, other = own(agent, env, hidden, batch, threads), theirs(agent, gym_env, hidden, batch)
        pairs = []
        for _ in range(chosen.rounds):
            # warprun's kernels have their own threads; torch gets one.
            pairs.append((rate(ours, 4 * chosen.steps, 1, clock), rate(other, chosen.steps, threads, clock)))
        mine, peer = (statistics.median(column) for column in zip(*pairs, strict=True))
        limit = rate_of_products / operations(agent, hidden, batch)
        print(f"| {name} | {mine:,.0f} | {limit:,.0f} | {peer:,.0f} | {statistics.median(a / b for a, b in pairs):.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
