"""Measure the wall time to the bar of DQN on CartPole and TD3 on Pendulum against Stable-Baselines3, with seeds interleaved.

    python scripts/offpolicy_to_bar.py [--seeds 3] [--only CASE ...] [--threads N]

warprun: the wall time of a whole run that stops at the bar, including evaluations, with compiled kernels. Stable-Baselines3: the time
inside learn() without evaluations, with the settings published in RL Baselines3 Zoo, up to the same bar in the same kind of evaluation
(100 greedy episodes). A run that does not reach the bar counts with the time of all its steps and is marked. Needs stable-baselines3 and
gymnasium, which warprun itself does not need.
"""

import argparse
import io
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stdout
from typing import Any

import torch

import warprun
from warprun.errors import UserError

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
PENDULUM = {"learning_rate": 1e-3, "buffer_size": 200_000, "learning_starts": 10_000, "gamma": 0.98, "train_freq": 1, "gradient_steps": 1}
CASES: dict[str, tuple[str, float, tuple[str, str, dict[str, Any], int, int]]] = {
    "cartpole_dqn": ("env=cartpole agent=dqn", 475, ("DQN", "CartPole-v1", CARTPOLE, 50_000, 2048)),
    "pendulum_td3": ("env=pendulum agent=td3", -200, ("TD3", "Pendulum-v1", PENDULUM, 20_000, 1000)),
}
"""Overrides, bar; algorithm, environment, settings, steps, and steps between two evaluations of Stable-Baselines3."""


def own(overrides: str, bar: float, seed: int, threads: int) -> tuple[float, bool]:
    """Return the wall time of a run and whether it reached the bar."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        given = [*overrides.split(), f"env.solved_at={bar}", f"seed={seed}", f"concurrency.threads={threads}", "device=cpu"]
        run = warprun.train([*given, f"eval.episodes={EPISODES}", f"output_root={folder}", "log.live=false"])
    return run.wall_s, run.solved


def theirs(peer: tuple[str, str, dict[str, Any], int, int], bar: float, seed: int, threads: int) -> tuple[float, bool]:
    """Return the learning time of Stable-Baselines3 and whether it reached the bar."""
    import numpy as np
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.noise import NormalActionNoise

    algorithm, env, settings, steps, every = peer
    torch.set_num_threads(threads)
    judge = make_vec_env(env, EPISODES, seed=10_000 + seed)

    class Bar(BaseCallback):
        """Stops at the bar and measures the time of evaluations."""

        taken, reached = 0.0, False

        def _on_step(self) -> bool:
            if self.num_timesteps % every == 0 and self.num_timesteps > self.model.learning_starts:
                began = time.perf_counter()
                self.reached = bool(evaluate_policy(self.model, judge, EPISODES)[0] >= bar)
                self.taken += time.perf_counter() - began
            return not self.reached

    more = {"action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.1))} if algorithm == "TD3" else {}
    model = getattr(stable_baselines3, algorithm)("MlpPolicy", env, seed=seed, device="cpu", **settings, **more)
    callback, began = Bar(), time.perf_counter()
    model.learn(steps, callback=callback)
    return time.perf_counter() - began - callback.taken, callback.reached


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        print("offpolicy_to_bar: needs Stable-Baselines3; run: pip install stable-baselines3", file=sys.stderr)
        return 2
    print("| case | bar | warprun s, each seed | Stable-Baselines3 s, each seed | ratio of the medians |\n|---|---|---|---|---|")
    for name in chosen.only:
        overrides, bar, peer = CASES[name]
        own(f"{overrides} total_steps=2000 checkpoint.best=false", bar, 0, chosen.threads)  # compiles
        pairs = [(own(overrides, bar, seed, chosen.threads), theirs(peer, bar, seed, chosen.threads)) for seed in range(chosen.seeds)]
        columns = [[f"{taken:.1f}" + ("" if reached else " (never)") for taken, reached in side] for side in zip(*pairs, strict=True)]
        mine, other = (statistics.median(taken for taken, _ in side) for side in zip(*pairs, strict=True))
        print(f"| {name} | {bar:g} | {', '.join(columns[0])} | {', '.join(columns[1])} | {other / mine:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"offpolicy_to_bar: {error}")
