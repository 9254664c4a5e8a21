"""The estimate of a run's memory, what it refuses, and what is there."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.words import words
from warprun.config.compose import compose
from warprun.config.memory_estimate import CUDA_CONTEXT, EVALUATION_STEPS, _memory_of_device, check_evaluation_memory, estimate, most_on_gpu
from warprun.config.schema import load_environment
from warprun.errors import UserError
from warprun.kernels.driver import left_in_cgroups
from warprun.learning.settings import byte_counts
from warprun.learning.settings.agent import OPTIMIZERS
from warprun.learning.settings.networks import GATES

COMMON = words("""
    tuned=none device=cpu eval.every=never stop_when_solved=false log.live=false log.tensorboard=false concurrency.threads=1
""")
WIDE = "n_envs=64 total_steps=1024 eval.final_episodes=10 agent.network.hidden"
FEW = "n_envs=16 total_steps=1200 eval.final_episodes=10 agent.replay.capacity"
CONFIGS = {
    "small": "env=cartpole agent=ppo total_steps=65536",
    "ppo-many": "env=cartpole agent=ppo agent.epochs=1 n_envs=200000 total_steps=6400000",
    "ppo-stepwise": "env=cartpole agent=ppo agent.epochs=1 n_envs=100000 total_steps=1600000 engine.fused=false",
    "ppo-wide": f"env=cartpole agent=ppo agent.epochs=1 {WIDE}=[2048,2048]",
    "ppo-separate": f"env=cartpole agent=ppo agent.epochs=1 {WIDE}=[1024,1024] agent.network.shared=false",
    "ppo-kl": f"env=cartpole agent=ppo agent.epochs=1 {WIDE}=[1024,1024] agent.target_kl=0.1",
    "ppo-long": "env=cartpole agent=ppo agent.epochs=1 n_envs=1000 total_steps=2000000 agent.horizon=1000",
    "ppo-memory": "env=cartpole agent=ppo agent.epochs=1 agent.network=lstm agent.horizon=64 n_envs=20000 total_steps=2560000",
    "a2c-memory": "env=cartpole agent=a2c agent.network=gru agent.network.units=[256] agent.horizon=500 n_envs=256 total_steps=256000",
    "a2c-many": "env=cartpole agent=a2c n_envs=200000 total_steps=6400000 concurrency.threads=2",
    "a2c-nstep": "env=pendulum agent=a2c n_envs=100000 total_steps=1600000 agent.advantage=nstep agent.optimizer.name=rmsprop"
    " eval.final_episodes=100",
    "a2c-torch": f"env=cartpole agent=a2c {WIDE}=[512,512] n_envs=1024 total_steps=16384 agent.network.activation=elu",
    "many-episodes": "env=cartpole agent=a2c total_steps=65536 eval.final_episodes=50000",
    "covid": "env=covid agent=ppo agent.epochs=1 n_envs=1000 total_steps=16000 eval.final_episodes=10",
    "catalysis": "env=catalysis agent=ppo agent.epochs=1 n_envs=20000 total_steps=320000 eval.final_episodes=10",
    "dqn": "env=cartpole agent=dqn n_envs=64 total_steps=4000",
    "dqn-replay": "env=cartpole agent=dqn n_envs=64 total_steps=4000 agent.replay.capacity=10000000",
    "dqn-prioritized": "env=cartpole agent=dqn n_envs=64 total_steps=4000 agent.replay.capacity=5000000 agent.replay.prioritized=true",
    "dqn-dueling": f"env=cartpole agent=dqn {WIDE}=[1024,1024] n_envs=16 total_steps=1100 agent.dueling=true",
    "td3-wide": f"env=pendulum agent=td3 {WIDE}=[1024,1024] n_envs=16 total_steps=1100",
    "ddpg-stepwise": f"env=pendulum agent=ddpg {FEW}=5000000 engine.fused=false",
    "td3-replay": f"env=pendulum agent=td3 {FEW}=3000000 agent.replay.prioritized=true",
}
TRAIN = """
import sys
from warprun.cli.main import run
code = run(sys.argv[1:])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("peak", 1024 * int(peak.split()[1]))
sys.exit(code)
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "small" else pytest.mark.reliability) for name in CONFIGS]
)
def test_the_peak_of_a_run_is_within_a_fifth_of_the_estimate(name: str, tmp_path: Path) -> None:
    overrides = [*COMMON, *CONFIGS[name].split()]  # of two values of a setting the last one counts
    for folder in ("first", "again"):
        command = [sys.executable, "-c", TRAIN, *overrides, f"run_dir={tmp_path / folder}"]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        if "compiling" not in said:  # which needs memory
            break
    config = compose(overrides)
    estimated = estimate(config, load_environment(config.env)[0], False).bytes
    assert 0.8 <= estimated / int(said.split("peak ")[-1].split()[0]) <= 1.2


