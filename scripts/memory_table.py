"""Compare the estimated memory of runs with the peak of a process that trains them: config, estimate, peak, ratio.

python scripts/memory_table.py [NAME ...]

Without names all 20 configs run, one after the other. Kernels are compiled before (in a run of their own), because compiling needs memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import NamedTuple

from warprun.config.compose import compose
from warprun.config.memory_estimate import estimate
from warprun.config.schema import load_environment

COMMON = [
    "tuned=none",
    "device=cpu",
    "concurrency.threads=1",
    "eval.every=never",
    "stop_when_solved=false",
    "log.live=false",
    "log.tensorboard=false",
]
CONFIGS = {
    "small": "env=cartpole agent=ppo total_steps=65536",
    "ppo-many": "env=cartpole agent=ppo agent.epochs=1 n_envs=200000 total_steps=6400000",
    "ppo-stepwise": "env=cartpole agent=ppo agent.epochs=1 n_envs=100000 total_steps=1600000 engine.fused=false",
    "ppo-wide": "env=cartpole agent=ppo agent.epochs=1 n_envs=64 total_steps=1024 agent.network.hidden=[2048,2048] eval.final_episodes=10",
    "ppo-separate": "env=cartpole agent=ppo agent.epochs=1 n_envs=64 total_steps=1024 agent.network.hidden=[1024,1024]"
    " agent.network.shared=false eval.final_episodes=10",
    "ppo-kl": "env=cartpole agent=ppo agent.epochs=1 n_envs=64 total_steps=1024 agent.network.hidden=[1024,1024] agent.target_kl=0.1"
    " eval.final_episodes=10",
    "ppo-long": "env=cartpole agent=ppo agent.epochs=1 n_envs=1000 total_steps=2000000 agent.horizon=1000",
    "a2c-many": "env=cartpole agent=a2c n_envs=200000 total_steps=6400000 concurrency.threads=2",
    "a2c-nstep": "env=pendulum agent=a2c n_envs=100000 total_steps=1600000 agent.advantage=nstep agent.optimizer.name=rmsprop"
    " eval.final_episodes=100",
    "a2c-torch": "env=cartpole agent=a2c n_envs=1024 total_steps=16384 agent.network.hidden=[512,512] agent.network.activation=elu"
    " eval.final_episodes=10",
    "many-episodes": "env=cartpole agent=a2c total_steps=65536 eval.final_episodes=50000",
    "covid": "env=covid agent=ppo agent.epochs=1 n_envs=1000 total_steps=16000 eval.final_episodes=10",
    "catalysis": "env=catalysis agent=ppo agent.epochs=1 n_envs=20000 total_steps=320000 eval.final_episodes=10",
    "dqn": "env=cartpole agent=dqn n_envs=64 total_steps=4000",
    "dqn-replay": "env=cartpole agent=dqn n_envs=64 total_steps=4000 agent.replay.capacity=10000000",
    "dqn-prioritized": "env=cartpole agent=dqn n_envs=64 total_steps=4000 agent.replay.capacity=5000000 agent.replay.prioritized=true",
    "dqn-dueling": "env=cartpole agent=dqn n_envs=16 total_steps=1100 agent.dueling=true agent.network.hidden=[1024,1024]"
    " eval.final_episodes=10",
    "td3-wide": "env=pendulum agent=td3 n_envs=16 total_steps=1100 agent.network.hidden=[1024,1024] eval.final_episodes=10",
    "ddpg-stepwise": "env=pendulum agent=ddpg n_envs=16 total_steps=1200 engine.fused=false agent.replay.capacity=5000000"
    " eval.final_episodes=10",
    "td3-replay": "env=pendulum agent=td3 n_envs=16 total_steps=1200 agent.replay.capacity=3000000 agent.replay.prioritized=true"
    " eval.final_episodes=10",
}
"""Name -> overrides."""
QUICK = ("small", "ppo-wide", "many-episodes")
"""A few that are quick."""

TRAIN = """
import sys
from warprun.cli.main import run
code = run(sys.argv[1:])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("peak", 1024 * int(peak.split()[1]))
sys.exit(code)
"""


class Comparison(NamedTuple):
    """The memory of one run, in bytes."""

    estimate: int
    peak: int
    """Largest resident set of the process."""

    @property
    def ratio(self) -> float:
        return self.estimate / self.peak


def compare(name: str) -> Comparison:
    """Estimate the memory of a config of CONFIGS, train it in a process, and return both."""
    overrides = overrides_of(name)
    config = compose(overrides)
    environment, _ = load_environment(config.env)
    output = _train(overrides)
    if "compiling" in output:
        output = _train(overrides)
    return Comparison(estimate(config, environment, False).bytes, int(output.split("peak ")[-1].split()[0]))


def overrides_of(name: str) -> list[str]:
    """Return the overrides of a config."""
    own = CONFIGS[name].split()
    given = {override.split("=")[0] for override in own}
    return [*(override for override in COMMON if override.split("=")[0] not in given), *own]


def _train(overrides: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", TRAIN, *overrides, f"run_dir={folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(overrides)}: {done.stderr}")
    return done.stdout


def main() -> None:
    """Print the table."""
    print("| config | estimate, MiB | peak, MiB | ratio |\n|---|---|---|---|")
    for name in sys.argv[1:] or CONFIGS:
        found = compare(name)
        print(f"| {name} | {found.estimate / 2**20:.0f} | {found.peak / 2**20:.0f} | {found.ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
