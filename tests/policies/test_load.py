"""A policy that was loaded acts as warprun itself does."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import warprun
from tests.policies.conftest import RUNS
from warprun.config.schema import from_dict
from warprun.errors import UserError
from warprun.policies.policy import Policy
from warprun.runs import checkpoint, rundir
from warprun.runs.build import make_agent, make_simulator, prepare, set_up
from warprun.runs.opening import open_config
from warprun.simulation.trajectory import Trajectory
from warprun.spec import Box, GroupSpec, MultiDiscrete
from warprun.state import restore

Trained = Callable[[str], Path]
CLOSE = 1e-5
"""Largest difference of policy outputs between torch and kernels; choices can differ where two are this close."""


def played(folder: Path, fused: bool) -> Trajectory:
    """Return a greedy rollout of the policy by the kernels of warprun, as an evaluation plays it."""
    config = open_config(folder, from_dict(rundir.read_config(folder)), trusted=False)
    setup = set_up(replace(config, engine=replace(config.engine, fused=fused)))
    assert setup.plan.fused == fused
    agent = make_agent(setup)
    saved = checkpoint.load(folder).tensors
    own = {f"agent/{name}": tensor for name, tensor in agent.policy_state().items()}
    restore(own, {name: saved[name] for name in own})
    simulator = make_simulator(setup, 64, 20, 5, agent)
    prepare(setup, simulator)
    return simulator.collect(agent.act, greedy=True)


def in_units_of_the_environment(space: Box, action: np.ndarray) -> np.ndarray:
    """Map actions of a policy as docs/environments.md says, in float64."""
    low, high = np.array(space.bounds()).T
    with np.errstate(invalid="ignore"):
        mapped = low + (np.clip(action, -1.0, 1.0) + 1.0) / 2.0 * (high - low)
    return np.clip(np.where(np.isfinite(low) & np.isfinite(high), mapped, action), low, high)


def gap(policy: Policy, group: GroupSpec, obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return the least distance between the two best numbers of a choice, [...]."""
    module = policy.modules[group.name]
    with torch.no_grad():
        output = module.policy_output(torch.from_numpy(obs))
    allowed = output if mask is None else torch.where(torch.from_numpy(mask), output, -torch.inf)
    top = [part.topk(2, -1).values for part in allowed.split(list(module.group.action.choices), -1)]
    return torch.stack([pair[..., 0] - pair[..., 1] for pair in top], -1).amin(-1).numpy()


BY_DEFAULT = ("dqn cartpole", "td3 pendulum", "sac pendulum")
"""Runs whose fused kernels are compiled for the test; the others take minutes."""
STEPWISE = [pytest.param(name, False, marks=[] if name == "a2c crane" else pytest.mark.slow, id=f"{name} stepwise") for name in RUNS]
FUSED = [pytest.param(name, True, marks=[] if name in BY_DEFAULT else pytest.mark.slow, id=f"{name} fused") for name in RUNS]


@pytest.mark.by_default(0)
@pytest.mark.parametrize(("name", "fused"), [*FUSED, *STEPWISE])
def test_actions_are_those_of_an_evaluation(trained: Trained, name: str, fused: bool) -> None:
    taken = played(trained(name), fused)
    policy = warprun.load(trained(name))
    for group in policy.spec.groups:
        of_group = taken.groups[group.name]
        obs = of_group.obs[:-1].numpy()
        mask = None if of_group.mask is None else of_group.mask[:-1].numpy()
        expected = of_group.action.numpy()
        action = policy.act({group.name: obs}, None if mask is None else {group.name: mask})[group.name]
        if isinstance(group.action, Box):
            assert action.dtype == np.float32
            np.testing.assert_allclose(action, in_units_of_the_environment(group.action, expected), rtol=CLOSE, atol=CLOSE)
            continue
        expected = expected if isinstance(group.action, MultiDiscrete) else expected[..., 0]
        assert action.dtype == np.int64
        assert action.shape == expected.shape
        different = (action != expected).reshape(*obs.shape[:-1], -1).any(-1)
        assert (gap(policy, group, obs, mask)[different] < CLOSE).all()
        assert different.mean() < 0.01


def test_nothing_of_the_engine_is_imported(trained: Trained) -> None:
    """Not even the module of the environment is: it is removed, and another folder is the working folder."""
    code = """
import sys, warprun
policy = warprun.load(sys.argv[1])
print(policy.act([[0.0] * group.observation.size for group in policy.spec.groups][0]).shape)
heavy = ("numba", "hydra", "warprun.simulation", "warprun.kernels", "warprun.envs", "warprun.environment")
print([name for name in sys.modules if (name + ".").startswith(tuple(h + "." for h in heavy))])
"""
    done = subprocess.run([sys.executable, "-c", code, str(trained("a2c crane"))], capture_output=True, text=True, cwd="/")
    assert done.stdout.splitlines() == ["(2,)", "[]"], done.stderr


