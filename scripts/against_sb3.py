"""Measure training against Stable-Baselines3, interleaved: equal environments, networks, batches, gradient steps.

    python scripts/against_sb3.py gymnasium [--rounds 3] [--seconds 6] [--threads 2] [--only CASE ...]
    python scripts/against_sb3.py off_policy [--rounds 3] [--seconds 6] [--threads 2] [--only CASE ...]
    python scripts/against_sb3.py to_bar [--seeds 3] [--threads 2] [--only CASE ...]

`gymnasium`: environment steps per second in environments of Gymnasium. `off_policy`: TD3, SAC and DQN with one compiled
environment and one gradient step per environment step; the limit is the rate of the matrix products alone, the
operations of a gradient step at the rate that `warprun.kernels.peak` measures in the same run. There is no evaluation.
Of the ways of Stable-Baselines3 the fastest counts: environments one after the other in its process or each in a
process of its own, torch with one thread or with all. Ratios are medians over rounds.

`to_bar`: wall time to the bar of DQN on CartPole and TD3 on Pendulum. For warprun it is that of a whole run that stops
at the bar, including evaluations, with compiled kernels. For Stable-Baselines3 it is the time inside learn() without
evaluations, with the settings published in RL Baselines3 Zoo, up to the same bar in the same kind of evaluation (100
greedy episodes). A run that does not reach the bar counts with the time of all its steps and is marked. Needs gymnasium
and stable-baselines3.
"""

from __future__ import annotations

import io
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from common import Training, head, in_turn, medians, require, row, settings, timed

import warprun
from warprun.kernels import peak

Train = Callable[[int], None]
"""Trains for about this many environment steps."""


class Case(NamedTuple):
    """The same training for both sides."""

    env: str
    """Overrides of the environment."""
    env_id: str
    agent: str
    n_envs: int
    hidden: list[int]
    ours: list[str]
    theirs: dict[str, Any]


def external(env_id: str, agent: str, n_envs: int, hidden: list[int], ours: str, **theirs: Any) -> Case:
    """Return a case that both sides train in Gymnasium's environment."""
    return Case(f"env=gymnasium env.id={env_id}", env_id, agent, n_envs, hidden, ours.split(), theirs)


def compiled(agent: str, env: str, env_id: str, width: int, batch: int) -> Case:
    """Return a case that warprun trains in its own environment."""
    each = {"batch_size": batch, "train_freq": 1, "gradient_steps": 1, "learning_starts": 500, "buffer_size": 100_000}
    return Case(f"env={env}", env_id, agent, 1, [width, width], [f"agent.batch_size={batch}", "agent.learning_starts=500"], each)


CASES = {
    "gymnasium": {
        "PPO CartPole-v1": external(
            *("CartPole-v1", "ppo", 8, [64, 64], "agent.horizon=32 agent.minibatches=1 agent.epochs=20"),
            n_steps=32,
            batch_size=256,
            n_epochs=20,
        ),
        "PPO LunarLander-v3": external(
            *("LunarLander-v3", "ppo", 16, [64, 64], "agent.horizon=1024 agent.minibatches=256 agent.epochs=4"),
            n_steps=1024,
            batch_size=64,
            n_epochs=4,
        ),
        "DQN CartPole-v1": external(
            *("CartPole-v1", "dqn", 1, [256, 256], "agent.batch_size=64 agent.utd_ratio=0.5 agent.learning_starts=200"),
            batch_size=64,
            train_freq=256,
            gradient_steps=128,
            learning_starts=200,
        ),
        "TD3 LunarLanderContinuous-v3": external(
            *(
                "LunarLanderContinuous-v3",
                "td3",
                1,
                [400, 300],
                "agent.batch_size=256 agent.utd_ratio=1 agent.learning_starts=200",
            ),
            batch_size=256,
            train_freq=1,
            gradient_steps=1,
            learning_starts=200,
        ),
    },
    "off_policy": {
        f"{agent.upper()} {env} {width}-{width}": compiled(agent, env, env_id, width, batch)
        for agent, env, env_id, batch in (
            ("td3", "pendulum", "Pendulum-v1", 256),
            ("sac", "pendulum", "Pendulum-v1", 256),
            ("dqn", "cartpole", "CartPole-v1", 64),
        )
        for width in (64, 256)
    },
}