HUGE = [
    "n_envs=2000000000",
    "agent.horizon=1000000000",
    "agent.network.hidden=[1000000000]",
    "agent=a2c engine.fused=false agent.network.hidden=[1000000,1000000]",
    "agent.network=lstm agent.network.units=[1000000000]",
    "agent=dqn agent.replay.capacity=1000000000000",
    "eval.episodes=1000000000",
    "eval.final_episodes=2000000000",
    "env=pendulum agent=td3 agent.network.hidden=[1000000,1000000]",
]


@pytest.mark.parametrize("arguments", HUGE)
def test_what_does_not_fit_is_refused(arguments: str) -> None:
    with pytest.raises(UserError) as refused:
        compose(["env=cartpole", "device=cpu", *arguments.split()])
    line, last = str(refused.value), arguments.split()[-1]
    assert line.startswith(f"{last} needs ") and "\n" not in line
    assert "this machine has free" in line and re.search(rf": lower {re.escape(last.partition('=')[0])}(, \d+ fits)?$", line)
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
    by_torch = ("env=cartpole", "agent=dqn", "engine.gradients=torch")
    assert total(*by_torch, "agent.quantiles=500") > total(*by_torch) + 64 * 500**2 * 4 * 4


@pytest.mark.parametrize(("kind", "inputs", "units"), [("lstm", 64, 64), ("gru", 7, 256), ("lstm", 256, 256)])
def test_sums_of_gradients_of_recurrent_layers_count_on_tensor_cores(
    kind: str, inputs: int, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from warprun.learning.kernels.cuda import recurrent_slopes, recurrent_tensor

    monkeypatch.setattr(recurrent_slopes, "multiprocessors", lambda device: byte_counts.MULTIPROCESSORS)
    sums = recurrent_slopes.WeightSlopes(kind, inputs, units, torch.device("cpu"))._sums
    sources, _ = recurrent_tensor.sources(kind, units, torch.device("cpu"))
    held = 4 * (sums.partial.numel() + sums.total.numel() + sources.numel() + len(sources))
    assert held == byte_counts.recurrent_gradient(inputs, units, GATES[kind])

    given = ["env=cartpole", "agent=ppo", "device=cpu", f"agent.network={kind}", f"agent.network.units=[{units},{units}]"]
    config = compose([*given, f"agent.network.hidden=[{inputs}]", "agent.network.shared=false"])
    environment, _ = load_environment(config.env)
    parts = []
    for capability in ((7, 5), (9, 0)):
        monkeypatch.setattr("warprun.simulation.cuda_layers.capability", lambda given=capability: given)
        parts.append(estimate(config, environment, on_gpu=True).parts)
    # Policy and value have layers of the same sizes, which share their memory.
    layers = {(inputs, units), (units, units)}
    more = sum(byte_counts.recurrent_gradient(*each, GATES[kind]) for each in layers)
    assert parts[1] == {**parts[0], "networks": parts[0]["networks"] + more}


def test_constants_are_those_of_the_code() -> None:
    from warprun.kernels import simd
    from warprun.learning import replay, slices
    from warprun.learning.kernels import choose, policy_loss
    from warprun.learning.kernels.cpu import gradient, updates
    from warprun.learning.settings.plan import POLICY_ROWS
    from warprun.runs import evaluation

    assert simd.COLUMNS == byte_counts.COLUMNS
    assert gradient.SHARES == byte_counts.SHARES
    assert gradient.CACHE_BYTES == byte_counts.GRADIENT_BLOCKS_BYTES
    assert (choose.SHARE_TILES, updates.SHARE_TILES) == (byte_counts.ON_POLICY_TILES, byte_counts.OFF_POLICY_TILES)
    assert policy_loss.COMPONENTS == POLICY_ROWS
    own = byte_counts.SLICE_ROWS, byte_counts.SLICES_TOGETHER, byte_counts.SEQUENCES
    assert own == (slices.ROWS, slices.TOGETHER, slices.SEQUENCES)
    assert replay.BRANCHES == byte_counts.BRANCHES
    assert evaluation.CHUNK == EVALUATION_STEPS


def test_replay_and_networks_are_counted_exactly() -> None:
    import torch

    from tests.learning.torch_replay import TorchReplay
    from warprun.learning.networks import ActorCritic
    from warprun.learning.optimizers import OPTIMIZERS as CLASSES
    from warprun.learning.replay import Replay
    from warprun.learning.settings.agent import OptimizerConfig
    from warprun.learning.settings.networks import NetworkConfig
    from warprun.learning.settings.off_policy import OffPolicyConfig, ReplayConfig
    from warprun.spec import Box, GroupSpec

    group = GroupSpec("agent", 1, Box(3), Box(2, -1.0, 1.0))
    for capacity in (1, 16, 17, 5000):
        for prioritized in (False, True):
            config = OffPolicyConfig(replay=ReplayConfig(capacity=capacity, prioritized=prioritized))
            replay = Replay(config, group, torch.device("cpu"), 1, 0, None, TorchReplay)
            held = [*replay.ring, *([replay.tree.priority, replay.tree.sums] if prioritized else [])]
            assert byte_counts.ring(capacity, 24, 2, prioritized) == sum(part.numel() * part.element_size() for part in held)
    network = ActorCritic(Box(3), 2, NetworkConfig(hidden=[5, 7]))
    assert byte_counts.parameters(3, 3, [5, 7]) == sum(p.numel() for p in network.parameters())
    for name in OPTIMIZERS:
        held = [tensor for tensor in CLASSES[name](torch.zeros(9), OptimizerConfig(name)).tensors().values() if tensor.numel() == 9]
        assert byte_counts.optimizer_tensors(name) == len(held)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)


