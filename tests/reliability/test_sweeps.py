"""A sweep whose whole process group is killed at random moments ends as one that nobody disturbed.

pytest -m reliability tests/reliability/test_sweeps.py
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.finished import until
from tests.reliability.runs import SHORT, TINY, outcome
from warprun.runs.rundir import ENDED
from warprun.sweeps import plan, table

ROOT = Path(__file__).parents[2]
KILLS = 4


def started(folder: Path, settings: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a sweep in a process group of its own."""
    command = [sys.executable, "-m", "warprun", "-m", *settings, f"sweep_dir={folder.name}", "launcher.workers=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("ab") as written:
        return subprocess.Popen(command, cwd=folder.parent, env=environment, stdout=written, stderr=written, start_new_session=True)


@pytest.mark.reliability
def test_a_killed_sweep_ends_as_one_that_nobody_disturbed(tmp_path: Path) -> None:
    settings = [*TINY["a2c"], *SHORT, "tuned=none", "checkpoint.every=4%", "total_steps=3e6", "seed=range(0,8)"]
    assert started(tmp_path / "undisturbed", settings, tmp_path / "log").wait(timeout=1200) == 0
    moments = random.Random(os.environ.get("SEED", "0"))
    kills = 0
    while kills < KILLS:
        process = started(tmp_path / "killed", settings, tmp_path / "log")
        try:
            assert process.wait(timeout=moments.uniform(3.0, 15.0)) == 0
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
    assert kills, "the sweep ended before it was killed"
    assert started(tmp_path / "killed", settings, tmp_path / "log").wait(timeout=1200) == 0
    jobs = plan.read(tmp_path / "killed").jobs
    assert len(jobs) == 8 and all(table.state_of(job).state in ENDED for job in jobs)
    for job in jobs:
        assert outcome(job.run) == outcome(tmp_path / "undisturbed" / job.run.name), f"job {job.number} differs after {kills} kills"


@pytest.mark.reliability
def test_jobs_end_with_their_launcher(tmp_path: Path) -> None:
    settings = [*TINY["a2c"], "device=cpu", "tuned=none", "total_steps=1e9", "stop_when_solved=false", "seed=0,1"]
    process = started(tmp_path / "s", settings, tmp_path / "log")
    until(lambda: len(list((tmp_path / "s").glob("*/metrics.jsonl"))) == 2, 120)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    jobs = plan.read(tmp_path / "s").jobs
    until(lambda: not any(table.state_of(job).state == "running" for job in jobs), 120)
    assert [table.state_of(job).state for job in jobs] == ["interrupted", "interrupted"]
    assert all((job.run / "checkpoints" / "manifest.json").is_file() for job in jobs)