def test_shapes_and_kinds(trained: Trained) -> None:
    policy = warprun.load(trained("ppo cartpole"))
    assert policy.groups == ("agent",)
    obs = np.random.default_rng(0).normal(size=(2, 3, 4))
    many = policy.act(obs)
    assert many.shape == (2, 3)
    one = policy.act(obs[1, 2])
    assert isinstance(one, np.int64) and one == many[1, 2]
    assert (policy.act(obs.tolist()) == many).all()
    assert policy.act(np.zeros((0, 4))).shape == (0,)
    assert policy.act(np.array([True, False, True, False])) == policy.act(np.array([1.0, 0.0, 1.0, 0.0]))
    tensor = policy.act(torch.from_numpy(obs))
    assert isinstance(tensor, torch.Tensor) and not tensor.requires_grad and (tensor.numpy() == many).all()
    assert policy.act({"agent": obs})["agent"].shape == (2, 3)
    crane = warprun.load(trained("a2c crane"), "best", device=torch.device("cpu"))
    (group,) = crane.spec.groups
    assert crane.act(np.zeros(group.observation.size)).shape == (group.action.components,)


def test_sampled_actions_have_the_probabilities_of_the_policy(trained: Trained) -> None:
    policy = warprun.load(trained("ppo cartpole"))
    obs = np.array([0.1, -0.2, 0.05, 0.3], np.float32)
    chance = policy.modules["agent"].policy_output(torch.from_numpy(obs)[None]).softmax(-1)[0, 1]
    drawn = policy.act(np.tile(obs, (100_000, 1)), greedy=False, rng=1)
    assert drawn.mean() == pytest.approx(float(chance), abs=0.008)
    assert (drawn == policy.act(np.tile(obs, (100_000, 1)), greedy=False, rng=torch.Generator().manual_seed(1))).all()
    torch.manual_seed(3)
    first = policy.act(np.tile(obs, (100, 1)), greedy=False)
    assert (policy.act(np.tile(obs, (100, 1)), greedy=False) != first).any()


def test_sampled_box_actions_have_the_moments_of_the_policy(trained: Trained) -> None:
    policy = warprun.load(trained("a2c crane"))
    (group,) = policy.spec.groups
    obs = np.zeros((50_000, group.observation.size), np.float32)
    mean, log_std = policy.modules[group.name].policy_output(torch.zeros(1, group.observation.size)).chunk(2, -1)
    low, high = np.array(group.action.bounds()).T
    free = np.isinf(low) & np.isinf(high)
    drawn = policy.act(obs, greedy=False, rng=2)
    assert free.any()
    np.testing.assert_allclose(drawn.mean(0)[free], mean[0].numpy()[free], atol=0.03)
    np.testing.assert_allclose(drawn.std(0)[free], log_std[0].exp().numpy()[free], rtol=0.03)
    assert (drawn >= low).all() and (drawn <= high).all()


def test_sampled_actions_of_sac_are_the_tanh_of_normal_ones(trained: Trained) -> None:
    policy = warprun.load(trained("sac pendulum"))
    obs = np.array([0.3, -0.8, 0.5], np.float32)
    mean, log_std = policy.modules["agent"].policy_output(torch.from_numpy(obs)[None])[0].tolist()
    share = policy.act(np.tile(obs, (50_000, 1)), greedy=False, rng=2)[:, 0] / 2.0  # of the torque, -2..2
    u = np.arctanh(share.clip(-0.999999, 0.999999).astype(np.float64))
    assert u.mean() == pytest.approx(mean, abs=0.02)
    assert u.std() == pytest.approx(np.exp(log_std), rel=0.02)
    assert policy.act(obs)[0] == pytest.approx(2.0 * np.tanh(mean), abs=1e-5)


@pytest.mark.by_default(0)
def test_forbidden_actions_are_never_chosen(trained: Trained) -> None:
    policy = warprun.load(trained("ppo market"))
    random = np.random.default_rng(0)
    for greedy in (True, False):
        for group, choices in (("producers", (4,)), ("regulator", (3, 2))):
            obs = random.normal(size=(20_000, policy.spec.group(group).observation.size))
            mask = random.random((20_000, sum(choices))) < 0.4
            for start, n in zip(np.cumsum((0, *choices)), choices, strict=False):
                mask[np.arange(20_000), start + random.integers(n, size=20_000)] = True
            action = policy.act({group: obs}, {group: mask}, greedy=greedy, rng=4)[group].reshape(20_000, -1)
            for column, start in enumerate(np.cumsum((0, *choices))[:-1]):
                assert mask[np.arange(20_000), start + action[:, column]].all()


