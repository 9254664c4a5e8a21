"""Networks of a user: made, trained by every agent, kept in the run folder, opened from there."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warprun
from tests.agents import build
from tests.learning.helpers import environment, rollout
from tests.policies.runs import SHORT, by_onnx
from tests.selection import few
from tests.test_docs import ROOT, files
from warprun.cli import main as cli
from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.learning.communicator import SingleProcess
from warprun.learning.critics import Critics
from warprun.learning.descent import Trained
from warprun.learning.networks import ActorCritic, own_network, training
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.run_folder import Named
from warprun.runs import checkpoint
from warprun.spec import Box, Discrete, GroupSpec, Spec

HEAD = "import torch\nfrom torch import nn\n\n\n"
NORMED = (
    HEAD
    + '''
from widths import WIDTH


class Normed(nn.Module):
    """Has running statistics, and a neighbouring file."""

    def __init__(self, inputs, outputs, width=WIDTH):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, rows):
        return self.layers(rows)
'''
)
ON_POLICY = ["agent.horizon=8", "total_steps=256"]
OFF_POLICY = ["agent.learning_starts=32", "agent.batch_size=16", "agent.utd_ratio=0.2", "total_steps=160"]
AGENTS = {
    "ppo": ["env=cartpole", "agent=ppo", *ON_POLICY],
    "a2c": ["env=pendulum", "agent=a2c", "agent.network.shared=false", *ON_POLICY],
    "dqn": ["env=cartpole", "agent=dqn", *OFF_POLICY],
    "ddpg": ["env=pendulum", "agent=ddpg", *OFF_POLICY],
    "td3": ["env=pendulum", "agent=td3", *OFF_POLICY],
    "sac": ["env=pendulum", "agent=sac", *OFF_POLICY],
}
MODULE = "agent.network.module=./nets/normed.py:Normed"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the network in a folder of its own."""
    write_network(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_network(place: Path) -> None:
    (place / "nets").mkdir()
    (place / "nets" / "normed.py").write_text(NORMED)
    (place / "nets" / "widths.py").write_text("WIDTH = 8\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    write_network(place)
    with chdir(place):
        return warprun.train([*SHORT, *AGENTS["ppo"], MODULE, "eval.every=never", "run_dir=run"]).folder.resolve()


@pytest.mark.by_default(1)
@pytest.mark.parametrize("agent", few(["a2c", "ppo", "dqn", "td3", "ddpg", "sac"], "ppo", "sac"))
def test_every_agent_trains_it_and_the_run_folder_has_all_of_it(
    home: Path, agent: str, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = warprun.train([*SHORT, *AGENTS[agent], MODULE, "run_dir=run"]).folder
    assert "rollout and update: stepwise (torch computes networks of your own, agent.network.module)" in capsys.readouterr().out
    obs = np.random.default_rng(0).normal(size=(50, 4 if "env=cartpole" in AGENTS[agent] else 3))
    action = warprun.load(folder).act(obs)

    # From another folder, without the files.
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.move(folder, elsewhere / "run")
    shutil.rmtree(home / "nets")
    monkeypatch.chdir(elsewhere)
    policy = warprun.load("run")
    np.testing.assert_array_equal(policy.act(obs), action)
    assert cli.run(["eval", "run", "episodes=4", "device=cpu"]) == 0
    assert cli.run(["resume=run", "total_steps=512"]) == 0
    assert warprun.load("run").env_steps == 512
    ones = torch.ones(1, obs.shape[1])
    assert (warprun.load("run").modules["agent"].policy_output(ones) != policy.modules["agent"].policy_output(ones)).any()
    assert cli.run(["export", "run", "policy.pt2"]) == 0
    if find_spec("onnxruntime") and find_spec("onnxscript"):
        assert cli.run(["export", "run", "policy.onnx"]) == 0
        found = by_onnx(Path("policy.onnx"), {"obs": obs.astype(np.float32)})["action"]
        np.testing.assert_allclose(found, warprun.load("run").act(obs), rtol=1e-4, atol=1e-5)
    assert cli.run(["export", "run", "policy.npz"]) == 2
    assert "is a module of yours (agent.network.module), not layers: export .onnx or .pt2" in capsys.readouterr().err


def test_a_stopped_run_continues_with_the_same_bits(home: Path, run: Path) -> None:
    """The running statistics are part of the state."""
    warprun.train([*SHORT, *AGENTS["ppo"], MODULE, "eval.every=never", "total_steps=512", "run_dir=whole"])
    shutil.copytree(run, "half")
    assert cli.run(["resume=half", "total_steps=512"]) == 0
    one, two = (checkpoint.load(Path(place)).tensors for place in ("whole", "half"))
    assert "agent/agent/buffers/policy.layers.1.running_mean" in one
    for name in one:
        if name.startswith("agent/"):
            assert torch.equal(one[name], two[name]), name


@pytest.mark.parametrize("mode", ["without a seal", "changed copy", "changed manifest", "link"])
def test_code_in_a_run_folder_of_somebody_else_does_not_run(home: Path, run: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(run, "run")).resolve()
    copy, manifest = folder / "networks" / "0" / "normed.py", folder / "networks" / "manifest.json"
    planted = NORMED + f"\nopen({str(home / 'canary')!r}, 'w').close()\n"
    trusted_too = mode in ("changed copy", "link")
    if mode == "without a seal":
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "another"))
    elif mode == "link":
        (home / "outside.py").write_text(NORMED)
        copy.unlink()
        copy.symlink_to(home / "outside.py")
    else:
        copy.write_text(planted)
    if mode == "changed manifest":
        content = json.loads(manifest.read_text())
        content["./nets/normed.py"]["files"]["normed"]["sha256"] = hashlib.sha256(planted.encode()).hexdigest()
        manifest.write_text(json.dumps(content))
    for trust in (False, True) if trusted_too else (False,):
        with pytest.raises(UserError, match=r"was altered after the run|is a link to a file outside|is not a run of yours") as failure:
            warprun.load(folder, trust=trust)
        assert "\n" not in str(failure.value)
        assert cli.run(["eval", "run", f"trust={str(trust).lower()}", "episodes=4"]) == 2
    assert not (home / "canary").exists()
    if not trusted_too:
        assert warprun.load(folder, trust=True).act(np.zeros(4)) in (0, 1)


def forward(rows: str) -> str:
    """Return a layer that computes with rows."""
    return f"class Net(nn.Linear):\n    def forward(self, rows):\n        return {rows}\n"


def made(arguments: str, *lines: str) -> str:
    """Return a module without a layer, or with lines in `__init__`."""
    body = "".join(f"        {line}\n" for line in ("super().__init__()", *lines))
    return f"class Net(nn.Module):\n    def __init__({arguments}):\n{body}"


TWO_BY_THREE = "of rows [2, 4] forward must return a float32 tensor [2, 3], not"
MISTAKES = {
    "no class": ("", "./net.py does not define Net"),
    "not a module": ("def Net(inputs, outputs):\n    pass\n", "Net: Net is <function Net"),
    "syntax": ("class Net(nn.Module)\n", "net.py:5: SyntaxError"),
    "import": ("import no_such_package\n", "net.py:5: ModuleNotFoundError: No module named 'no_such_package'"),
    "arguments": (made("self"), "takes 1 positional argument but 3 were given"),
    "raises": (made("self, inputs, outputs", "1 / 0"), "net.py:8 in __init__: ZeroDivisionError: division by zero"),
    "exits": (made("self, inputs, outputs", "raise SystemExit(3)"), "SystemExit: 3; a network cannot end the program"),
    "shape": (forward("super().forward(rows)[:, :1]"), f"{TWO_BY_THREE} torch.float32 (2, 1)"),
    "tuple": (forward("super().forward(rows), 0"), f"{TWO_BY_THREE} (tensor("),
    "float64": (forward("super().forward(rows).double()"), f"{TWO_BY_THREE} torch.float64 (2, 3)"),
    "constant": (forward("torch.zeros(len(rows), self.out_features)"), "forward must compute with parameters"),
    "in place": (forward("super().forward(rows.clamp_(-0.1, 0.1))"), "forward must not change the rows that it gets"),
    "frozen": (
        f"{forward('super().forward(rows)')}    def __init__(self, inputs, outputs):\n        super().__init__(inputs, outputs)\n"
        "        self.bias.requires_grad_(False)\n",
        "the parameter bias has requires_grad=False",
    ),
    "forward": (forward("self.missing(rows)"), "net.py:7 in forward: AttributeError: 'Net' object has no attribute 'missing'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str], case: str
) -> None:
    source, says = MISTAKES[case]
    (tmp_path / "net.py").write_text(HEAD + source)
    monkeypatch.chdir(tmp_path)
    line = refusal(*SHORT, *AGENTS["ppo"], "agent.network.module=./net.py:Net", "run_dir=run")
    assert line.startswith("warprun: error: agent.network.module=./net.py:Net")
    assert says in line
    assert not (tmp_path / "run").exists()


REFUSED = {
    "agent.network.module=./nonet.py:Net": "agent.network.module=./nonet.py:Net: there is no file ./nonet.py (working folder: ",
    "agent.network.module=./nets/normed.py": "agent.network.module='./nets/normed.py': give FILE.py:CLASS or MODULE:CLASS",
    "agent.network.kwargs.width=3": "agent.network.kwargs.width: arguments are for a network of your own; add agent.network.module=",
    f"agent.dueling=true {MODULE}": "agent.dueling=true splits",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_settings_that_cannot_work_are_refused(home: Path, setting: str) -> None:
    with pytest.raises(UserError) as failure:
        compose(["env=cartpole", "agent=dqn", *setting.split()])
    assert str(failure.value).startswith(REFUSED[setting])


def test_a_module_beside_a_file_manifest_json_is_no_copy(home: Path) -> None:
    (home / "manifest.json").write_text("{}")
    (home / "0").mkdir()
    for place in ("nets.normed", "0"):
        assert not Named(place, "Normed").is_copy


def test_layers_that_are_not_used_get_no_gradient(home: Path) -> None:
    source = (
        HEAD
        + "class Half(nn.Linear):\n    def __init__(self, i, o):\n        super().__init__(i, o)\n        self.other = nn.Linear(2, 2)\n"
    )
    (home / "half.py").write_text(source)
    trained = Trained(own_network(3, 2, "./half.py:Half", {}), OffPolicyConfig(), 0.1, torch.device("cpu"))
    before = [parameter.clone() for parameter in trained.layer_parameters]
    trained.step(trained.gradient(trained.network(torch.ones(4, 3)).sum(), SingleProcess(), 4))
    assert [bool(torch.equal(a, b)) for a, b in zip(before, trained.layer_parameters, strict=True)] == [False, False, True, True]


def test_one_class_serves_all(home: Path) -> None:
    module = "./nets/normed.py:Normed"
    shared = ActorCritic(Box(3), 2, NetworkConfig(module=module, kwargs={"width": 5}))
    separate = ActorCritic(Box(3), 2, NetworkConfig(module=module, shared=False))
    for network in (shared, separate):
        output, value = network.eval()(torch.randn(7, 3))
        assert (output.shape, value.shape) == ((7, 2), (7,))
    assert {parameter.shape[0] for parameter in shared.policy.parameters()} == {5, 3}
    critics = Critics(Box(3), 2, LayersConfig(module=module), 2).eval()
    assert critics(torch.randn(7, 3), torch.randn(7, 2)).shape == (2, 7)
    assert type(own_network(3, 2, "torch.nn:Linear", {"bias": False})) is torch.nn.Linear


def test_a_group_can_have_its_own(home: Path) -> None:
    groups = {"many": {"network": {"module": "./nets/normed.py:Normed"}}}
    agent = build("ppo", environment(one=Discrete(3), many=Discrete(4), real=Box(2)), groups=groups)
    kinds = [type(learner.policy.network.policy).__name__ for learner in agent.learners]
    assert kinds == ["Sequential", "Normed", "Sequential"]


def test_running_statistics_change_in_gradient_steps_only(home: Path) -> None:
    """They take in every row of an update once, in order, whatever the number of threads."""
    env = environment(one=Discrete(3))
    found = []
    for threads in (1, 2):
        agent: Any = build("a2c", env, n_envs=3000, threads=threads, network=NetworkConfig(module="./nets/normed.py:Normed"))
        taken = rollout(env, n_envs=3000)
        (learner,) = agent.learners
        statistics = dict(learner.policy.network.named_buffers())
        mean = statistics["policy.layers.1.running_mean"]
        agent.act(taken, 0)
        assert not mean.any()
        agent.update(taken, 0.0)
        assert mean.any()
        assert int(statistics["policy.layers.1.num_batches_tracked"]) == 1
        found.append(torch.cat([mean, learner.policy.parameters]))
    assert torch.equal(*found)


def test_target_networks_copy_running_statistics(home: Path) -> None:
    spec = Spec((GroupSpec("agent", 1, Box(3), Discrete(2)),))
    agent: Any = build("dqn", spec, network=LayersConfig(module="./nets/normed.py:Normed"))
    values = agent.learners[0].values
    with training(values.network):
        values.network(torch.randn(16, 3))
    assert not torch.equal(values.network.layers.layers[1].running_mean, values.target.layers.layers[1].running_mean)
    values.update_target(0.5)
    assert torch.equal(values.network.layers.layers[1].running_mean, values.target.layers.layers[1].running_mean)
    assert {"buffers/layers.layers.1.running_mean", "target_buffers/layers.layers.1.running_mean"} <= values.tensors().keys()


@pytest.mark.long
def test_the_network_of_the_page_trains_with_the_agents_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "extending.md"
    (tmp_path / "mynet.py").write_text(files(page)["mynet.py"])
    commands = re.findall(r"^warprun (env=.*mynet\.py.*)$", page.read_text(), re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        size = ON_POLICY if "agent=ppo" in command else OFF_POLICY
        assert warprun.train([*SHORT, *command.split(), *size]).status in ("finished", "solved")
