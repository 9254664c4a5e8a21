"""`warprun bench`: the numbers it reports and the files it writes; and the plan of a run, what computes what."""

import json
from pathlib import Path
from statistics import median

import pytest
import torch

from tests.environments import pinball
from warprun.cli import main as cli
from warprun.config.compose import compose
from warprun.config.planning import make_plan
from warprun.config.schema import load_environment
from warprun.errors import UserError
from warprun.learning.on_policy import flops_per_row
from warprun.runs.bench import ROUNDS, _Cell
from warprun.simulation import cuda_layers


@pytest.mark.by_default(0)
def test_bench_writes_what_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("warprun.runs.bench.SECONDS", 0.02)
    out = tmp_path / "bench"
    assert cli.run(["bench", "env=cartpole", "agent=a2c", "sizes=10,100", "threads=1", "device=cpu", f"out={out}"]) == 0
    measured = json.loads((out / "bench.json").read_text())["measurements"]
    assert [m["n_envs"] for m in measured] == [10, 100]
    for m in measured:
        assert m["path"] == "fused"
        assert m["rollout_steps_per_s"] > m["training_steps_per_s"] > 0
        assert len(m["training_rounds"]) == ROUNDS >= 5  # enough for an interval
        assert m["training_steps_per_s"] == median(m["training_rounds"])
        assert 0 < m["update_share"] < 1
        assert 0 < m["limit_share"] < 1
        assert m["bytes_per_env"] > 16 * 4 * 4  # 16 observations of 4 float32
    assert "n_envs" in capsys.readouterr().out


def test_an_interrupted_bench_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("warprun.runs.bench.bench", interrupted)
    assert cli.run(["bench", "env=cartpole", "sizes=10", "threads=1", "device=cpu", f"out={tmp_path / 'bench'}"]) == 130
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_agents_that_learn_from_replay_are_measured_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warprun.runs.bench.SECONDS", 0.02)
    given = ["agent=dqn", "agent.learning_starts=10", "sizes=10", "threads=1", "device=cpu"]
    assert cli.run(["bench", "env=cartpole", *given, f"out={tmp_path}"]) == 0
    assert json.loads((tmp_path / "bench.json").read_text())["measurements"][0]["limit_share"] is None


@pytest.mark.by_default(1)
@pytest.mark.parametrize(("env", "agent"), [("cartpole", "dqn"), ("pendulum", "td3"), ("pendulum", "sac")])
def test_the_kernels_of_agents_that_explore_are_those_of_training(env: str, agent: str) -> None:
    """Random actions by the agent's own shares, from learners that are past their warm-up."""
    config = compose([f"env={env}", f"agent={agent}", "agent.learning_starts=60", "n_envs=8", "concurrency.threads=1", "device=cpu"])
    cell = _Cell(config)
    learner = cell.agent.learners[0]
    assert learner.updates > 0
    assert cell.agent.env_steps >= 60
    # All random, and then none: the engine reads the agent's tensor at every step.
    actions = []
    for share in (1.0, 0.0):
        learner.exploration.copy_(torch.tensor([share, 0.0, 1.0]))
        taken = cell.simulator.collect(cell.agent.act)
        group = taken.groups["agent"]
        best = cell.agent.learners[0].policy(learner.normalized(group.obs[0].flatten(0, 1)))
        best = best.argmax(-1, keepdim=True) if agent == "dqn" else best[:, :1].tanh() if agent == "sac" else best
        actions.append(torch.allclose(best.float(), group.action[0].flatten(0, 1).float(), atol=1e-4))
    assert actions == [False, True]


@pytest.mark.parametrize("arguments", [["sizes=0"], ["sizes=many"], ["threads=0"], ["nonsense=1"], ["sizes=1e12"], ["out=/dev/null"]])
def test_what_cannot_be_measured_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_operations_of_a_step() -> None:
    # A layer of n weights: n multiplications and n additions forward, twice as many backward, and forward again to learn.
    assert flops_per_row(weights=100, passes=0) == 200
    assert flops_per_row(weights=100, passes=4) == 200 + 4 * 600


