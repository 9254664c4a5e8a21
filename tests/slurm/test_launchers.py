"""Sweeps on a real cluster of one node, by sbatch, submitit and PSI/J: `pytest -m slurm` as root (apt-get install slurm-wlm munge).

The last two need pip install -e ".[test,submitit,psij]".
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.finished import until
from tests.slurm.cluster import Cluster, why_not
from tests.slurm.test_jobs import TINY, assert_same
from warprun.sweeps import plan
from warprun.sweeps.table import state_of

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(why_not()), reason=why_not())]
ROOT = Path(__file__).parents[2]
SWEEP = [*TINY, "total_steps=2000", "seed=0,1", "sweep_dir=s"]
ENGINES = {
    "slurm": ["launcher=slurm", "launcher.cpus=1"],
    "submitit": ["launcher=submitit", "launcher.executor=slurm"],
    "psij": ["launcher=psij", "launcher.executor=slurm"],
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep of `launcher=local`."""
    folder = tmp_path_factory.mktemp("local")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "warprun", "-m", *SWEEP], cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "s"


def warprun(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = cluster.environment | {"PYTHONPATH": str(ROOT), "PATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "warprun", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def jobs(folder: Path) -> list[plan.Job]:
    return plan.read(folder / "s").jobs


@pytest.mark.parametrize("name", ENGINES)
def test_a_sweep_ends_with_the_bits_of_local(name: str, cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    if name != "slurm":
        pytest.importorskip(name)
    done = warprun(cluster, tmp_path, "-m", *SWEEP, *ENGINES[name])
    assert done.returncode == 0 and "submitted " in done.stdout, done.stderr
    second = warprun(cluster, tmp_path, "-m", *SWEEP, *ENGINES[name])
    assert "still queued or running" in second.stderr or "nothing is left to do" in second.stdout, second.stderr
    until(lambda: all(state_of(job).is_done for job in jobs(tmp_path)), 300)
    status = warprun(cluster, tmp_path, "status", "s")
    assert status.returncode == 0 and "2 of 2 jobs finished" in status.stdout
    for job in jobs(tmp_path):
        assert_same(job.run, undisturbed / job.run.name)


@pytest.mark.parametrize("name", ENGINES)
def test_jobs_are_cancelled(name: str, cluster: Cluster, tmp_path: Path) -> None:
    if name != "slurm":
        pytest.importorskip(name)
    done = warprun(cluster, tmp_path, "-m", *SWEEP, "seed=range(0,6)", "total_steps=1e9", *ENGINES[name])
    assert done.returncode == 0, done.stderr
    until(lambda: any(state_of(job).state == "running" for job in jobs(tmp_path)), 120)
    assert cluster.run("squeue", "-h").strip()
    cancelled = warprun(cluster, tmp_path, "cancel", "s")
    assert cancelled.returncode == 0 and "cancelled " in cancelled.stdout, cancelled.stderr
    until(lambda: not cluster.run("squeue", "-h").strip(), 120)
    assert {state_of(job).state for job in jobs(tmp_path)} <= {"interrupted", "waiting", "killed"}


@pytest.mark.parametrize(("name", "said"), [("slurm", "sbatch refuses the job array"), ("submitit", "takes no job: ")])
def test_an_array_above_the_limit_is_one_line(name: str, said: str, cluster: Cluster, tmp_path: Path) -> None:
    if name != "slurm":
        pytest.importorskip(name)
    done = warprun(cluster, tmp_path, "-m", "seed=range(0,1100)", "sweep_dir=s", *ENGINES[name])
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("name", ["submitit", "psij"])
def test_a_queue_that_is_not_there_is_one_line(name: str, cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip(name)
    done = warprun(cluster, tmp_path, "-m", *SWEEP, *ENGINES[name], "launcher.queue=nowhere")
    assert done.returncode == 2 and "takes no job: " in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "s").exists()
