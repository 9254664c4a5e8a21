"""Measure training steps per second on environments of Gymnasium against Stable-Baselines3, interleaved.

    python scripts/external_speed.py [--rounds 3] [--seconds 6] [--threads N] [--case WORD]

Both sides train with the same environments, networks, rollouts, minibatches and gradient steps, without evaluation. Of the ways of
Stable-Baselines3 the fastest counts: environments one after the other in its process or each in a process of its own, torch with one
thread or with all. Ratios are medians over rounds. Needs gymnasium and stable-baselines3.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from warprun.config.compose import compose
from warprun.runs.build import make_agent, make_training_simulator, prepare, set_up

Train = Callable[[int], None]
"""Trains for about this many environment steps."""


@dataclass(frozen=True)
class Case:
    """The same training for both sides."""

    env_id: str
    agent: str
    n_envs: int
    hidden: list[int]
    ours: list[str]
    theirs: dict[str, Any] = field(default_factory=dict)


CASES = {
    "PPO CartPole-v1": Case(
        "CartPole-v1",
        "ppo",
        8,
        [64, 64],
        ["agent.horizon=32", "agent.minibatches=1", "agent.epochs=20"],
        {"n_steps": 32, "batch_size": 256, "n_epochs": 20},
    ),
    "PPO LunarLander-v3": Case(
        "LunarLander-v3",
        "ppo",
        16,
        [64, 64],
        ["agent.horizon=1024", "agent.minibatches=256", "agent.epochs=4"],
        {"n_steps": 1024, "batch_size": 64, "n_epochs": 4},
    ),
    "DQN CartPole-v1": Case(
        "CartPole-v1",
        "dqn",
        1,
        [256, 256],
        ["agent.batch_size=64", "agent.utd_ratio=0.5", "agent.learning_starts=200"],
        {"batch_size": 64, "train_freq": 256, "gradient_steps": 128, "learning_starts": 200},
    ),
    "TD3 LunarLanderContinuous-v3": Case(
        "LunarLanderContinuous-v3",
        "td3",
        1,
        [400, 300],
        ["agent.batch_size=256", "agent.utd_ratio=1", "agent.learning_starts=200"],
        {"batch_size": 256, "train_freq": 1, "gradient_steps": 1, "learning_starts": 200},
    ),
}


def own(case: Case, threads: int, workers: int, stack: ExitStack) -> Train:
    """Return the training by warprun, warmed up."""
    overrides = ["env=gymnasium", f"env.id={case.env_id}", f"agent={case.agent}", f"n_envs={case.n_envs}", "tuned=none", "device=cpu"]
    overrides += [f"agent.network.hidden={case.hidden}", f"concurrency.threads={threads}", f"concurrency.workers={workers}", *case.ours]
    config = compose(overrides)
    setup = set_up(config)
    agent = make_agent(setup)
    simulator = make_training_simulator(setup, agent)
    stack.callback(simulator.close)
    prepare(setup, simulator)

    def run(steps: int) -> None:
        end = simulator.steps * case.n_envs + steps
        while simulator.steps * case.n_envs < end:
            agent.update(simulator.collect(agent.act), 0.1)

    run(500)
    return run


def theirs(case: Case, processes: bool, stack: ExitStack) -> Train:
    """Return the training by Stable-Baselines3, warmed up."""
    from stable_baselines3 import DQN, PPO, TD3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    env = make_vec_env(case.env_id, case.n_envs, vec_env_cls=SubprocVecEnv if processes else DummyVecEnv)
    stack.callback(env.close)
    algorithm = {"ppo": PPO, "dqn": DQN, "td3": TD3}[case.agent]
    model = algorithm("MlpPolicy", env, policy_kwargs={"net_arch": case.hidden}, device="cpu", **case.theirs)
    model.learn(500)

    def run(steps: int) -> None:
        model.learning_starts = 0  # learn() begins a new run, which must learn from its first step
        model.learn(steps, reset_num_timesteps=True)

    return run


def rate(train: Train, steps: int, threads: int) -> float:
    """Return environment steps per second."""
    torch.set_num_threads(threads)
    time.sleep(0.5)  # idle threads of the other side spin for a while before they sleep
    began = time.perf_counter()
    train(steps)
    return steps / (time.perf_counter() - began)


def measure(case: Case, rounds: int, seconds: float, threads: int) -> list[tuple[float, float]]:
    """Return (warprun, Stable-Baselines3), steps per second of each round."""
    rollout = case.n_envs * case.theirs.get("n_steps", 1)
    with ExitStack() as stack:
        workers = min(threads, case.n_envs) if case.n_envs > 1 else 0
        mine = own(case, threads, workers, stack)
        peers = [theirs(case, processes, stack) for processes in ((False, True) if case.n_envs > 1 else (False,))]

        def whole(steps: float) -> int:
            """Return a whole number of rollouts: both sides finish those that they begin."""
            return max(1, round(steps / rollout)) * rollout

        trial = max(rollout, 300)
        ways = {(peer, count): rate(peer, trial, count) for peer in peers for count in {1, threads}}
        (peer, peer_threads), peer_rate = max(ways.items(), key=lambda way: way[1])
        ours, other = whole(seconds * rate(mine, trial, 1)), whole(seconds * peer_rate)
        return [(rate(mine, ours, 1), rate(peer, other, peer_threads)) for _ in range(rounds)]


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a measurement")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--case", default="", help="only cases whose name has this word")
    chosen = parser.parse_args()
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        print("external_speed: needs Stable-Baselines3; run: pip install stable-baselines3", file=sys.stderr)
        return 2
    print("| training | warprun env_steps/s | Stable-Baselines3 env_steps/s | ratio, median |\n|---|---|---|---|")
    for name, case in CASES.items():
        if chosen.case in name:
            pairs = measure(case, chosen.rounds, chosen.seconds, chosen.threads)
            mine, peer = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(f"| {name} | {mine:,.0f} | {peer:,.0f} | {statistics.median(a / b for a, b in pairs):.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