# The plan of a run: what kernels compute, and the line that says so ---------------------------------------------------

MEMORY = "stepwise (torch computes networks with memory, agent.network.type="
UNITS = "kernels compute recurrent layers whose units are a multiple of 16, agent.network.units=[20]"
WIDE = "a layer has more units than the shared memory of a GPU's blocks holds"
EXTERNAL = "stepwise (the environment is not made of kernels)"
CAPTURED = "; captured in CUDA graphs"
CASES = [
    ("kernels", "cpu", "", "fused"),
    ("kernels", "cpu", "engine.fused=false", "stepwise (engine.fused=false)"),
    ("kernels", "cpu", "agent.network.activation=elu", "stepwise (agent.network.activation=elu; kernels compute tanh and relu)"),
    ("kernels", "cpu", "agent=dqn agent.dueling=true agent.quantiles=5", "fused"),
    ("kernels", "cpu", "agent=dqn agent.value_rescaling=1e-3", "fused"),
    ("kernels", "cpu", "engine.gradients=torch", "fused rollout, update by torch (engine.gradients=torch)"),
    ("kernels", "cpu", "agent=dqn agent.network=gru", f"{MEMORY}gru), recurrent layers by kernels"),
    ("kernels", "cpu", "agent=dqn agent.network=lstm agent.network.units=[20]", f"{MEMORY}lstm; {UNITS})"),
    ("kernels", "cpu", "agent.network=lstm agent.network.units=[20] engine.gradients=kernels", "fused"),
    ("kernels", "cpu", "agent.network=lstm engine.gradients=torch", "fused rollout, update by torch (engine.gradients=torch)"),
    (
        "kernels",
        "cpu",
        "agent.network=lstm agent.network.activation=elu",
        "stepwise (agent.network.activation=elu; kernels compute tanh and relu), recurrent layers by kernels",
    ),
    ("kernels", "cuda", "agent.network=lstm", f"{MEMORY}lstm), recurrent layers by kernels{CAPTURED}"),
    ("kernels", "cuda", "agent.network=gru agent.network.units=[64,256]", f"{MEMORY}gru), recurrent layers by kernels{CAPTURED}"),
    (
        "kernels",
        "cuda",
        "agent.network=lstm agent.network.units=[512]",
        f"{MEMORY}lstm), recurrent layers by kernels in float32 "
        f"(tensor cores compute up to 256 units: more have not enough registers){CAPTURED}",
    ),
    ("kernels", "cuda", "agent.network=lstm agent.network.units=[528]", f"{MEMORY}lstm), recurrent layers by torch ({WIDE}){CAPTURED}"),
    ("kernels", "cuda", "agent.network=lstm engine.gradients=torch", f"{MEMORY}lstm){CAPTURED}"),
    ("kernels", "cuda", "engine.gradients=kernels", f"fused{CAPTURED}"),
    ("kernels", "cuda", "engine.gradients=torch", f"fused rollout, update by torch (engine.gradients=torch){CAPTURED}"),
    ("kernels", "cuda", "agent=dqn", f"fused{CAPTURED}"),
    ("kernels", "cuda", "agent=dqn agent.dueling=true", f"fused{CAPTURED}"),
    # 3,067 rows fit into the shared memory of a rollout, and not the 13 more of a gradient.
    (
        "kernels",
        "cuda",
        "agent=dqn agent.network.hidden=[3060]",
        f"fused rollout, update by torch (a network has more rows than the shared memory of a GPU's blocks holds){CAPTURED}",
    ),
    # 3,071 rows fit into the shared memory of a rollout, and not the 6 more of a gradient.
    (
        "kernels",
        "cuda",
        "agent.network.hidden=[3064]",
        f"(a network has more rows than the shared memory of a GPU's blocks holds){CAPTURED}",
    ),
    ("kernels", "cuda", "concurrency=async", f"fused{CAPTURED}"),
    (
        "kernels",
        "cuda",
        "concurrency=async concurrency.learners=2",
        "; not captured (learners that get no rollout take no part in an update)",
    ),
    ("external", "cpu", "", f"{EXTERNAL}, networks and gradients by kernels"),
    ("external", "cpu", "agent.network=gru", f"{EXTERNAL}, networks and gradients by kernels"),
    ("external", "cpu", "engine.fused=false", f"{EXTERNAL}, networks by torch (engine.fused=false)"),
    ("external", "cpu", "agent=dqn agent.optimizer.name=rmsprop", f"{EXTERNAL}, update by torch (agent.optimizer.name=rmsprop)"),
    ("external", "cuda", "", f"{EXTERNAL}; not captured (the environment is not made of kernels)"),
]


