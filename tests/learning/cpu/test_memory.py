"""Gradients of policies with memory by kernels against autograd in float64."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.learning import papers
from tests.learning.cpu.test_gradient import SPACES, learner_for, rows_for
from warprun.learning import distributions
from warprun.learning.batch import Batch, Past
from warprun.learning.kernels.cpu.memory import MemoryGradient
from warprun.learning.kernels.policy_gradient import tile_loss_of
from warprun.learning.on_policy import Learner
from warprun.learning.settings import byte_counts
from warprun.learning.settings.networks import NetworkConfig

NETWORKS = {
    "lstm": NetworkConfig(type="lstm", hidden=[13], units=[16, 20], after=[7], activation="relu"),
    "gru": NetworkConfig(type="gru", hidden=[], units=[32, 16], sequence=3, shared=False),
}


def sequences_for(learner: Learner[Any], count: int, steps: int, masked: bool) -> Batch:
    """Return sequences [B, T] of any numbers, in which episodes begin at any step, after any carry."""
    generator = torch.Generator().manual_seed(count)
    past = Past(torch.randn(count, learner.policy.carry, generator=generator), torch.rand(count, steps, generator=generator) < 0.2)
    if learner.config.network.sequence:  # policy and value have forgotten at the same time
        ends = [end - 1 for end in torch.tensor(learner.policy.network.carries).cumsum(0).tolist()]
        past.carry[:, ends] = torch.randint(0, 4, (count, 1), generator=generator).float()
    rows = rows_for(learner, count * steps, masked)
    return replace(rows.each(lambda tensor: tensor.unflatten(0, (count, steps))), past=past)


def exact_gradient(algorithm: str, learner: Learner[Any], batch: Batch) -> tuple[torch.Tensor, list[float]]:
    """Return autograd's gradient and the terms that a learner shows, in float64."""
    policy, config, rows = copy.deepcopy(learner.policy.module).double(), learner.config, batch.rows()
    assert batch.past
    output, value, _ = policy.unroll(batch.obs.double().transpose(0, 1), batch.past.carry.double(), batch.past.begins.T)
    output, value = output.transpose(0, 1).flatten(0, 1), value.T.flatten()
    log_prob, entropy = distributions.evaluate(learner.policy.space, output, rows.mask, rows.action)
    given, coefficients = (rows.advantage.double(), rows.returns.double()), (config.value_coef, float(learner.entropy_coef))
    terms: papers.A2CLoss | papers.PPOLoss
    if algorithm == "a2c":
        terms = papers.a2c_loss(log_prob, entropy, value, *given, *coefficients)
    else:
        old = rows.log_prob.double(), rows.value.double()
        terms = papers.ppo_loss(log_prob, entropy, value, *old, *given, config.clip, config.clip_value, *coefficients)
    gradients = torch.autograd.grad(terms[0], list(policy.parameters()))
    return torch.cat([each.reshape(-1) for each in gradients]), [float(getattr(terms, name).detach()) for name in learner.shows[:-1]]


def compare(algorithm: str, learner: Learner[Any], batch: Batch) -> None:
    """The gradient of all sequences, and that of the same ones in another order among others."""
    exact, terms = exact_gradient(algorithm, learner, batch)
    assert isinstance(learner.operations.gradient, MemoryGradient)
    order = torch.randperm(len(batch.obs), generator=torch.Generator().manual_seed(0))
    doubled = torch.cat((order, order))
    for given, picked in ((batch, None), (batch.pick(doubled), torch.argsort(order))):
        gradient, means = learner.gradient(given, batch.advantage, picked)
        torch.testing.assert_close(gradient.double(), exact, rtol=0.0, atol=1e-5 * float(exact.abs().max()))
        torch.testing.assert_close(means.double(), torch.tensor(terms, dtype=torch.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.by_default(8)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("algorithm", "space", "masked"),
    [("ppo", "discrete", False), ("ppo", "multi", True), ("a2c", "box", False), ("a2c", "discrete", True), ("ppo", "box", False)],
)
@pytest.mark.parametrize(("count", "steps"), [(70, 9), (1, 1), (16, 30), (1100, 3)])
def test_the_gradient_is_autograds(algorithm: str, space: str, masked: bool, network: str, count: int, steps: int) -> None:
    """Two layers of different sizes, tiles that are not full, steps that do not fill the last ones that go back together."""
    learner = learner_for(algorithm, SPACES[space], NETWORKS[network])
    compare(algorithm, learner, sequences_for(learner, count, steps, masked))


def test_long_sequences_have_narrow_tiles_and_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_for("ppo", SPACES["discrete"], NETWORKS["lstm"])
    batch = sequences_for(learner, 700, 9, masked=False)
    wide, _ = learner.gradient(batch, batch.advantage)
    wide = wide.clone()
    assert list(learner.operations.gradient._blocks) == [(9, 48)]  # type: ignore[attr-defined]
    monkeypatch.setattr(byte_counts, "SEQUENCE_ROWS", 9 * 40)
    narrow, _ = learner.gradient(batch, batch.advantage)
    assert list(learner.operations.gradient._blocks) == [(9, 32)]  # type: ignore[attr-defined]
    torch.testing.assert_close(narrow, wide, rtol=0.0, atol=1e-6 * float(wide.abs().max()))


def test_any_number_of_threads_takes_the_same_bits() -> None:
    learner = learner_for("ppo", SPACES["discrete"], NETWORKS["lstm"])
    batch = sequences_for(learner, 300, 9, masked=False)
    log_std = learner.policy.kernel_network().log_std
    loss = tile_loss_of(learner.policy.space, learner.reference.loss, learner.entropy_coef, log_std, log_std)
    found = [MemoryGradient(learner.policy, loss, threads)(batch, batch.advantage, None, None) for threads in (1, 2, 3)]
    assert all(torch.equal(part, first) for given in found[1:] for part, first in zip(given, found[0], strict=True))


def test_layers_that_kernels_have_not_stay_with_torch() -> None:
    elu = NetworkConfig(type="lstm", activation="elu")
    assert not isinstance(learner_for("ppo", SPACES["discrete"], elu).operations.gradient, MemoryGradient)
