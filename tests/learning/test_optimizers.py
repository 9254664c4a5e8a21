"""Optimisers against the golden numbers."""

from __future__ import annotations

import pytest
import torch

from tests.learning.helpers import Golden, close
from warprun.learning.optimizers import OPTIMIZERS, clip_norm
from warprun.learning.settings import OptimizerConfig

CASES = [
    ("adam_lr1e3_eps1e8", OptimizerConfig("adam", eps=1e-8), 1e-3),
    ("adam_lr25e5_eps1e5", OptimizerConfig("adam", eps=1e-5), 25e-5),
    ("rmsprop_lr7e4_a99_eps1e5", OptimizerConfig("rmsprop", alpha=0.99, eps=1e-5), 7e-4),
    ("rmsprop_tf_like", OptimizerConfig("rmsprop_tf", alpha=0.99, eps=1e-5), 7e-4),
]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("name", "config", "rate"), CASES)
def test_steps(golden: Golden, name: str, config: OptimizerConfig, rate: float, dtype: torch.dtype, tolerance: float) -> None:
    g = golden("optim")
    parameters = g["theta0"].to(dtype, copy=True)
    optimizer = OPTIMIZERS[config.name](parameters, config)
    for gradient, expected in zip(g["grads"].to(dtype), g[name], strict=True):
        optimizer.step(parameters, gradient, torch.tensor(rate, dtype=torch.float64))
        close(parameters, expected, tolerance)


def test_clip_norm(golden: Golden) -> None:
    g = golden("optim")
    for gradient in g["grads"]:
        clipped = gradient.clone()
        norm = clip_norm(clipped, 0.5)
        close(norm, gradient.norm())
        if torch.isclose(norm, g["grad_norm"]):
            close(clipped, g["clipped_to_0_5"])
            return
    raise AssertionError("no gradient has the golden norm")


def test_small_gradients_stay() -> None:
    gradient = torch.tensor([0.3, 0.4])
    assert clip_norm(gradient, 1.0) == 0.5
    assert clip_norm(gradient, None) == 0.5
    assert gradient.tolist() == torch.tensor([0.3, 0.4]).tolist()
