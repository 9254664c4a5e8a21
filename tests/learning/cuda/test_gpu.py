"""The learner's kernels on a GPU: gradients are autograd's in float64, and updates are torch's."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from tests.agents import build
from tests.learning.cpu import test_recurrent as recurrence
from tests.learning.cpu.test_gradient import SPACES, exact_gradient, learner_for, rows_for
from tests.learning.helpers import SPACES as GROUPS
from tests.learning.helpers import environment, rollout
from tests.ptx.off_policy import CASES, environment_of
from warprun.learning.kernels.cuda.recurrent import compute_by_kernels
from warprun.learning.kernels.policy_gradient import PolicyGradient
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.learning.settings.off_policy import ReplayConfig
from warprun.simulation.trajectory import Trajectory, allocate
from warprun.spec import Spec

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
NETWORKS = {
    "32-32": NetworkConfig(hidden=[32, 32]),
    "64-64": NetworkConfig(hidden=[64, 64]),
    "relu": NetworkConfig(hidden=[17, 5, 9], activation="relu", shared=False),
    # Tiles of fewer than 32 rows.
    "wide": NetworkConfig(hidden=[300, 130]),
}


@pytest.mark.by_default(12)
@pytest.mark.parametrize("count", [1, 130, 50_000])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("space", "masked"), [("discrete", True), ("multi", False), ("multi", True), ("box", False)])
@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_the_gradient_is_autograds(algorithm: str, space: str, masked: bool, network: str, count: int) -> None:
    twin = learner_for(algorithm, SPACES[space], NETWORKS[network], fused=False)
    learner = learner_for(algorithm, SPACES[space], NETWORKS[network], CUDA)
    assert isinstance(learner.operations.gradient, PolicyGradient)
    rows = rows_for(twin, count, masked)
    exact, terms = exact_gradient(algorithm, twin, rows)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    there, back = rows.pick(order).each(lambda tensor: tensor.to(CUDA)), torch.argsort(order).to(CUDA)
    found = [learner.gradient(there, rows.advantage.to(CUDA), back)[0].clone() for _ in range(2)]
    assert torch.equal(*found)
    # In the wide network with real actions torch itself is 5e-6 off in float32.
    np.testing.assert_allclose(found[0].cpu().numpy(), exact, rtol=0, atol=2e-5 * np.abs(exact).max())
    means = learner.gradient(there, rows.advantage.to(CUDA), back)[1]
    np.testing.assert_allclose(means.cpu().numpy(), terms, rtol=1e-5, atol=1e-5)


def on_gpu(spec: Spec, taken: Trajectory) -> Trajectory:
    """Return a copy of a rollout on the GPU."""
    made = allocate(spec, taken.horizon, taken.n_envs, CUDA)
    made.terminated.copy_(taken.terminated)
    made.truncated.copy_(taken.truncated)
    for name, group in taken.groups.items():
        for field, tensor in vars(group).items():
            if tensor is not None:
                getattr(made.groups[name], field).copy_(tensor)
    return made


@pytest.mark.parametrize("n_envs", [1, 5, 300])
@pytest.mark.parametrize(("algorithm", "settings"), [("a2c", {}), ("ppo", {"epochs": 2, "minibatches": 3, "target_kl": 0.5})])
def test_an_update_is_torchs(algorithm: str, settings: dict[str, Any], n_envs: int) -> None:
    env, found = environment(**GROUPS), []
    for by_kernels in (False, True):
        agent = build(algorithm, env, device=CUDA, n_envs=n_envs, fused=by_kernels, network=NetworkConfig(hidden=[11]), **settings)
        assert all(isinstance(learner.operations.gradient, PolicyGradient) == by_kernels for learner in agent.learners)
        for seed in range(3):
            metrics = agent.update(on_gpu(env.spec, rollout(env, n_envs=n_envs, seed=seed)), 0.3 * seed)
        found.append({name: tensor.cpu().numpy().copy() for name, tensor in (agent.state() | metrics).items()})
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("units", "steps", "count"), [((64,), 128, 1000), ((16, 48), 9, 45), ((512,), 5, 300)])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_layers_are_torchs_in_float64(kind: str, units: tuple[int, ...], steps: int, count: int) -> None:
    network = recurrence.made(kind, 20, units).to(CUDA)
    exact = recurrence.computed(copy.deepcopy(network).double(), steps, count)
    compute_by_kernels(network)
    assert network.over_steps
    found = [recurrence.computed(network, steps, count) for _ in range(2)]
    for first, again, expected in zip(*found, exact, strict=True):
        assert torch.equal(first, again)
        assert (first - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("hidden", [[9, 8], [256, 256]], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_updates_off_policy_are_torchs(case: str, hidden: list[int]) -> None:
    name, space, settings = CASES[case]
    env, found = environment_of(space), []
    given = {"learning_starts": 0, "batch_size": 300, "replay": ReplayConfig(capacity=200), "utd_ratio": 0.1, **settings}
    for device in (torch.device("cpu"), CUDA):
        agent = build(name, env, device=device, fused=device == CUDA, **given | {"network": LayersConfig(hidden=hidden)})
        for seed in range(3):
            taken = rollout(env, horizon=6, n_envs=5, seed=seed)
            metrics = agent.update(taken if device.type == "cpu" else on_gpu(env.spec, taken), seed / 3)
        found.append(agent.state() | {key: torch.as_tensor(value) for key, value in metrics.items()})
    for key, tensor in found[0].items():
        np.testing.assert_allclose(found[1][key].cpu().numpy(), tensor.numpy(), rtol=1e-3, atol=1e-4, err_msg=key)
