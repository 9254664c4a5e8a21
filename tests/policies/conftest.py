"""Short runs of every agent, each trained once for all tests."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.policies.runs import SHORT
from tests.written import add_environment

ROOT = Path(__file__).parents[2]
OFF_POLICY = ["agent.learning_starts=64", "agent.batch_size=16", "agent.utd_ratio=0.2", "agent.normalize_obs=true", "total_steps=400"]
RUNS = {
    "ppo cartpole": ["env=cartpole", "agent=ppo", "total_steps=1024"],
    "a2c cartpole": ["env=cartpole", "agent=a2c", "total_steps=256", "agent.network.shared=false", "agent.normalize_obs=false"],
    "ppo pendulum": ["env=pendulum", "agent=ppo", "total_steps=1024", "agent.network.activation=relu"],
    "dqn cartpole": ["env=cartpole", "agent=dqn", *OFF_POLICY],
    "dueling dqn cartpole": ["env=cartpole", "agent=dqn", "agent.dueling=true", *OFF_POLICY],
    "ddpg pendulum": ["env=pendulum", "agent=ddpg", *OFF_POLICY],
    "td3 pendulum": ["env=pendulum", "agent=td3", *OFF_POLICY],
    "sac pendulum": ["env=pendulum", "agent=sac", *OFF_POLICY],
    "quantiles cartpole": ["env=cartpole", "agent=dqn", "agent.quantiles=5", *OFF_POLICY],
    "ppo market": ["env=market", "agent=ppo", "total_steps=512", "agent.groups.regulator.network.hidden=[8]"],
    "a2c crane": ["env=crane", "agent=a2c", "total_steps=256", "eval.max_steps=20"],
}
"""Discrete, masks and MultiDiscrete in two groups, Box with finite and infinite bounds."""


TRAIN = """
import json, sys, warprun
from contextlib import redirect_stdout
for line in sys.stdin:
    with redirect_stdout(sys.stderr):
        warprun.train(json.loads(line))
    print("trained", flush=True)
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Return a function from the name of a run to its folder. Python interprets the kernels, sooner than they are compiled.

    One process trains all of them.
    """
    home = tmp_path_factory.mktemp("policies")
    for name in ("market", "crane"):
        (home / f"{name}.py").write_text((ROOT / "tests" / "environments" / f"{name}.py").read_text())
        add_environment(home, name)
    variables, said = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}, home / "said"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with said.open("w") as file, subprocess.Popen([sys.executable, "-c", TRAIN], cwd=home, env=variables, stderr=file, **pipes) as training:
        assert training.stdin and training.stdout

        def run(name: str) -> Path:
            folder = home / name.replace(" ", "_")
            if not folder.exists():
                print(json.dumps([*SHORT, "engine.fused=false", *RUNS[name], f"run_dir={folder.name}"]), file=training.stdin, flush=True)
                assert training.stdout.readline() == "trained\n", said.read_text()
            return folder

        yield run
