"""The error of gradients whose matrix products are computed in TF32, as docs/performance.md states it."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from warprun.config.compose import compose
from warprun.runs import build
from warprun.simulation.device import Device

aten = torch.ops.aten


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Return `x` with 10 bits after the point, rounded to nearest with ties away from zero, as tensor cores take it."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class TensorCores(TorchDispatchMode):
    """Rounds the factors of matrix products; sums stay in float32."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is aten.mm.default:
            self.count += 1
            args = rounded(args[0]), rounded(args[1])
        elif func is aten.addmm.default:
            self.count += 1
            args = args[0], rounded(args[1]), rounded(args[2])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("width", [64, 256])
def test_gradients_in_tf32(width: int) -> None:
    """At most 2 % of the largest element away; the cosine of the angle to the exact gradient is above 0.9999."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)]
    network = torch.nn.Sequential(*layers)
    obs, target = torch.randn(256, 8), torch.randn(256, 4)

    def gradient() -> torch.Tensor:
        loss = torch.nn.functional.smooth_l1_loss(network(obs), target)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])

    exact = gradient()
    with TensorCores() as cores:
        found = gradient()
    assert cores.count >= 8
    error = float((found - exact).abs().max() / exact.abs().max())
    assert 1e-5 < error < 2e-2
    assert float(torch.cosine_similarity(found, exact, 0)) > 1 - 1e-4


@pytest.mark.parametrize(("asked", "precision"), [("false", "highest"), ("true", "high")])
def test_the_setting_reaches_torch(asked: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["env=cartpole", "device=cpu", f"engine.tf32={asked}"])
    said: list[str] = []
    monkeypatch.setattr(build, "choose", lambda wanted: Device("cuda", "a test"))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", said.append)
    build.set_up(config)
    assert said == [precision]
