"""Files of a policy give the actions of the policy."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
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

for needed in ("onnxruntime", "onnxscript"):  # found, not imported: only the process that runs these tests needs them
    if not find_spec(needed):
        pytest.skip(f"{needed} is not installed", allow_module_level=True)

Trained = Callable[[str], Path]
Inputs = Mapping[str, np.ndarray]
ROWS = 10_000
CLOSE = 1e-5
EXPORTED = [
    *("dueling dqn cartpole", "sac pendulum", "ppo market", "a2c crane"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("a2c cartpole", "ppo pendulum", "td3 pendulum", "quantiles cartpole")),
]


def observations(policy: Policy) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return random observations, some far out, and masks of every group that has any, of other sizes for each group."""
    random = np.random.default_rng(0)
    obs, masks = {}, {}
    for n, group in enumerate(policy.spec.groups):
        obs[group.name] = (3 * random.standard_cauchy((ROWS + n, group.observation.size))).clip(-1e4, 1e4).astype(np.float32)
        if group.masked:
            mask = random.random((ROWS + n, group.action.outputs)) < 0.6
            mask[:, np.cumsum((0, *group.action.choices))[:-1]] = True
            masks[group.name] = mask
    return obs, masks


def inputs_of(policy: Policy, obs: Inputs, masks: Inputs, rows: slice = slice(None)) -> dict[str, np.ndarray]:
    """Return what a file of the policy gets."""
    prefix = {group: f"{group}_" if len(policy.groups) > 1 else "" for group in policy.groups}
    return {f"{prefix[group]}{kind}": array[rows] for kind, arrays in (("obs", obs), ("mask", masks)) for group, array in arrays.items()}


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
    for rows in (slice(None), slice(1)):
        outputs = RUNTIMES[kind](file, inputs_of(policy, obs, masks, rows))
        expected = policy.act({name: own[rows] for name, own in obs.items()}, {name: own[rows] for name, own in masks.items()})
        for group in policy.spec.groups:
            prefix = f"{group.name}_" if len(policy.groups) > 1 else ""
            action = outputs[f"{prefix}action"]
            if kind == ".onnx":
                found = policy.modules[group.name].policy_output(torch.from_numpy(obs[group.name][rows]))
                np.testing.assert_allclose(outputs[f"{prefix}policy_output"], found.numpy(), rtol=1e-4, atol=CLOSE)
            assert action.shape == expected[group.name].shape
            if isinstance(group.action, Box):
                np.testing.assert_allclose(action, expected[group.name], rtol=CLOSE, atol=CLOSE)
            else:
                assert action.dtype == np.int64
                # Sums of floats in another order: of two numbers that are nearly equal the other one can be larger.
                assert (action != expected[group.name]).mean() < 5e-4


@pytest.mark.parametrize("kind", [".onnx", ".npz"])  # .pt2 is made of the same module as .onnx
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
    outputs = RUNTIMES[kind](file, inputs_of(policy, obs, masks))
    for group, start in (("producers", 10), ("regulator", [5, -1])):
        np.testing.assert_array_equal(acted[group], was[group] + start)
        assert acted[group].dtype == np.int64 and (outputs[f"{group}_action"] != acted[group]).mean() < 5e-4
    drawn = policy.act(obs, masks, greedy=False, rng=0)
    np.testing.assert_array_equal(drawn["producers"], before.act(obs, masks, greedy=False, rng=0)["producers"] + 10)


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
    "RUN policy.onx": "policy.onx: the name must end with .onnx, .pt2, .npz; did you mean '.onnx'?",
    "RUN nowhere/policy.npz": "there is no folder nowhere",
    "RUN": "export takes a run and a file",
    "RUN a.npz checkpont=best": "export has no setting 'checkpont'; did you mean 'checkpoint'?",
    "RUN a.npz checkpoint=bst": "checkpoint='bst': did you mean 'best'?",
    "nowhere a.npz": "nowhere is not a run folder",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_one_line(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal("export", *(word.replace("RUN", str(trained("ppo pendulum"))) for word in line.split()))
    assert said.startswith(f"warprun: error: {MISTAKES[line]}")
    assert not list(tmp_path.iterdir())


def test_without_onnx_the_extra_is_named(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"needs the package onnxscript: pip install 'warprun\[onnx\]'"):
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
