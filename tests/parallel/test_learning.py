"""Learners and actors solve CartPole: four ranks, whatever the number of cores."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.parallel.ranks import start

SETTINGS = ["env=cartpole", "agent=a2c", "agent.advantage=vtrace", "n_envs=96", "agent.horizon=16", "total_steps=3e6", "device=cpu"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "seed", "rma", "rma concurrency.window=range", "rma concurrency.window=random"])
@pytest.mark.parametrize("seed", range(5))
def test_cartpole_is_solved(mode: str, seed: int, tmp_path: Path) -> None:
    began = time.monotonic()
    given = [*SETTINGS, *f"concurrency={mode}".split(), f"seed={seed}", "log.live=false", "log.tensorboard=false", "run_dir=run"]
    done = start(4, *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "solved"
    print(f"{mode} seed {seed}: {time.monotonic() - began:.1f} s")