def own(case: Case, threads: int, stack: ExitStack) -> Train:
    """Return the training by warprun, warmed up."""
    workers = min(threads, case.n_envs) if case.n_envs > 1 else 0
    sizes = [f"n_envs={case.n_envs}", f"agent.network.hidden={case.hidden}", f"concurrency.threads={threads}"]
    sizes += [f"concurrency.workers={workers}"] if "gymnasium" in case.env else []
    training = Training(*case.env.split(), f"agent={case.agent}", "tuned=none", "device=cpu", *sizes, *case.ours)
    stack.callback(training.simulator.close)
    training.take(520)
    return training.take


def theirs(case: Case, processes: bool, stack: ExitStack) -> Train:
    """Return the training by Stable-Baselines3, warmed up."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    env = make_vec_env(case.env_id, case.n_envs, vec_env_cls=SubprocVecEnv if processes else DummyVecEnv)
    stack.callback(env.close)
    algorithm = getattr(stable_baselines3, case.agent.upper())
    model = algorithm("MlpPolicy", env, policy_kwargs={"net_arch": case.hidden}, device="cpu", **case.theirs)
    model.learn(520)

    def run(steps: int) -> None:
        model.learning_starts = 0  # learn() begins a new run, which must learn from its first step
        model.learn(steps, reset_num_timesteps=True)

    return run


def rate(train: Train, steps: int, threads: int) -> float:
    """Return environment steps per second."""
    torch.set_num_threads(threads)
    time.sleep(0.5)  # idle threads of the other side spin for a while before they sleep
    return steps / timed(lambda: train(steps))


def measure(case: Case, chosen: Namespace) -> list[list[float]]:
    """Return steps per second of warprun and of Stable-Baselines3, of each round."""
    rollout = case.n_envs * case.theirs.get("n_steps", 1)

    def whole(steps: float) -> int:
        """Return a whole number of rollouts: both sides finish those that they begin."""
        return max(1, round(steps / rollout)) * rollout

    with ExitStack() as stack:
        mine = own(case, chosen.threads, stack)
        peers = [theirs(case, processes, stack) for processes in ((False, True) if case.n_envs > 1 else (False,))]
        trial = max(rollout, 300)
        ways = {(peer, count): rate(peer, trial, count) for peer in peers for count in {1, chosen.threads}}
        (peer, count), peer_rate = max(ways.items(), key=lambda way: way[1])
        # warprun's kernels have their own threads; torch gets one.
        ours, other = whole(chosen.seconds * rate(mine, trial, 1)), whole(chosen.seconds * peer_rate)
        candidates = {"warprun": lambda: rate(mine, ours, 1), "peer": lambda: rate(peer, other, count)}
        return list(in_turn(candidates, chosen.rounds).values())


def operations(case: Case) -> float:
    """Return the floating-point operations of the matrix products of one gradient step of an off-policy case."""
    hidden, batch = case.hidden, case.theirs["batch_size"]

    def network(n_in: int, n_out: int) -> tuple[int, int]:
        """Return the operations of the forward pass of one row, and those of its first layer."""
        sizes = [n_in, *hidden, n_out]
        return 2 * sum(a * b for a, b in pairwise(sizes)), 2 * n_in * hidden[0]

    # Backward computes the gradients of weights and, except for the first layer, of inputs: each costs what forward costs.
    if case.agent == "dqn":
        forward, first = network(4, 2)
        return batch * (3 * forward + 2 * forward - first)
    (actor, actor_first), (critic, critic_first) = network(3, 2 if case.agent == "sac" else 1), network(4, 1)
    of_critics = actor + 2 * critic + 2 * (critic + 2 * critic - critic_first)
    if case.agent == "sac":  # both critics judge the actions, in every step
        return batch * (of_critics + actor + 2 * (critic + critic) + 2 * actor - actor_first)
    of_actor = actor + critic + critic + 2 * actor - actor_first
    return batch * (of_critics + of_actor / 2)


def speed(cases: dict[str, Case], chosen: Namespace, with_limit: bool) -> None:
    """Print the table of steps per second."""
    products = peak.measure(chosen.threads) if with_limit else 0.0
    if with_limit:
        print(f"matrix products: {products / 1e9:.0f} GFLOP/s on {chosen.threads} threads\n")
    limit = ["limit"] if with_limit else []
    print(head("training", "warprun env_steps/s", *limit, "Stable-Baselines3 env_steps/s", "ratio, median"))
    for name in chosen.only or cases:
        pairs = measure(cases[name], chosen)
        mine, peer = (statistics.median(column) for column in pairs)
        limit = [f"{products / operations(cases[name]):,.0f}"] if with_limit else []
        ratio = statistics.median(a / b for a, b in zip(*pairs, strict=True))
        print(row(name, f"{mine:,.0f}", *limit, f"{peer:,.0f}", f"{ratio:.1f}"), flush=True)


# Time to the bar ------------------------------------------------------------------------------------------------------

EPISODES = 100
CARTPOLE = {
    "policy_kwargs": {"net_arch": [256, 256]},
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
}
PENDULUM = {
    "learning_rate": 1e-3,
    "buffer_size": 200_000,
    "learning_starts": 10_000,
    "gamma": 0.98,
    "train_freq": 1,
    "gradient_steps": 1,
}


class Peer(NamedTuple):
    """What Stable-Baselines3 trains."""

    algorithm: str
    env_id: str
    settings: dict[str, Any]
    steps: int
    every: int
    """Steps between two evaluations."""


BARS: dict[str, tuple[str, float, Peer]] = {
    "cartpole_dqn": ("env=cartpole agent=dqn", 475, Peer("DQN", "CartPole-v1", CARTPOLE, 50_000, 2048)),
    "pendulum_td3": ("env=pendulum agent=td3", -200, Peer("TD3", "Pendulum-v1", PENDULUM, 20_000, 1000)),
}
"""Overrides, bar, and what is compared."""


def own_to_bar(overrides: str, bar: float, seed: int, threads: int) -> tuple[float, bool]:
    """Return the wall time of a run and whether it reached the bar. Raises UserError."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        given = [
            *overrides.split(),
            f"env.solved_at={bar}",
            f"seed={seed}",
            f"concurrency.threads={threads}",
            "device=cpu",
        ]
        run = warprun.train([*given, f"eval.episodes={EPISODES}", f"output_root={folder}", "log.live=false"])
    return run.wall_s, run.solved