def test_limits_of_control_groups_above_the_process_count(tmp_path: Path) -> None:
    """SLURM limits the group of a job or step, and puts processes into groups below it."""
    (tmp_path / "cgroup").write_text("0::/job_7/step_0/task_0\n")
    job = tmp_path / "mounted" / "job_7"
    write(job / "step_0" / "task_0", max="max\n")
    write(job / "step_0", max="5000\n")
    write(job, max="9000\n", current="6000\n", stat="anon 1000\ninactive_file 4500\n")
    write(tmp_path, max="1\n")  # outside
    assert list(left_in_cgroups(f"{tmp_path}/cgroup", f"{tmp_path}/mounted")) == [5000, 7500]
    # of version 1
    (tmp_path / "cgroup").write_text("5:cpu:/elsewhere\n4:memory:/job_7\n")
    one = tmp_path / "mounted" / "memory" / "job_7"
    write(one, limit_in_bytes="9000\n", usage_in_bytes="6000\n", stat="cache 5000\ntotal_inactive_file 1000\n")
    assert list(left_in_cgroups(f"{tmp_path}/cgroup", f"{tmp_path}/mounted")) == [4000]


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


def test_the_largest_of_some_runs_on_a_gpu_and_every_process_of_one_count() -> None:
    configs = [compose(["env=cartpole", "device=cpu", f"n_envs={n_envs}"]) for n_envs in (10, 100_000, 1000)]
    environment, _ = load_environment(configs[1].env)
    assert most_on_gpu(configs) == estimate(configs[1], environment, on_gpu=True).bytes > CUDA_CONTEXT
    assert most_on_gpu([]) == 0
    given = ["env=cartpole", "n_envs=12", "concurrency=async"]
    one, three = (compose([*given, f"concurrency.processes={count}"]) for count in ("null", "3"))
    assert most_on_gpu([three]) == 3 * most_on_gpu([one]) > 3 * CUDA_CONTEXT
