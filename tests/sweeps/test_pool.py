"""How workers share cores and GPUs, and what a job looks like that was killed."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.sweeps import fake_jobs
from warprun.cli import sweeps
from warprun.config.compose import compose
from warprun.config.memory_estimate import most_on_gpu
from warprun.runs import rundir, signals
from warprun.sweeps import local, plan, table
from warprun.sweeps.local import Pool


@pytest.mark.parametrize(("cores", "count", "sizes"), [(8, 2, [4, 4]), (8, 3, [2, 3, 3]), (2, 3, [1, 1, 1]), (5, 1, [5])])
def test_cores_are_shared(monkeypatch, cores, count, sizes):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    shares = local.share_cores(count)
    assert sorted(map(len, shares)) == sorted(sizes)
    used = [core for share in shares for core in share]
    assert count > cores or sorted(used) == list(range(cores))


def test_gpus_are_those_that_the_variable_allows(monkeypatch):
    monkeypatch.setattr(local, "why_no_cuda", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert local.usable_gpus() == ["GPU-a", "GPU-b"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local.usable_gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    monkeypatch.setattr(local, "why_no_cuda", lambda: "none")
    assert local.usable_gpus() == []


@pytest.mark.skipif(not local.FORKS, reason="no jobs are forked here")
def test_what_jobs_are_forked_from_has_not_asked_for_a_gpu():
    """A fork cannot use CUDA if its parent has, and CUDA reads once which GPUs it may see."""
    code = (
        f"import {local.PRELOADED}, sys, torch; maps = open('/proc/self/maps').read();"
        " print(torch.cuda.is_initialized(), 'numba.cuda' in sys.modules, 'libcuda.so' in maps)"
    )
    asked = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    found = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"] * 3


def unasked() -> int:
    raise AssertionError("no jobs share a GPU")


@pytest.fixture
def made(tmp_path):
    found = plan.planned(tmp_path / "s", [[f"seed={seed}"] for seed in (5, 6, fake_jobs.WAITS, 7)])
    plan.claimed(found, tmp_path).release()
    return found


def until(pool: Pool, *jobs: plan.Job) -> list[plan.Job]:
    """Wait until one of these jobs has ended, and return those that have."""
    limit = time.monotonic() + 60
    while len(alive := pool.alive([str(job.number) for job in jobs])) == len(jobs) and time.monotonic() < limit:
        pool.wait(0.01)
    return [job for job in jobs if str(job.number) not in alive]


def test_gpus_are_dealt_out_in_turn_and_cores_divided(made, monkeypatch):
    monkeypatch.setattr(local, "usable_gpus", lambda: ["0", "1"])
    monkeypatch.setattr(local, "free_cuda_memory", lambda number: 2**34)
    one = Pool(made.folder, 3, {"auto"}, fake_jobs.train, lambda: 2**30)
    assert one.describe().endswith("2 on GPU 0, 1 on GPU 1 at a time (each needs up to 1.0 GiB; free: GPU 0 16.0 GiB, GPU 1 16.0 GiB)")
    three = [made.jobs[n] for n in (0, 1, 3)]
    assert one.submit(three) == ["0", "1", "3"]
    while three:
        ended = until(one, *three)
        three = [job for job in three if job not in ended]
    said = [(made.jobs[n].folder / "attempt1").read_text().rsplit(" ", 1) for n in (0, 1, 3)]
    assert [gpu for _, gpu in said] == ["0", "1", "0"]
    assert [cores for cores, _ in said] == [str(share) for share in local.share_cores(3)]
    two, none = Pool(made.folder, None, {"auto"}, fake_jobs.train, unasked), Pool(made.folder, None, {"cpu"}, fake_jobs.train, unasked)
    assert (two.size, none.size) == (2, 1)
    assert two.describe().endswith("GPUs 0, 1 in turn")


@pytest.mark.parametrize(
    ("workers", "free", "places", "said"),
    [
        (8, [10, 3], "010000", "6 workers with"),
        (4, [10, 3], "0100", "3 on GPU 0, 1 on GPU 1 at a time (each needs up to 2.0 GiB; free: GPU 0 10.0"),
        (3, [1], "0", "1 on GPU 0 at a time (each needs up to 2.0 GiB; free: GPU 0 1.0 GiB); 3 do not fit"),
        (3, [None], "000", "3 on GPU 0 at a time"),
    ],
)
def test_as_many_jobs_share_a_gpu_as_its_memory_has_room_for(made, monkeypatch, workers, free, places, said):
    monkeypatch.setattr(local, "usable_gpus", lambda: [str(number) for number in range(len(free))])
    monkeypatch.setattr(local, "free_cuda_memory", lambda number: free[number] and free[number] << 30)
    one = Pool(made.folder, workers, {"cuda"}, fake_jobs.train, lambda: 2 << 30)
    assert "".join(slot.gpu for slot in one._slots) == places
    assert said in one.describe() and ("do not fit" in one.describe()) == (len(places) < workers)


@pytest.mark.parametrize(
    ("jobs", "cores", "free", "rooms", "said"),
    [
        (8, 16, [100], [8], "8 on GPU 0 train together"),
        (2048, 16, [1000], [128] * 16, "2,048 on GPU 0 train together"),
        (2048, 16, [None], [128] * 16, "2,048 on GPU 0 train together"),
        (200, 2, [100, 100], [100, 100], "100 on GPU 0, 100 on GPU 1 train together"),
        (200, 4, [100], [50] * 4, "200 on GPU 0 train together"),
        (200, 1, [20], [99], "99 on GPU 0 train together (each needs up to 200.0 MiB, and a process 600.0 MiB; the others wait)"),
        (3, 16, [0.5], [1], "1 on GPU 0 train together (each"),
    ],
)
def test_jobs_of_a_gpu_train_together_as_far_as_its_memory_has_room(made, monkeypatch, jobs, cores, free, rooms, said):
    monkeypatch.setattr(local, "usable_gpus", lambda: [str(number) for number in range(len(free))])
    monkeypatch.setattr(local, "usable_cores", lambda: cores)
    monkeypatch.setattr(local, "free_cuda_memory", lambda number: free[number] and int(free[number] * 2**30))
    one = Pool(made.folder, None, {"auto"}, fake_jobs.train, lambda: local.CUDA_CONTEXT + 200 * 2**20, jobs=jobs)
    assert ([slot.room for slot in one._slots], one.size) == (rooms, sum(rooms))
    assert said in one.describe()


def test_a_process_in_which_a_job_has_failed_takes_no_other_one(made, monkeypatch):
    monkeypatch.setattr(local, "usable_gpus", lambda: ["0"])
    monkeypatch.setattr(local, "free_cuda_memory", lambda number: None)
    one = Pool(made.folder, None, {"auto"}, fake_jobs.train, lambda: 2**30, jobs=3)
    assert one.size == 3
    fails = plan.Job(4, (f"seed={fake_jobs.FAILS}",), made.folder / "0004_seed-1")
    made.jobs.append(fails)
    made.write()
    assert one.submit([fails]) == ["4"]
    until(one, fails)
    processes = set()
    for job in (made.jobs[0], made.jobs[1]):
        assert one.submit([job]) == [str(job.number)]
        until(one, job)
        processes.add((job.folder / "process").read_text())
    assert len(processes) == 1 and (fails.folder / "process").read_text() not in processes
    one.close()


def test_jobs_that_were_sent_to_a_process_in_which_another_one_failed_begin_in_a_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "usable_gpus", lambda: ["0"])
    monkeypatch.setattr(local, "free_cuda_memory", lambda number: None)
    found = plan.planned(tmp_path / "s", [[f"seed={seed}"] for seed in (fake_jobs.FAILS, 5, fake_jobs.DIES, 6)])
    plan.claimed(found, tmp_path).release()
    one = Pool(found.folder, None, {"auto"}, fake_jobs.train, lambda: 2**30, jobs=4)
    assert one.submit(found.jobs) == ["0", "1", "2", "3"]
    left = list(found.jobs)
    while left:
        ended = until(one, *left)
        assert ended
        left = [job for job in left if job not in ended]
    one.close()
    ends = [rundir.read_status(job.folder) for job in found.jobs]
    assert [end["state"] for end in ends] == ["failed", "finished", "failed", "finished"]
    assert ends[2]["error"] == "killed by SIGKILL"


@pytest.mark.parametrize(("stops", "state"), [(True, None), (False, "failed")])
def test_a_job_that_was_stopped_before_it_began_has_not_failed(made, stops, state):
    one = Pool(made.folder, 1, {"cpu"}, fake_jobs.train, unasked)
    ended = Mock(exitcode=130)
    for taken in set(), {0}:
        one._slots[0].worker = local._Worker(ended, Mock(poll=Mock(return_value=False)), Mock(), taken, stops)
        one._slots[0].jobs[0] = made.jobs[0]
        assert one.alive(["0"]) == set()
    assert rundir.read_status(made.jobs[0].folder).get("state") == state


@pytest.mark.parametrize(("gpus", "workers"), [([], 1), (["0"], 1), (["0"], 2), (["0"], None)])
def test_only_jobs_that_train_together_are_members(made, monkeypatch, gpus, workers):
    monkeypatch.setattr(local, "usable_gpus", lambda: gpus)
    monkeypatch.setattr(local, "free_cuda_memory", lambda number: None)
    one = Pool(made.folder, workers, {"auto"}, fake_jobs.train, lambda: 2**30, jobs=4)
    assert one.submit(made.jobs[:1]) == ["0"]
    until(one, made.jobs[0])
    one.close()
    assert (made.jobs[0].folder / "member").read_text() == str(workers is None)


def test_a_limit_of_open_files_is_raised_and_never_lowered(monkeypatch):
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: limits.append(both))
    for now in (1024, 4096, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, now=now: (now, resource.RLIM_INFINITY))
        local._allow_files(500)
    assert limits == [(1524, resource.RLIM_INFINITY)]


def test_a_job_that_waits_for_ever_is_stopped(made):
    one = Pool(made.folder, 2, {"cpu"}, fake_jobs.train, unasked)
    waits = made.jobs[2]
    one.submit([waits, made.jobs[0]])
    assert until(one, waits, made.jobs[0]) == [made.jobs[0]]
    while not (waits.folder / "attempt1").exists():
        time.sleep(0.01)
    one.cancel([str(waits.number)])
    assert until(one, waits) == [waits]
    assert table.state_of(waits).state == "failed" and table.state_of(made.jobs[0]).state == "finished"


def trained(folder: Path, devices: set[str], seeds: Sequence[int]) -> tuple[list[str], list[str]]:
    """Train jobs one after the other with one worker; return the process of each, and how it ended."""
    made = plan.planned(folder, [[f"seed={seed}"] for seed in seeds])
    plan.claimed(made, folder.parent).release()
    one = Pool(made.folder, 1, devices, fake_jobs.train, unasked)
    for job in made.jobs:
        one.submit([job])
        assert until(one, job) == [job]
    one.close()
    return [(job.folder / "process").read_text() for job in made.jobs], [table.state_of(job).state for job in made.jobs]


def test_a_worker_trains_one_job_after_the_other_until_one_fails(tmp_path):
    processes, states = trained(tmp_path / "s", {"cpu"}, (5, 6, fake_jobs.FAILS, 7, fake_jobs.DIES, 8))
    assert processes[0] == processes[1] == processes[2] and processes[3] == processes[4]
    assert len({processes[2], processes[3], processes[5]}) == 3
    assert states == ["finished", "finished", "failed", "finished", "failed", "finished"]


def test_jobs_of_the_cuda_simulator_have_processes_of_their_own(tmp_path):
    processes, _ = trained(tmp_path / "s", {"cpu", "cudasim"}, (5, 6))
    assert processes[0] != processes[1]


@pytest.mark.skipif(not local.FORKS, reason="no jobs are forked here")
def test_signals_of_a_terminal_reach_workers_but_not_the_server_that_forks_them(made):
    """The server has them blocked from its first import on, so a Ctrl-C never ends it with a traceback."""
    pool = Pool(made.folder, 1, {"cpu"}, fake_jobs.train, unasked)
    pool.submit(made.jobs[:1])
    worker = pool._slots[0].worker.process.pid
    server = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1]
    masks = dict(line.split(":\t") for line in Path(f"/proc/{server}/status").read_text().splitlines() if line.startswith("Sig"))
    assert all(int(masks["SigBlk"], 16) >> (number - 1) & 1 for number in signals.SIGNALS)
    assert until(pool, made.jobs[0]) and (made.jobs[0].folder / "blocked").read_text() == ""
    pool.close()


@pytest.mark.parametrize("number", [None, signal.SIGINT])
def test_a_server_that_is_gone_after_a_signal_is_no_error(made, monkeypatch, number):
    pool = Pool(made.folder, 1, {"cpu"}, fake_jobs.train, unasked)
    monkeypatch.setattr(pool, "_hired", Mock(side_effect=EOFError("unexpected EOF")))
    monkeypatch.setattr(signals.requests, "number", number)
    with nullcontext() if number else pytest.raises(EOFError):
        assert pool.submit(made.jobs[:1]) == [] and pool.alive(["0"]) == set()


def test_a_worker_that_is_killed_while_it_waits_is_replaced(made):
    one = Pool(made.folder, 1, {"cpu"}, fake_jobs.train, unasked)
    one.submit(made.jobs[:1])
    assert until(one, made.jobs[0])
    process = int((made.jobs[0].folder / "process").read_text())
    os.kill(process, signal.SIGKILL)
    while one._slots[0].worker and one._slots[0].worker.process.exitcode is None:
        time.sleep(0.01)
    one.submit(made.jobs[1:2])
    assert until(one, made.jobs[1]) and table.state_of(made.jobs[1]).state == "finished"
    one.close()


def test_a_sweep_that_goes_on_knows_what_its_jobs_need(tmp_path, monkeypatch):
    """Settings are read in the folder where the sweep began; a job whose settings do not work counts nothing."""
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    monkeypatch.chdir(own)
    jobs = [["env=cartpole", "n_envs=10"], ["env=cartpole", "n_envs=5000"], ["env=nowhere"]]
    found = plan.planned(tmp_path / "s", jobs)
    monkeypatch.chdir(other)
    expected = most_on_gpu([compose(jobs[1])])
    assert sweeps._most_on_gpu(found, found.jobs) == expected > sweeps._most_on_gpu(found, found.jobs[:1])
    assert sweeps._most_on_gpu(found, found.jobs[2:]) == 0
