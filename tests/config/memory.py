"""Runs whose peak of memory is compared with the estimate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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

TRAIN = """
import sys
from warprun.cli.main import run
code = run(sys.argv[1:])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("peak", 1024 * int(peak.split()[1]))
sys.exit(code)
"""


def ratio(name: str, folder: Path) -> float:
    """Return the estimate of a config by the largest resident set of a process that trains it.

    Compiling needs memory, so a run that has compiled kernels is repeated.
    """
    own = CONFIGS[name].split()
    given = {override.split("=")[0] for override in own}
    overrides = [*(override for override in COMMON if override.split("=")[0] not in given), *own]
    config = compose(overrides)
    output = _train(overrides, folder / "first")
    if "compiling" in output:
        output = _train(overrides, folder / "again")
    return estimate(config, load_environment(config.env)[0], False).bytes / int(output.split("peak ")[-1].split()[0])


def _train(overrides: list[str], folder: Path) -> str:
    command = [sys.executable, "-c", TRAIN, *overrides, f"run_dir={folder}"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
