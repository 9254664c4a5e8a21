"""Jobs by submitit, PSI/J and Ray end with the bits of `launcher=local`, whatever is killed: `pytest -m engines`.

pip install -e ".[test,submitit,psij,ray]". Ray has two nodes of a core each, in processes of this machine.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.finished import until
from tests.words import words
from warprun.runs import checkpoint
from warprun.sweeps import launcher as launchers
from warprun.sweeps import plan
from warprun.sweeps.table import state_of

pytestmark = pytest.mark.engines
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_PRESTART_WORKER_FIRST_DRIVER": "0"}
TINY = words("""
    env=cartpole agent=a2c n_envs=16 device=cpu tuned=none eval.episodes=4 eval.every=never log.tensorboard=false stop_when_solved=false
    total_steps=600000 seed=0,1
""")
OFTEN = "checkpoint.every='100 iterations'"
PROCESSES = ["psij", "submitit"]
"""Launchers whose jobs outlast the command."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep of `launcher=local`."""
    folder = tmp_path_factory.mktemp("local")
    done = subprocess.run(warprun("local"), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "s"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes, which ignores SIGINT as one does that a script starts in the background."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ.update(ENVIRONMENT)
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    one = Cluster()
    for _ in range(2):
        one.add_node(num_cpus=1, object_store_memory=80 * 2**20, include_dashboard=False)
    signal.signal(signal.SIGINT, former)
    yield one
    one.shutdown()


def warprun(name: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "warprun", "-m", *TINY, OFTEN, "sweep_dir=s", f"launcher={name}", *more]


def started(folder: Path, name: str, *more: str) -> subprocess.Popen[str]:
    """Start a sweep, and return its command when a job has saved a checkpoint."""
    pytest.importorskip(name)
    process = subprocess.Popen(
        warprun(name, *more), cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until(lambda: process.poll() is not None or any((folder / "s").glob("*/checkpoints/*.ckpt")), 120)
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a command; its pipes may be those of its jobs, too."""
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        assert pipe
        pipe.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=180)
    return process.returncode, out + err


def again(folder: Path, name: str, *more: str) -> str:
    """Continue a sweep to its end."""
    done = subprocess.run(warprun(name, *more), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def jobs(folder: Path) -> list[plan.Job]:
    return plan.read(folder / "s").jobs


def pid(job: plan.Job) -> int:
    return int(json.loads((job.folder / "status.json").read_text())["pid"])


def running(folder: Path) -> plan.Job:
    """Return a job that runs and has saved a checkpoint."""
    return next(job for job in jobs(folder) if state_of(job).state == "running" and any(job.run.glob("checkpoints/*.ckpt")))


def assert_same(folder: Path, undisturbed: Path) -> None:
    """The jobs of the undisturbed sweep have ended with the same bits."""
    for job in jobs(folder)[:2]:
        assert state_of(job).is_done
        one, other = checkpoint.load(job.run), checkpoint.load(undisturbed / job.run.name)
        assert one.env_steps == other.env_steps and one.tensors.keys() == other.tensors.keys()
        assert all((one.tensors[name] == other.tensors[name]).all() for name in one.tensors if one.tensors[name].numel())


def address(name: str, request: pytest.FixtureRequest) -> list[str]:
    return [f"launcher.address={request.getfixturevalue('cluster').address}"] if name == "ray" else ["launcher.workers=2"]


@pytest.mark.parametrize("name", [*PROCESSES, "ray"])
def test_results_are_those_of_local(name, undisturbed, tmp_path, request):
    pytest.importorskip(name)
    assert "2 of 2 jobs finished" in again(tmp_path, name, *address(name, request))
    assert_same(tmp_path, undisturbed)


@pytest.mark.parametrize("name", [*PROCESSES, "ray"])
def test_a_job_that_is_killed_has_failed_and_continues(name, undisturbed, tmp_path, request):
    where = address(name, request)
    process = started(tmp_path, name, *where)
    os.kill(pid(running(tmp_path)), signal.SIGKILL)
    code, told = ended(process)
    assert code == 1 and "1 of 2 jobs finished, 1 failed" in told and told.count("warprun: error: ") == 1, told
    assert "2 of 2 jobs finished" in again(tmp_path, name, *where)
    assert_same(tmp_path, undisturbed)


@pytest.mark.parametrize("name", [*PROCESSES, "ray"])
def test_ctrl_c_lets_jobs_save_and_the_same_command_continues_them(name, undisturbed, tmp_path, request):
    where = address(name, request)
    process = started(tmp_path, name, *where)
    job = running(tmp_path)
    with held(job):
        process.send_signal(signal.SIGINT)
        until(lambda: is_told_to_end(pid(job)), 60)
    code, told = ended(process)
    assert code == 130 and "warprun -m sweep_dir=s" in told
    assert state_of(job).state == "interrupted", told
    again(tmp_path, name, *where)
    assert_same(tmp_path, undisturbed)


@contextmanager
def held(job: plan.Job) -> Iterator[None]:
    """Let the process of a job stand still, so that it does not end in this context."""
    process = pid(job)
    os.kill(process, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T", 60)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def is_told_to_end(process: int) -> bool:
    """Return whether SIGINT or SIGTERM waits for a process that stands still."""
    pending = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("ShdPnd"))
    return any(int(pending.split()[1], 16) >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM))


@pytest.mark.parametrize("name", PROCESSES)
def test_jobs_go_on_when_the_command_is_killed(name, undisturbed, tmp_path):
    process = started(tmp_path, name, "launcher.workers=1")
    kill(process)
    with held(running(tmp_path)):
        second = subprocess.run(warprun(name), cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert second.returncode == 2 and "1 job of this sweep is still queued or running; wait for the end, or `" in second.stderr
    until(lambda: state_of(jobs(tmp_path)[0]).is_done, 120)
    until(lambda: not alive(tmp_path), 30)
    assert "2 of 2 jobs finished" in again(tmp_path, name)
    assert_same(tmp_path, undisturbed)


def alive(folder: Path) -> set[str]:
    found = launchers.submitted(folder / "s")
    return launchers.processes(folder / "s", list(found[1].values())) if found else set()


@pytest.mark.parametrize("name", PROCESSES)
def test_jobs_that_go_on_are_cancelled(name, undisturbed, tmp_path):
    process = started(tmp_path, name, "launcher.workers=1")
    kill(process)
    cancel = [sys.executable, "-m", "warprun", "cancel", "s"]
    with held(running(tmp_path)):
        cancelled = subprocess.run(cancel, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert (cancelled.returncode, cancelled.stdout) == (0, "cancelled 1 job\n"), cancelled.stderr
    until(lambda: not alive(tmp_path), 60)
    assert state_of(jobs(tmp_path)[0]).state == "interrupted"
    again(tmp_path, name)
    assert_same(tmp_path, undisturbed)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_process_of_the_engine_is_killed(name, undisturbed, tmp_path):
    """What started the job is gone; the job itself goes on, and nothing trains it twice."""
    process = started(tmp_path, name, "launcher.workers=2")
    (former := launchers.submitted(tmp_path / "s")) and os.kill(int(former[1][0]), signal.SIGKILL)
    code, told = ended(process)
    assert code in (0, 1), told
    until(lambda: all(state_of(job).state != "running" for job in jobs(tmp_path)), 120)
    again(tmp_path, name, "launcher.workers=2")
    assert_same(tmp_path, undisturbed)


def test_submitit_queues_a_job_again_before_its_time_limit(undisturbed, tmp_path):
    process = started(tmp_path, "submitit", "launcher.workers=2")
    job = running(tmp_path)
    task = Path(f"/proc/{pid(job)}/stat").read_text().rpartition(")")[2].split()[1]  # the parent of the process of the job
    os.kill(int(task), signal.SIGUSR2)
    code, told = ended(process)
    assert code == 0 and "2 of 2 jobs finished" in told, told
    assert state_of(job).attempts == 2
    assert_same(tmp_path, undisturbed)


def test_a_job_of_ray_continues_on_another_node(cluster, undisturbed, tmp_path):
    third = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    try:
        process = started(tmp_path, "ray", f"launcher.address={cluster.address}", "seed=0,1,2")
        lost = next(node for node in cluster.list_all_nodes() if node is third)
        until(lambda: process.poll() is not None or sum(state_of(job).state == "running" for job in jobs(tmp_path)) == 3, 60)
        cluster.remove_node(lost, allow_graceful=False)
        third = None
        code, told = ended(process)
        assert code == 0 and "3 of 3 jobs finished" in told, told
        assert sorted(state_of(job).attempts for job in jobs(tmp_path)) == [1, 1, 2]
        assert_same(tmp_path, undisturbed)
    finally:
        if third:
            cluster.remove_node(third)


def test_jobs_of_ray_end_with_their_command(cluster, undisturbed, tmp_path):
    where = f"launcher.address={cluster.address}"
    process = started(tmp_path, "ray", where)
    second = subprocess.run(warprun("ray", where), cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert second.returncode == 2 and len(second.stderr.splitlines()) == 1, second.stderr
    kill(process)
    until(lambda: all(state_of(job).state != "running" for job in jobs(tmp_path)), 60)
    again(tmp_path, "ray", where)
    assert_same(tmp_path, undisturbed)


def test_mistakes_of_a_cluster_are_one_line(cluster, tmp_path):
    for more, said in (
        (["launcher.address=127.0.0.1:1"], "launcher.address=127.0.0.1:1: "),
        (
            [f"launcher.address={cluster.address}", "launcher.cpus=64"],
            "launcher.cpus=64 launcher.gpus=0: no node of the cluster has as many",
        ),
    ):
        done = subprocess.run(warprun("ray", *more), cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2 and said in done.stderr.splitlines()[-1] and not (tmp_path / "s").exists(), done.stderr


def test_a_node_that_does_not_see_the_sweep_folder_is_one_line(tmp_path):
    pytest.importorskip("ray")
    from warprun.sweeps.ray import train

    code, said = train([sys.executable, "-c", "pass"], str(tmp_path), str(tmp_path / "s"))
    assert code == 2 and "does not see" in said and str(tmp_path / "s") in said


@pytest.mark.parametrize(("name", "more", "said"), [
    ("psij", ["launcher.executor=pbs"], "launcher.executor=pbs takes no job: "),
    ("psij", ["launcher.executor=pbx"], "launcher.executor=pbx is not one of "),
    ("submitit", ["launcher.executor=slurm"], "launcher.executor=slurm takes no job: "),
    ("submitit", ["launcher.options={foo: 1}"], "takes no job: "),
])  # fmt: skip
def test_mistakes_are_one_line(name, more, said, tmp_path):
    pytest.importorskip(name)
    environment = ENVIRONMENT | {"PATH": "/usr/local/bin:/bin" if name == "psij" else str(tmp_path)}
    done = subprocess.run(warprun(name, *more), cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert said in line and not list(tmp_path.iterdir())
