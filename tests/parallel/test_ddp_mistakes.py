"""Mistakes in how processes that learn together are started: one line, from rank 0 only, before anything is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.ddp_runs import warprun
from warprun import processes
from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.parallel.launch import check_gpus

SMALL = ["env=cartpole", "agent=a2c", "device=cpu", "total_steps=1000", "n_envs=12", "concurrency=ddp"]
TORCH = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "LOCAL_RANK": "0"}


@pytest.mark.by_default(2)
@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["concurrency.processes=0"], {}, "concurrency.processes=0 must be from 1"),
        (["concurrency.processes=13"], {}, "concurrency.processes=13: n_envs=12 gives some of them no environment"),
        (["concurrency.timeout_s=1"], {}, "concurrency.timeout_s=1.0 must be"),
        (["concurrency.learners=2"], {}, "unknown key 'concurrency.learners'"),
        ([], {}, "concurrency=ddp needs several processes: add concurrency.processes=2"),
        ([], {"PMI_SIZE": "2", "PMI_RANK": "0"}, "concurrency=ddp needs no mpiexec: add concurrency.processes=2 instead"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], environment: dict[str, str], said: str, tmp_path: Path) -> None:
    done = warprun(*SMALL, *arguments, cwd=tmp_path, environment=environment)
    assert said in done.stderr
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.by_default(1)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["concurrency.processes=4"], "concurrency.processes=4, and torchrun has started 2: leave it out"),
        (["concurrency=single"], "2 processes were started, and concurrency=single is one: write concurrency=ddp"),
        (["concurrency=async"], "concurrency=async is not started with torchrun"),
        (["agent.gama=1"], "unknown key 'agent.gama'; did you mean 'agent.gamma'?"),
        (["agent=dqn", "agent.batch_size=1", "total_steps=1e5"], "the share of rank 1 of 2 processes is too small: agent.batch_size=0"),
    ],
)
def test_a_mistake_in_all_ranks_is_told_once(arguments: list[str], said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warprun", *SMALL, *arguments]
    ranks = [
        subprocess.Popen(command, env={**processes.os.environ, **TORCH, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        for rank in (0, 1)
    ]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert ranks[0].returncode == 2
    assert said in errors[0]
    assert len(errors[0].splitlines()) == 1, errors[0]
    assert not errors[1]
    assert not list(tmp_path.iterdir())


def test_fewer_gpus_than_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warprun.parallel.launch.why_no_cuda", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    config = compose([*SMALL, "concurrency.processes=2"])
    config.device = "cuda"
    with pytest.raises(
        UserError, match=r"every process needs a GPU of its own, and this machine has 1; concurrency\.processes=1, or device=cpu"
    ):
        check_gpus(config, 2)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("cpu1", "cpu1"), ("gpu[03-05,7],cpu1", "gpu03"), ("a[1,3]-b[2-4],c", "a1-b2"), ("n1,n2", "n1"), ("node-[001-100]", "node-001")],
)
def test_the_first_node_is_where_rank_0_is(nodes: str, first: str) -> None:
    assert processes.first_node(nodes) == first


@pytest.mark.parametrize(
    ("environment", "starter", "size", "rank"),
    [
        ({}, "", 1, 0),
        ({**TORCH, "RANK": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2"}, "torchrun", 2, 1),
        ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2"}, "srun", 3, 2),
        ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2", "PMI_SIZE": "3", "PMI_RANK": "2"}, "srun", 3, 2),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "PMI_SIZE": "4", "PMI_RANK": "3"}, "mpiexec", 4, 3),
        ({"WORLD_SIZE": "4"}, "", 1, 0),
    ],
)
def test_what_started_a_process(environment: dict[str, str], starter: str, size: int, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*processes.SIZES, *processes.RANKS, *processes.OF_TORCH):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (processes.starter(), processes.started(), processes.rank()) == (starter, size, rank)
