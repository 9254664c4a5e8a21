"""Files of a policy give the actions of the policy."""

import builtins
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warprun
from tests.policies.runs import by_onnx, by_torch
from tests.test_docs import ROOT, files
from warprun.cli import main as cli
from warprun.errors import UserError
from warprun.learning.networks import ACTIVATIONS
from warprun.policies.export import export
from warprun.policies.policy import Policy
from warprun.runs import checkpoint
from warprun.spec import Box

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

Trained = Callable[[str], Path]
Inputs = Mapping[str, np.ndarray]
ROWS = 10_000
CLOSE = 1e-5
EXPORTED = [
    *("dueling dqn cartpole", "sac pendulum", "ppo market", "a2c crane"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("a2c cartpole", "ppo pendulum", "td3 pendulum", "quantiles cartpole")),
]


def observations(policy: Policy) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return random observations, some of them far out, and masks of every group that has any, of other sizes for each group."""
    random = np.random.default_rng(0)
    obs, masks = {}, {}
    for n, group in enumerate(policy.spec.groups):
        obs[group.name] = (3 * random.standard_cauchy((ROWS + n, group.observation.size))).clip(-1e4, 1e4).astype(np.float32)
        if group.masked:
            mask = random.random((ROWS + n, group.action.outputs)) < 0.6
            mask[:, np.cumsum((0, *policy.modules[group.name].choices))[:-1]] = True
            masks[group.name] = mask
    return obs, masks


def by_numpy(file: Path, inputs: Inputs) -> dict[str, np.ndarray]:
    """Use the program of the page."""
    source = files(ROOT / "docs" / "policies.md")["use_numpy.py"].rpartition("\nprint(")[0].replace('"policy.npz"', repr(str(file)))
    program: dict[str, Callable[..., np.ndarray]] = {}
    exec(source, program)
    found = {}
    for name, obs in inputs.items():
        if name.endswith("obs"):
            prefix = name.removesuffix("obs")
            action = program["act"](obs, inputs.get(f"{prefix}mask"), prefix)
            found[f"{prefix}action"] = action[..., 0] if action.dtype == np.int64 and action.shape[-1] == 1 else action
    return found


RUNTIMES = {".onnx": by_onnx, ".pt2": by_torch, ".npz": by_numpy}


@pytest.mark.by_default(3)
@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("name", EXPORTED)
def test_actions_of_a_file_are_those_of_the_policy(trained: Trained, tmp_path: Path, name: str, kind: str) -> None:
    policy, file = warprun.load(trained(name)), tmp_path / f"policy{kind}"
    export(policy, file)
    obs, masks = observations(policy)
    prefix = {group: f"{group}_" if len(policy.groups) > 1 else "" for group in policy.groups}
    for rows in (slice(None), slice(1)):
        inputs = {f"{prefix[group]}obs": array[rows] for group, array in obs.items()}
        inputs |= {f"{prefix[group]}mask": array[rows] for group, array in masks.items()}
        outputs = RUNTIMES[kind](file, inputs)
        expected = policy.act({name: own[rows] for name, own in obs.items()}, {name: own[rows] for name, own in masks.items()})
        for group in policy.spec.groups:
            action = outputs[f"{prefix[group.name]}action"]
            assert action.shape == expected[group.name].shape
            if isinstance(group.action, Box):
                np.testing.assert_allclose(action, expected[group.name], rtol=CLOSE, atol=CLOSE)
            else:
                assert action.dtype == np.int64
                # Sums of floats in another order: of two numbers that are nearly equal the other one can be larger.
                assert (action != expected[group.name]).mean() < 5e-4


@pytest.mark.parametrize("kind", RUNTIMES)
def test_choices_are_counted_as_the_environment_counts_them(trained: Trained, tmp_path: Path, kind: str) -> None:
    """The same networks, from a checkpoint whose environment counts from other numbers."""
    before, saved = warprun.load(trained("ppo market")), checkpoint.load(trained("ppo market"))
    groups = {group["name"]: group for group in json.loads(json.dumps(saved.meta["spec"]))["groups"]}
    groups["producers"]["action"]["start"] = 10
    groups["regulator"]["action"]["start"] = [5, -1]
    (tmp_path / "config.yaml").write_bytes((trained("ppo market") / "config.yaml").read_bytes())
    checkpoint.save(tmp_path, saved.env_steps, saved.tensors, {"spec": saved.meta["spec"] | {"groups": list(groups.values())}})
    policy, file = warprun.load(tmp_path), tmp_path / f"policy{kind}"
    export(policy, file)
    obs, masks = observations(policy)
    was, acted = before.act(obs, masks), policy.act(obs, masks)
    inputs = {f"{group}_obs": array for group, array in obs.items()} | {f"{group}_mask": array for group, array in masks.items()}
    outputs = RUNTIMES[kind](file, inputs)
    for group, start in (("producers", 10), ("regulator", [5, -1])):
        np.testing.assert_array_equal(acted[group], was[group] + start)
        assert acted[group].dtype == np.int64 and (outputs[f"{group}_action"] != acted[group]).mean() < 5e-4
    drawn = policy.act(obs, masks, greedy=False, rng=0)
    np.testing.assert_array_equal(drawn["producers"], before.act(obs, masks, greedy=False, rng=0)["producers"] + 10)


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", ["ppo pendulum", "ppo market"])
def test_the_policy_output_is_that_of_the_network(trained: Trained, tmp_path: Path, name: str) -> None:
    policy = warprun.load(trained(name))
    export(policy, tmp_path / "policy.onnx")
    obs, masks = observations(policy)
    prefix = {group: f"{group}_" if len(policy.groups) > 1 else "" for group in policy.groups}
    inputs = {f"{prefix[group]}obs": array for group, array in obs.items()}
    inputs |= {f"{prefix[group]}mask": array for group, array in masks.items()}
    outputs = by_onnx(tmp_path / "policy.onnx", inputs)
    for group, module in policy.modules.items():
        expected = module.policy_output(torch.from_numpy(obs[group])).numpy()
        np.testing.assert_allclose(outputs[f"{prefix[group]}policy_output"], expected, rtol=1e-4, atol=CLOSE)


def test_the_verb(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = str(trained("ppo pendulum")), tmp_path / "policy.npz"
    capsys.readouterr()
    assert cli.run(["export", run, str(file), "checkpoint=best"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith(f"{file}: obs_shift, obs_scale, ")
    assert "/best/step_" in said[0]
    file.write_bytes(b"mine")
    assert cli.run(["export", run, str(file)]) == 2
    assert capsys.readouterr().err == f"warprun: error: {file} exists; overwrite=true replaces it\n"
    assert file.read_bytes() == b"mine"
    assert cli.run(["export", run, str(file), "overwrite=true"]) == 0
    assert file.read_bytes() != b"mine"
    assert cli.run(["export", "latest", str(tmp_path / "a.npz"), f"output_root={trained('ppo pendulum').parent}"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "policy.npz"]


MISTAKES = {
    "unknown ending": (["RUN", "policy.onx"], "policy.onx: the name must end with .onnx, .pt2, .npz; did you mean '.onnx'?"),
    "no ending": (["RUN", "policy"], "policy: the name must end with .onnx, .pt2, .npz"),
    "no folder": (["RUN", "nowhere/policy.npz"], "there is no folder nowhere"),
    "no file": (["RUN"], "export takes a run and a file, such as `warprun export latest policy.onnx`"),
    "setting": (["RUN", "a.npz", "checkpont=best"], "export has no setting 'checkpont'; did you mean 'checkpoint'?"),
    "checkpoint": (["RUN", "a.npz", "checkpoint=bst"], "checkpoint='bst': did you mean 'best'?"),
    "no run": (["nowhere", "a.npz"], "nowhere is not a run folder"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    arguments, says = MISTAKES[case]
    monkeypatch.chdir(tmp_path)
    assert cli.run(["export", *(word.replace("RUN", str(trained("ppo pendulum"))) for word in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warprun: error: {says}")
    assert not list(tmp_path.iterdir())


def test_without_onnx_the_extra_is_named(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **named: object) -> object:
        if name == "onnxscript":
            raise ModuleNotFoundError("No module named 'onnxscript'", name=name)
        return real(name, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"^the ONNX format needs the package onnxscript: pip install 'warprun\[onnx\]'$"):
        export(warprun.load(trained("ppo pendulum")), tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_programs_of_the_page_run(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gymnasium")
    page = ROOT / "docs" / "policies.md"
    shutil.copytree(trained("ppo cartpole"), tmp_path / "outputs" / "cartpole")
    monkeypatch.chdir(tmp_path)
    exported = [line.split()[1:] for line in page.read_text().splitlines() if line.startswith("warprun export outputs/cartpole")]
    assert len(exported) == 3
    for words in exported:
        assert cli.run([word for word in words if not word.startswith("checkpoint=")]) == 0
    programs = files(page)
    of_numpy: dict[str, Any] = {"__name__": "__main__"}
    exec(programs["use_numpy.py"], of_numpy)
    x = torch.linspace(-5.0, 5.0, 101)
    for activation, of_torch in ACTIVATIONS.items():
        np.testing.assert_allclose(of_numpy["activations"][activation](x.numpy()), of_torch()(x).numpy(), atol=1e-6, err_msg=activation)
    said = {}
    for name in ("use_policy.py", "use_onnx.py", "use_torch.py", "use_numpy.py"):
        capfd.readouterr()
        exec(compile(programs[name], name, "exec"), {"__name__": "__main__"})
        said[name] = capfd.readouterr().out.strip()
    assert float(said["use_policy.py"].removeprefix("return ")) >= 1
    assert said["use_onnx.py"] == said["use_torch.py"] == said["use_numpy.py"]
    assert len(said["use_onnx.py"].strip("[]").split()) == 5
    assert sys.modules["warprun"] is warprun
