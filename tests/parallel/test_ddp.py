"""Runs of several processes that learn together: equal to one process, to each other, and to themselves when they continue."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.finished import weights
from tests.parallel import ranks
from tests.parallel.ranks import ROOT, start
from warprun.runs import checkpoint

CARTPOLE = ["env=cartpole", "agent=a2c", "n_envs=13", "agent.horizon=8"]
OFF_POLICY = ["env=pendulum", "n_envs=5", "agent.learning_starts=50", "agent.replay.capacity=500", "agent.batch_size=9"]
AGENTS = {
    "a2c": [*CARTPOLE, "agent.normalize_obs=true"],
    "ppo": ["env=cartpole", "agent=ppo", "n_envs=13", "agent.horizon=8", "engine.fused=false"],
    "memory": ["env=cartpole", "agent=ppo", "n_envs=13", "agent.horizon=8", "agent.network=lstm"],
    "td3": [*OFF_POLICY, "agent=td3", "agent.normalize_obs=true"],
    "ddpg": [*OFF_POLICY, "agent=ddpg", "engine.fused=false"],
    "sac": [*OFF_POLICY, "agent=sac"],
    "td3 memory": [*OFF_POLICY, "agent=td3", "agent.network=lstm", "agent.replay.sequence=4", "agent.replay.burn_in=2"],
    "dqn": [*OFF_POLICY, "env=cartpole", "agent=dqn", "agent.replay.prioritized=true"],
}


def train(processes: int, folder: Path, *arguments: str) -> dict[str, Any]:
    """Train in `folder`, in processes that warprun starts, and return the last record."""
    several = ["concurrency=ddp", f"concurrency.processes={processes}"] if processes > 1 else []
    return ranks.train(1, folder, *ranks.ENDLESS, *arguments, *several)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Return the weights of a run of two processes."""
    folder = tmp_path_factory.mktemp("two")
    train(2, folder / "run", *AGENTS["a2c"], "total_steps=416")
    return weights(folder / "run")


def test_two_processes_take_the_steps_of_one(two: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """A2C: the same environments, and in every update the gradient of all of them."""
    train(1, tmp_path / "one", *AGENTS["a2c"], "total_steps=416")
    for name, tensor in weights(tmp_path / "one").items():
        if not name.endswith("reward/returns"):  # of the environments of a process
            torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_two_launchers_of_torchrun_stand_for_two_nodes(two: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Each starts one process, which is LOCAL_RANK 0 of its machine; the run is that of two processes of one launcher."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    given = [*ranks.ENDLESS, *AGENTS["a2c"], "total_steps=416", "concurrency=ddp", f"run_dir={tmp_path / 'run'}"]
    own = [f"--master-port={port}", "-m", "warprun", *given]
    options = {"cwd": ROOT, "env": os.environ | ranks.ONE_THREAD}
    nodes = [subprocess.Popen([*command, f"--node-rank={node}", *own], **options) for node in range(2)]  # type: ignore[call-overload]
    assert [node.wait(300) for node in nodes] == [0, 0]
    found = weights(tmp_path / "run")
    assert found.keys() == two.keys() and all(torch.equal(found[name], tensor) for name, tensor in two.items())


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_a_run_that_continues_equals_one_that_was_left_alone(agent: str, tmp_path: Path) -> None:
    steps = 13 * 8 * 6 if "n_envs=13" in AGENTS[agent] else 300
    # The first part has another length, so nothing may depend on the share of the run that is done.
    constant = ["agent.exploration_fraction=0", "agent.replay.beta_end=0.4"] if agent == "dqn" else []
    train(2, tmp_path / "alone", *AGENTS[agent], *constant, f"total_steps={2 * steps}")
    train(2, tmp_path / "run", *AGENTS[agent], *constant, f"total_steps={steps}")
    done = start(1, f"resume={tmp_path / 'run'}", f"total_steps={2 * steps}", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    alone, continued = (checkpoint.load(tmp_path / name).tensors for name in ("alone", "run"))
    assert alone.keys() == continued.keys()
    # The first part of the run ended with an evaluation.
    assert not [name for name in alone if "evaluator" not in name and not torch.equal(alone[name], continued[name])]
    assert int(alone["ranks"]) == 2


@pytest.mark.slow
def test_a_run_continues_with_other_numbers_of_processes(tmp_path: Path) -> None:
    train(2, tmp_path / "run", *CARTPOLE, "total_steps=416")
    for processes, before in ((3, 2), (1, 3)):
        more = [f"total_steps={416 * (before + 1)}", f"concurrency.processes={processes}"]
        done = start(1, f"resume={tmp_path / 'run'}", *more, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        said = f"{before} processes saved the checkpoint, now there {'is' if processes == 1 else 'are'} {processes}"
        assert f"{said}: all environments begin new episodes" in " ".join(done.stdout.split())
    resumes = json.loads((tmp_path / "run" / "status.json").read_text())["resumes"]
    assert [entry["env_steps"] for entry in resumes] == [416, 1248]


@pytest.mark.slow
def test_replay_memory_cannot_be_shared_out_anew(tmp_path: Path) -> None:
    train(2, tmp_path / "run", *AGENTS["dqn"], "total_steps=200")
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    done = start(1, f"resume={tmp_path / 'run'}", "total_steps=400", "concurrency.processes=3", cwd=ROOT)
    assert done.returncode == 2
    assert "has the replay memory of 2 processes, and these are 3: continue with 2" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