def test_values_take_a_mask_that_training_did_not_have(trained: Trained) -> None:
    policy = warprun.load(trained("dqn cartpole"))
    obs = np.random.default_rng(0).normal(size=(100, 4))
    assert (policy.act(obs, np.array([True, False])[None].repeat(100, 0)) == 0).all()
    assert (policy.act(obs, np.array([0, 1], np.int8)[None].repeat(100, 0)) == 1).all()


POLE, PRODUCERS = np.zeros(4), {"producers": np.zeros(7)}
NO_QUOTA = {"regulator": np.array([[True] * 5, [True] * 3 + [False] * 2])}
REFUSED = {
    "obs of the wrong size": ("ppo cartpole", [np.zeros(3)], "obs of group 'agent' must have the shape [..., 4], not [3]"),
    "an int": ("ppo cartpole", [3], "must have the shape [..., 4], not []; a Discrete observation is given one-hot"),
    "text": ("ppo cartpole", ["abcd"], "must be an array or a tensor of numbers, not 'abcd'"),
    "complex": ("ppo cartpole", [np.zeros(4, complex)], "must hold real numbers, not torch.complex128"),
    "rng": ("ppo cartpole", [POLE, None, False, "a"], "rng must be a seed, a torch.Generator or None, not 'a'"),
    "large rng": ("ppo cartpole", [POLE, None, False, 2**70], "rng must be a seed of 64 bits"),
    "NaN": ("ppo cartpole", [np.full(4, np.nan)], "obs of group 'agent' has NaN or infinity"),
    "another group": ("ppo cartpole", [{"agnt": POLE}], "the policy has no group 'agnt'; did you mean 'agent'?"),
    "no dict": ("ppo market", [np.zeros(7)], "groups producers, regulator: give obs as a dict with their names"),
    "no mask": ("ppo market", [PRODUCERS], "group 'producers' has action masks: give mask, of the shape [..., 4]"),
    "mask without groups": ("ppo market", [PRODUCERS, np.ones(4, bool)], "mask must be a dict by the name of the group"),
    "all forbidden": ("ppo market", [{"regulator": np.zeros((2, 13))}, NO_QUOTA], "allows no action in choice 1, in row 1"),
    "mask of another shape": ("dqn cartpole", [np.zeros((2, 4)), np.ones(2, bool)], "mask of group 'agent' must have the shape [2, 2]"),
    "mask of floats": ("dqn cartpole", [POLE, np.ones(2)], "mask of group 'agent' must be bool"),
    "mask of a Box": ("ppo pendulum", [np.zeros(3), np.ones(1, bool)], "the actions of a Box have no mask"),
    "drawn values": ("dqn cartpole", [POLE, None, False], "gives values of actions, not a distribution to draw from: use greedy=True"),
    "drawn actions": ("td3 pendulum", [np.zeros(3), None, False], "gives an action, not a distribution"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_one_line(trained: Trained, case: str) -> None:
    name, arguments, says = REFUSED[case]
    with pytest.raises(UserError) as failure:
        warprun.load(trained(name)).act(*arguments)
    assert says in str(failure.value) and "\n" not in str(failure.value)


@pytest.mark.by_default(0)
def test_runs_that_cannot_be_loaded_are_refused(trained: Trained, tmp_path: Path) -> None:
    run = trained("ppo cartpole")
    with pytest.raises(UserError, match="is not a run folder"):
        warprun.load(tmp_path)
    with pytest.raises(UserError, match=r"^checkpoint='lst': did you mean 'last'\?$"):
        warprun.load(run, "lst")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^device='gpu': "):
        warprun.load(run, device="gpu")
    config = (run / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config)
    with pytest.raises(UserError, match=r" has no checkpoint: the folder checkpoints is missing or empty$"):
        warprun.load(tmp_path)
    saved = checkpoint.load(run)
    for meta in ({}, {"spec": {"groups": [{"name": "agent"}], "time_limit": None}}):
        checkpoint.save(tmp_path, saved.env_steps, saved.tensors, meta)
        with pytest.raises(UserError, match="the spaces of the environment are damaged"):
            warprun.load(tmp_path)
    for changed in ({"observation": 2**24}, {"action": {"discrete": 2**24}}):
        (group,) = saved.meta["spec"]["groups"]
        spec = saved.meta["spec"] | {"groups": [group | changed]}
        checkpoint.save(tmp_path, saved.env_steps, saved.tensors, {"spec": spec})
        with pytest.raises(UserError, match=r"the checkpoint is of other networks: .* cannot hold .* of [0-9]+ inputs"):
            warprun.load(tmp_path)
    checkpoint.save(tmp_path, saved.env_steps, saved.tensors, saved.meta)
    assert warprun.load(tmp_path).env_steps == saved.env_steps
    (tmp_path / "config.yaml").write_text(config.replace("hidden: null", "hidden: [63, 64]", 1))
    with pytest.raises(UserError, match="does not fit the config of the run"):
        warprun.load(tmp_path)