@pytest.mark.parametrize(("kind", "device", "overrides", "told"), CASES)
def test_the_plan_says_what_computes_what(kind: str, device: str, overrides: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_layers, "capability", lambda: (9, 0))
    config = compose(["env=cartpole", "device=cpu", "tuned=none", "n_envs=1", *overrides.split()])
    environment = load_environment(config.env)[0] if kind == "kernels" else pinball.environment
    plan = make_plan(config, environment, device)
    assert str(plan).endswith(told)
    assert plan.fused == str(plan).startswith("fused")


KIB = 1024


@pytest.mark.parametrize(
    ("capability", "shared_bytes", "overrides", "told"),
    [
        ((9, 0), 227 * KIB, "agent.network.hidden=[256,256]", "fused;"),
        ((8, 6), 99 * KIB, "agent.network.hidden=[256,256]", "fused;"),
        # More rows than a block has for 16 columns, but not for 4.
        ((8, 6), 99 * KIB, "agent.network.hidden=[1200]", "fused;"),
        (
            (7, 5),
            64 * KIB,
            "agent.network=lstm",
            f"{MEMORY}lstm), recurrent layers by kernels in float32 (tensor cores multiply bfloat16 from compute capability 8.0 on);",
        ),
        ((7, 5), 64 * KIB, "", "fused rollout, layers in float32 (tensor cores multiply bfloat16 from compute capability 8.0 on);"),
    ],
)
def test_the_plan_knows_the_shared_memory_and_the_tensor_cores_of_a_gpu(
    capability: tuple[int, int], shared_bytes: int, overrides: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_layers, "capability", lambda: capability)
    monkeypatch.setattr(cuda_layers, "most_shared_bytes", lambda: shared_bytes)
    config = compose(["env=cartpole", "agent=a2c", "device=cpu", "tuned=none", "n_envs=1", *overrides.split()])
    assert str(make_plan(config, load_environment(config.env)[0], "cuda")).startswith(told)


@pytest.mark.parametrize(
    ("shared_bytes", "rows", "on_tensor_cores"), [(227, 1564, True), (99, 1564, False), (99, 1056, True), (99, 1057, False)]
)
def test_what_does_not_fit_into_shared_memory_is_computed_in_float32(
    shared_bytes: int, rows: int, on_tensor_cores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_layers, "capability", lambda: (8, 6))
    monkeypatch.setattr(cuda_layers, "most_shared_bytes", lambda: shared_bytes * KIB)
    assert (cuda_layers.chosen(rows) is cuda_layers.TENSOR_CORES) is on_tensor_cores
    assert cuda_layers.rows_fit(rows)


def test_kernels_that_are_wanted_and_cannot_be_are_an_error() -> None:
    with pytest.raises(UserError, match=r"^engine\.gradients=kernels: kernels cannot \(agent\.network\.activation=elu"):
        compose(["env=cartpole", "device=cpu", "agent.network.activation=elu", "engine.gradients=kernels"])
