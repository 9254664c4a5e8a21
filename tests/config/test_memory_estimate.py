"""The estimate of a run's memory, what it refuses, and what is there."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.config.memory import CONFIGS, ratio
from tests.selection import few
from warprun.config.compose import compose
from warprun.config.memory_estimate import CUDA_CONTEXT, EVALUATION_STEPS, _memory_of_device, check_evaluation_memory, estimate, most_on_gpu
from warprun.config.schema import load_environment
from warprun.errors import UserError
from warprun.kernels.driver import left_in_cgroups
from warprun.learning import byte_counts
from warprun.learning.settings import OPTIMIZERS


def within_a_fifth(name: str, folder: Path) -> None:
    assert 0.8 <= ratio(name, folder) <= 1.2


@pytest.mark.long
@pytest.mark.parametrize("name", few(("small", "ppo-wide", "many-episodes"), "small"))
def test_estimate_of_a_few_configs(name: str, tmp_path: Path) -> None:
    within_a_fifth(name, tmp_path)


@pytest.mark.reliability
@pytest.mark.parametrize("name", CONFIGS)
def test_estimate(name: str, tmp_path: Path) -> None:
    within_a_fifth(name, tmp_path)


HUGE = {
    "n_envs=2e9": "n_envs=2000000000 needs ",
    "agent.horizon=1e9": "agent.horizon=1000000000 needs ",
    "agent.network.hidden=[1e9]": "agent.network.hidden=[1000000000] needs ",
    "agent=a2c agent.network.hidden=[1e6,1e6] engine.fused=false": "agent.network.hidden=[1000000,1000000] needs ",
    "agent.network=lstm agent.network.units=[1e9]": "agent.network.units=[1000000000] needs ",
    "agent=dqn agent.replay.capacity=1e12": "agent.replay.capacity=1000000000000 needs ",
    "eval.episodes=1e9": "eval.episodes=1000000000 needs ",
    "eval.final_episodes=2e9": "eval.final_episodes=2000000000 needs ",
    "env=pendulum agent=td3 agent.network.hidden=[1e6,1e6]": "agent.network.hidden=[1000000,1000000] needs ",
}


@pytest.mark.parametrize("arguments", HUGE)
def test_what_does_not_fit_is_refused(arguments: str) -> None:
    with pytest.raises(UserError) as refused:
        compose(["env=cartpole", "device=cpu", *arguments.split()])
    line, key = str(refused.value), HUGE[arguments].partition("=")[0]
    assert line.startswith(HUGE[arguments]) and "\n" not in line
    assert "this machine has free" in line and re.search(rf": lower {re.escape(key)}(, \d+ fits)?$", line)
    assert line.endswith(" fits") == ("[" not in arguments)


def test_what_fits_is_said_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warprun.config.memory_estimate.available_memory", lambda: 4 << 30)
    given = ["env=cartpole", "agent=ppo", "device=cpu", "concurrency.threads=1"]
    with pytest.raises(UserError, match=r"this machine has free 4\.0 GiB: lower n_envs, \d+ fits$") as refused:
        compose([*given, "n_envs=1e9"])
    fits = int(str(refused.value).split()[-2])
    compose([*given, f"n_envs={fits}"])
    with pytest.raises(UserError, match="lower n_envs"):
        compose([*given, f"n_envs={fits * 1.1:.0f}"])


@pytest.mark.by_default(0)
def test_a_setting_that_costs_memory_raises_the_estimate() -> None:
    def total(*overrides: str) -> int:
        config = compose(["env=pendulum", "device=cpu", "concurrency.threads=1", *overrides])
        return estimate(config, load_environment(config.env)[0], False).bytes

    for agent in ("ppo", "a2c", "ddpg", "td3", "sac"):
        least = total(f"agent={agent}")
        assert total(f"agent={agent}", "n_envs=100000") > least + 100_000 * 20
        assert total(f"agent={agent}", "agent.network.hidden=[1024,1024]") > least + 2**20 * 16
        assert total(f"agent={agent}", "concurrency.threads=64") > least
        assert total(f"agent={agent}", "eval.episodes=100000") > least + 1_100_000 * 64
    least = total("agent=td3", "agent.replay.capacity=1000000")
    assert total("agent=td3", "agent.replay.capacity=1000000", "agent.replay.prioritized=true") > least + 4_000_000
    assert total("agent=td3") > total("agent=ddpg")
    least = total("env=cartpole", "agent=dqn")
    assert total("env=cartpole", "agent=dqn", "agent.quantiles=500") > least + 64 * 500**2 * 4 * 4


def test_constants_are_those_of_the_code() -> None:
    from warprun.kernels import simd
    from warprun.learning import replay, slices
    from warprun.learning.kernels.cpu import gradient, updates
    from warprun.runs import evaluation

    assert simd.COLUMNS == byte_counts.COLUMNS
    assert gradient.SHARES == byte_counts.ON_POLICY_SHARES
    assert gradient.CACHE_BYTES == byte_counts.GRADIENT_BLOCKS_BYTES
    assert updates.SHARE_BLOCKS * simd.COLUMNS == byte_counts.OFF_POLICY_SHARE_ROWS
    assert (slices.ROWS, slices.TOGETHER) == (byte_counts.SLICE_ROWS, byte_counts.SLICES_TOGETHER)
    assert replay.BRANCHES == byte_counts.BRANCHES
    assert evaluation.CHUNK == EVALUATION_STEPS


def test_replay_and_networks_are_counted_exactly() -> None:
    import torch

    from warprun.learning.network_settings import NetworkConfig
    from warprun.learning.networks import ActorCritic
    from warprun.learning.off_policy_settings import OffPolicyConfig, ReplayConfig
    from warprun.learning.optimizers import OPTIMIZERS as CLASSES
    from warprun.learning.replay import Replay
    from warprun.learning.settings import OptimizerConfig
    from warprun.spec import Box, GroupSpec

    group = GroupSpec("agent", 1, Box(3), Box(2, -1.0, 1.0))
    for capacity in (1, 16, 17, 5000):
        for prioritized in (False, True):
            config = OffPolicyConfig(replay=ReplayConfig(capacity=capacity, prioritized=prioritized))
            replay = Replay(config, group, torch.device("cpu"), n_envs=1, seed=0)
            held = [*replay.ring, *([replay.tree.priority, replay.tree.sums] if prioritized else [])]
            assert byte_counts.ring(capacity, 24, 2, prioritized) == sum(part.numel() * part.element_size() for part in held)
    network = ActorCritic(Box(3), 2, NetworkConfig(hidden=[5, 7]))
    assert byte_counts.parameters(3, 3, [5, 7]) == sum(p.numel() for p in network.parameters())
    for name in OPTIMIZERS:
        held = [tensor for tensor in CLASSES[name](torch.zeros(9), OptimizerConfig(name)).tensors().values() if tensor.numel() == 9]
        assert byte_counts.optimizer_tensors(name) == len(held)


def test_limits_of_control_groups_above_the_process_count(tmp_path: Path) -> None:
    """SLURM limits the group of a job or step, and puts processes into groups below it."""
    task = tmp_path / "mounted" / "job_7" / "step_0" / "task_0"
    task.mkdir(parents=True)
    membership = tmp_path / "cgroup"
    membership.write_text("0::/job_7/step_0/task_0\n")
    (task / "memory.max").write_text("max\n")
    (task.parent / "memory.max").write_text("5000\n")
    (task.parents[1] / "memory.max").write_text("9000\n")
    (task.parents[1] / "memory.current").write_text("6000\n")
    (task.parents[1] / "memory.stat").write_text("anon 1000\ninactive_file 4500\n")
    (tmp_path / "memory.max").write_text("1\n")  # outside
    assert list(left_in_cgroups(membership, tmp_path / "mounted")) == [5000, 7500]


def test_limits_of_control_groups_of_version_1(tmp_path: Path) -> None:
    group = tmp_path / "mounted" / "memory" / "job_7"
    group.mkdir(parents=True)
    membership = tmp_path / "cgroup"
    membership.write_text("5:cpu:/elsewhere\n4:memory:/job_7\n")
    (group / "memory.limit_in_bytes").write_text("9000\n")
    (group / "memory.usage_in_bytes").write_text("6000\n")
    (group / "memory.stat").write_text("cache 5000\ntotal_inactive_file 1000\n")
    assert list(left_in_cgroups(membership, tmp_path / "mounted")) == [4000]


def test_an_evaluation_counts_its_episodes_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["env=cartpole", "agent=dqn", "device=cpu", "concurrency.threads=1", "agent.replay.capacity=1e9", "n_envs=1e6"]
    monkeypatch.setattr("warprun.config.memory_estimate.available_memory", lambda: 1 << 60)
    config = compose([*given, "eval.final_episodes=1e9"])
    environment = load_environment(config.env)[0]
    monkeypatch.setattr("warprun.config.memory_estimate.available_memory", lambda: 1 << 30)
    check_evaluation_memory(config, environment, 100)
    with pytest.raises(UserError, match=r"^an evaluation with episodes=10000000 needs .*: lower episodes$"):
        check_evaluation_memory(config, environment, 10_000_000)
    monkeypatch.setattr("warprun.config.memory_estimate.available_memory", lambda: 1 << 20)
    with pytest.raises(UserError, match=r": use a machine with more memory$"):
        check_evaluation_memory(config, environment, 100)


def test_captures_keep_what_an_update_works_with() -> None:
    config = compose(["env=cartpole", "agent=a2c", "n_envs=10000", "engine.gradients=torch"])
    environment, _ = load_environment(config.env)
    parts = estimate(config, environment, on_gpu=True).parts
    assert parts["CUDA graphs"] >= 4 * 10_000 * config.agent.horizon * 64
    assert estimate(config, environment, on_gpu=False).parts["CUDA graphs"] == 0
    kernels = replace(config, engine=replace(config.engine, gradients="kernels"))  # which keep no activations, but sums of blocks
    by_kernels = estimate(kernels, environment, on_gpu=True).parts
    assert by_kernels["CUDA graphs"] < parts["CUDA graphs"]
    assert by_kernels["networks"] > parts["networks"]
    eager = replace(config, engine=replace(config.engine, capture=False))
    assert estimate(eager, environment, on_gpu=True).parts["CUDA graphs"] == 0


@pytest.mark.parametrize("works", [True, False])
def test_the_memory_of_a_gpu_counts_if_a_kernel_runs_there(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warprun.config.memory_estimate.why_no_cuda", lambda: None)
    monkeypatch.setattr("warprun.config.memory_estimate.cuda_memory", lambda: 2**33)
    monkeypatch.setattr("warprun.simulation.device.cuda_problem", lambda: None if works else "it is busy")
    found, there = _memory_of_device(compose(["env=cartpole", "agent=a2c"]))
    assert found == works and (there == 2**33) == works


def test_the_largest_of_some_runs_on_a_gpu() -> None:
    configs = [compose(["env=cartpole", "device=cpu", f"n_envs={n_envs}"]) for n_envs in (10, 100_000, 1000)]
    environment, _ = load_environment(configs[1].env)
    assert most_on_gpu(configs) == estimate(configs[1], environment, on_gpu=True).bytes > CUDA_CONTEXT
    assert most_on_gpu([]) == 0


def test_every_process_of_a_run_takes_memory_of_its_gpu() -> None:
    given = ["env=cartpole", "n_envs=12", "concurrency=async"]
    one, three = (compose([*given, f"concurrency.processes={count}"]) for count in ("null", "3"))
    assert most_on_gpu([three]) == 3 * most_on_gpu([one]) > 3 * CUDA_CONTEXT