def theirs_to_bar(peer: Peer, bar: float, seed: int, threads: int) -> tuple[float, bool]:
    """Return the learning time of Stable-Baselines3 and whether it reached the bar."""
    import numpy as np
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(threads)
    judge = make_vec_env(peer.env_id, EPISODES, seed=10_000 + seed)

    class Bar(BaseCallback):
        """Stops at the bar and measures the time of evaluations."""

        taken, reached = 0.0, False

        def _on_step(self) -> bool:
            if self.num_timesteps % peer.every == 0 and self.num_timesteps > self.model.learning_starts:
                began = time.perf_counter()
                self.reached = bool(evaluate_policy(self.model, judge, EPISODES)[0] >= bar)
                self.taken += time.perf_counter() - began
            return not self.reached

    more = {"action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.1))} if peer.algorithm == "TD3" else {}
    algorithm = getattr(stable_baselines3, peer.algorithm)
    model, callback = algorithm("MlpPolicy", peer.env_id, seed=seed, device="cpu", **peer.settings, **more), Bar()
    return timed(lambda: model.learn(peer.steps, callback=callback)) - callback.taken, callback.reached


def to_bar(chosen: Namespace) -> None:
    """Print the table of times, seeds interleaved."""
    print(head("case", "bar", "warprun s, each seed", "Stable-Baselines3 s, each seed", "ratio of the medians"))
    for name in chosen.only or BARS:
        overrides, bar, peer = BARS[name]
        own_to_bar(f"{overrides} total_steps=2000 checkpoint.best=false", bar, 0, chosen.threads)  # compiles
        pairs = [
            (own_to_bar(overrides, bar, seed, chosen.threads), theirs_to_bar(peer, bar, seed, chosen.threads))
            for seed in range(chosen.seeds)
        ]
        sides = list(zip(*pairs, strict=True))
        cells = [", ".join(f"{taken:.1f}" + ("" if reached else " (never)") for taken, reached in side) for side in sides]
        mine, other = medians({"ours": [s for s, _ in sides[0]], "theirs": [s for s, _ in sides[1]]}).values()
        print(row(name, f"{bar:g}", *cells, f"{other / mine:.1f}"), flush=True)


def main() -> None:
    """Print a table."""
    names = [*CASES["gymnasium"], *CASES["off_policy"], *BARS]
    choices = {"what": (*CASES, "to_bar"), "only": names}
    chosen = settings(__doc__, "what", choices=choices, rounds=3, seconds=6.0, seeds=3, threads=2, only=[])
    require("stable_baselines3", "stable-baselines3")
    of_other = set(chosen.only) - set(CASES.get(chosen.what, BARS))
    if of_other:
        raise SystemExit(f"{min(of_other)} is no case of {chosen.what}")
    if chosen.what == "to_bar":
        to_bar(chosen)
    else:
        speed(CASES[chosen.what], chosen, chosen.what == "off_policy")


if __name__ == "__main__":
    main()
