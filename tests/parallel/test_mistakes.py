"""Mistakes in how several processes are started: one line, from rank 0 only, before anything is made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.ranks import start

SMALL = ["env=cartpole", "agent=a2c", "device=cpu", "total_steps=1000"]
TORCH = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "LOCAL_RANK": "0"}


@pytest.mark.by_default(5)
@pytest.mark.parametrize(
    ("ranks", "arguments", "said"),
    [
        (1, ["concurrency=async"], "concurrency=async needs several processes: add concurrency.processes=4"),
        (
            1,
            ["concurrency=rma", "concurrency.processes=3", "concurrency.learners=2"],
            "concurrency.learners=2 needs 4 processes or more, not 3",
        ),
        (1, ["concurrency=async", "concurrency.processes=3", "n_envs=7"], "n_envs=7 cannot be shared out evenly to 2 actors; n_envs=8 can"),
        (1, ["concurrency=rma", "concurrency.window=queu"], "concurrency.window=queu is not one of queue, range, random"),
        (1, ["concurrency=rma", "concurrency.queue=0"], "concurrency.queue=0 must be from 1"),
        (1, ["concurrency=async", "concurrency.timeout_s=0.1"], "concurrency.timeout_s=0.1 must be"),
        (1, ["concurrency=async", "concurrency.max_lag=-1"], "concurrency.max_lag=-1 must be 0 or more"),
        (1, ["concurrency=sync", "concurrency.max_lag=1"], "unknown key 'concurrency.max_lag'"),
        (1, ["concurrency=seed", "concurrency.batch_us=-1"], "concurrency.batch_us=-1.0 must be from 0 to 1,000,000"),
        (1, ["concurrency=ddp", "concurrency.processes=0"], "concurrency.processes=0 must be from 1"),
        (1, ["concurrency=ddp", "concurrency.processes=13"], "concurrency.processes=13: n_envs=12 gives some of them no environment"),
        (1, ["concurrency=ddp", "concurrency.timeout_s=1"], "concurrency.timeout_s=1.0 must be"),
        (1, ["concurrency=ddp", "concurrency.learners=2"], "unknown key 'concurrency.learners'"),
        (1, ["concurrency=ddp"], "concurrency=ddp needs several processes: add concurrency.processes=2"),
        (2, ["concurrency=ddp"], "concurrency=ddp needs no mpiexec: add concurrency.processes=2 instead"),
        (1, ["concurrency=asinc"], "unknown concurrency 'asinc'; did you mean 'async'?"),
        (1, ["env=t_maze", "agent=ppo", "concurrency=async", "concurrency.processes=3"], "or tuned=none if tuned/t_maze_ppo chose the"),
        (3, [], "3 processes were started, and concurrency=single is one"),
        (3, ["concurrency=async", "concurrency.processes=4"], "concurrency.processes=4, and 3 processes were started"),
        (3, ["concurrency=async", "agent.gama=1"], "unknown key 'agent.gama'; did you mean 'agent.gamma'?"),
        (5, ["concurrency=sync", "concurrency.learners=2"], "3 actors cannot be shared out evenly to 2 learners; 2 or 4 actors can"),
        (2, ["-m", "concurrency=async", "seed=1,2"], "-m: a sweep is one process, and 2 were started"),
    ],
)
def test_a_mistake_is_one_line(ranks: int, arguments: list[str], said: str, tmp_path: Path) -> None:
    done = start(ranks, *SMALL, "n_envs=12", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not done.stdout
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
    command = [sys.executable, "-m", "warprun", *SMALL, "n_envs=12", "concurrency=ddp", *arguments]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **TORCH, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        for rank in (0, 1)
    ]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert ranks[0].returncode == 2
    assert said in errors[0]
    assert len(errors[0].splitlines()) == 1, errors[0]
    assert not errors[1]
    assert not list(tmp_path.iterdir())


def test_a_mistake_in_one_rank_only_ends_all(tmp_path: Path) -> None:
    """The module of the environment is missing on the node of rank 1."""
    (tmp_path / "one.py").write_text(
        "import os\nfrom warprun.envs.cartpole import environment\n"
        "if os.environ['PMI_RANK'] == '1':\n    raise ImportError('no solver on this node')\n"
    )
    done = start(3, *SMALL, "n_envs=12", "concurrency=async", "env.module=./one.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "warprun: error: rank 1: " in done.stderr
    assert "no solver on this node" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not (tmp_path / "outputs").exists()


@pytest.mark.by_default(0)
def test_ranks_with_different_environments_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "import os\nfrom dataclasses import replace\nfrom warprun.envs.cartpole import environment\n"
        "environment = replace(environment(), time_limit=3 if os.environ['PMI_RANK'] == '2' else 500)\n"
    )
    arguments = ["n_envs=12", "concurrency=async", "env.module=./one.py", "agent.horizon=8", "run_dir=run"]
    done = start(3, *SMALL, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "rank 2 (actor 1): its environment or settings differ from those of rank 0" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_missing_mpi_is_named(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['mpi4py'] = None; from warprun.cli.main import main; main()"
    given = [*SMALL, "concurrency=async"]
    environment = os.environ | {"PMI_SIZE": "2", "PMI_RANK": "0"}
    done = subprocess.run([sys.executable, "-c", hide, *given], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "learners and actors need mpi4py" in done.stderr
    assert "pip install 'warprun[mpi]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_two_mixed_mpis_are_refused(tmp_path: Path) -> None:
    """Open MPI says that it has started two processes, and MPICH knows nothing of it."""
    environment = os.environ | {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    given = [sys.executable, "-m", "warprun", *SMALL, "concurrency=async"]
    done = subprocess.run(given, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "two MPIs are mixed: 2 processes were started" in done.stderr
    assert len(done.stderr.splitlines()) == 1
