"""Distributions against the golden numbers, and masks."""

from __future__ import annotations

import pytest
import torch

from tests.learning.helpers import Golden, close
from warprun.environment import Box, Discrete, MultiDiscrete
from warprun.learning.distributions import evaluate

PRECISIONS = [(torch.float64, 1e-10), (torch.float32, 1e-5)]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_categorical(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g, space = golden("categorical"), Discrete(5)
    logits, action = g["logits"].to(dtype), g["action"][:, None].int()
    log_prob, entropy = evaluate(space, logits, None, action)
    close(log_prob, g["log_prob"], tolerance)
    close(entropy, g["entropy"], tolerance)
    everything = torch.arange(5).expand(40, 5)[..., None]
    close(evaluate(space, logits[:, None].expand(40, 5, 5), None, everything)[0], g["log_probs"], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_gaussian(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g, space = golden("gaussian"), Box(3)
    output = torch.cat((g["mean"], g["log_std"]), -1).to(dtype)
    log_prob, entropy = evaluate(space, output, None, g["action"].to(dtype))
    close(log_prob, g["log_prob"], tolerance)
    close(entropy, g["entropy"], tolerance)


def test_multi_discrete_is_a_product_of_choices() -> None:
    output = torch.randn(9, 5, dtype=torch.float64)
    mask = torch.tensor([True, True, False, True, True]).expand(9, 5)
    action = torch.tensor([[1, 2]], dtype=torch.int32).expand(9, 2)
    space, parts = MultiDiscrete((2, 3)), ((Discrete(2), slice(0, 2)), (Discrete(3), slice(2, 5)))
    single = [evaluate(s, output[:, part], mask[:, part], action[:, j : j + 1]) for j, (s, part) in enumerate(parts)]
    close(torch.stack(evaluate(space, output, mask, action)), torch.stack(single[0]) + torch.stack(single[1]))


@pytest.mark.parametrize("size", [1.0, 1e3, -1e5])
def test_masked_actions_do_not_exist(size: float) -> None:
    """Probability, entropy and gradients equal those of a distribution over the allowed actions alone."""
    logits = (size * torch.tensor([[0.3, 1.0, 0.7, 0.1]])).requires_grad_()
    mask, action = torch.tensor([[True, False, True, False]]), torch.tensor([[2]])
    few = logits.detach()[:, ::2].clone().requires_grad_()
    masked, alone = evaluate(Discrete(4), logits, mask, action), evaluate(Discrete(2), few, None, action // 2)
    close(torch.stack(masked), torch.stack(alone), 1e-6)
    sum(masked).backward()  # type: ignore[union-attr]
    sum(alone).backward()  # type: ignore[union-attr]
    close(logits.grad[:, ::2], few.grad, 1e-5)  # type: ignore[index, arg-type]
    assert logits.grad[:, 1::2].abs().max() == 0  # type: ignore[index]
    assert evaluate(Discrete(4), logits, mask, torch.tensor([[1]]))[0].exp() == 0
