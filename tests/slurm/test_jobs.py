"""The SLURM scripts of the package on a real cluster of one node: apt-get install slurm-wlm munge; pytest -m slurm (as root)."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.finished import until
from tests.slurm.cluster import Cluster, why_not
from tests.words import words
from warprun.cli import main as cli
from warprun.runs import checkpoint

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(why_not()), reason=why_not())]
ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "warprun" / "slurm"
TINY = [
    *words("""
    env=cartpole agent=a2c n_envs=8 agent.horizon=8 tuned=none device=cpu stop_when_solved=false eval.every=never
    eval.episodes=1 eval.final_episodes=2 log.tensorboard=false
"""),
    "log.every='20 iterations'",
]
LONG = "total_steps=40000"
"""Long enough to be preempted in the middle."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


@pytest.fixture
def variables() -> dict[str, str]:
    """What jobs need to find this warprun and its scripts."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "WARPRUN_SCRIPTS": str(SCRIPTS), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def status(folder: Path) -> dict[str, object]:
    return json.loads((folder / "status.json").read_text())


def assert_same(ours: Path, theirs: Path) -> None:
    """Two runs ended with the same bits, and have the same records but for times."""
    a, b = (checkpoint.load(folder).tensors for folder in (ours, theirs))
    assert a.keys() == b.keys()
    assert not [name for name in a if not torch.equal(a[name], b[name])]
    records = [[json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in (ours, theirs)]
    own, other = ([{k: v for k, v in row.items() if not k.startswith(("perf/", "wall_s"))} for row in rows] for rows in records)
    assert own == other


def output(path: Path, text: str) -> str:
    """Return what a job has printed, once it has printed `text`: it arrives a little after the end of the job."""
    until(lambda: path.exists() and text in path.read_text(), 20)
    return path.read_text()


def test_sbatch_reads_the_directives_of_pbs(cluster: Cluster, variables: dict[str, str], tmp_path: Path, monkeypatch) -> None:
    """sbatch has a parser for them, so the whole script runs as with qsub; what PBS itself would set are variables of the job."""
    monkeypatch.chdir(tmp_path)
    assert cli.run(["scripts", "pbs"]) == 0
    script = Path("pbs/train.pbs")
    script.write_text(script.read_text().replace("ncpus=8", "ncpus=1"))  # a node of this cluster is small
    Path("hosts").write_text("node1\n")
    variables |= {"PBS_JOBID": "7.server", "PBS_O_WORKDIR": str(tmp_path), "PBS_NODEFILE": "hosts", "NCPUS": "1"}
    job = cluster.submit(tmp_path, str(script), **variables, WARPRUN_SETTINGS=" ".join([*TINY[:-1], "total_steps=2000"]))
    shown = cluster.run("scontrol", "show", "job", job)
    assert all(word in shown.split() for word in ("JobName=warprun", "TimeLimit=04:00:00", "NumCPUs=1", "Requeue=1")), shown
    assert cluster.wait(job, ["COMPLETED", "FAILED"]) == "COMPLETED"
    assert status(tmp_path / "outputs" / "pbs-7")["state"] == "finished"


def test_a_job_on_one_node(cluster: Cluster, variables: dict[str, str], tmp_path: Path) -> None:
    job = cluster.submit(tmp_path, "--cpus-per-task=1", str(SCRIPTS / "train.sbatch"), *TINY, "total_steps=2000", **variables)
    assert cluster.wait(job, ["COMPLETED", "FAILED"]) == "COMPLETED"
    assert status(tmp_path / "outputs" / f"slurm-{job}")["state"] == "finished"
    output(tmp_path / f"slurm-warprun-{job}.out", "env_steps")


def test_a_mistake_fails_the_job_with_one_line(cluster: Cluster, variables: dict[str, str], tmp_path: Path) -> None:
    job = cluster.submit(tmp_path, "--cpus-per-task=1", str(SCRIPTS / "train.sbatch"), "env=cartpol", **variables)
    assert cluster.wait(job, ["COMPLETED", "FAILED"]) == "FAILED"
    assert "did you mean 'cartpole'?" in output(tmp_path / f"slurm-warprun-{job}.out", "warprun: error")
    assert not (tmp_path / "outputs").exists()


def test_an_array_returns_the_prompt_at_once(cluster: Cluster, variables: dict[str, str], tmp_path: Path) -> None:
    began = time.monotonic()
    script = str(SCRIPTS / "sweep.sbatch")
    job = cluster.submit(tmp_path, "--array=0-1", "--cpus-per-task=1", script, *TINY, "total_steps=2000", **variables)
    assert time.monotonic() - began < 3
    for task in (0, 1):
        folder = tmp_path / "outputs" / f"slurm-{job}_{task}"
        until(lambda folder=folder: (folder / "status.json").exists() and status(folder)["state"] != "running", 300)  # type: ignore[misc]
        assert status(folder)["state"] == "finished"
        assert f"seed: {task}" in (folder / "config.yaml").read_text()


@pytest.mark.parametrize(("script", "end"), [("train", "preempted"), ("ddp", "preempted"), ("train", "killed")])
def test_a_job_that_is_queued_again_continues_and_equals_one_that_was_left_alone(
    script: str, end: str, cluster: Cluster, variables: dict[str, str], tmp_path: Path
) -> None:
    """By SIGUSR1, which SLURM sends before a time limit or a preemption: warprun asks for a new place in the queue. Or by `scontrol`."""
    several = ["--ntasks-per-node=2"] if script == "ddp" else []
    options = [*several, "--cpus-per-task=1", str(SCRIPTS / f"{script}.sbatch"), *TINY, LONG, "checkpoint.every='20 iterations'"]
    job = cluster.submit(tmp_path, *options, **variables)
    folder = tmp_path / "outputs" / f"slurm-{job}"
    until(lambda: list(folder.glob("checkpoints/*.ckpt")), 300)
    if end == "killed":
        cluster.run("scontrol", "requeue", job)
    else:
        cluster.run("scancel", "--signal=USR1", job)
        cluster.wait(job, ["PENDING", "CONFIGURING"])
        assert status(folder)["state"] == "interrupted"
        assert 0 < int(str(status(folder)["env_steps"])) < 40_000
    assert cluster.wait(job, ["COMPLETED", "FAILED"], 400) == "COMPLETED"
    left_alone = cluster.submit(tmp_path, *options, **variables)
    assert cluster.wait(left_alone, ["COMPLETED", "FAILED"], 400) == "COMPLETED"
    assert end == "killed" or len(list(status(folder)["resumes"])) == 1  # type: ignore[call-overload]
    assert_same(folder, tmp_path / "outputs" / f"slurm-{left_alone}")
