"""The check of recurrent layers on tensor cores before their first use, against float64."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import nn

from warprun.kernels.warp import COLUMNS
from warprun.learning.kernels.cuda.recurrent import layer
from warprun.learning.networks import seeded
from warprun.learning.recurrent import Recurrent
from warprun.learning.settings.networks import RecurrentLayer
from warprun.simulation.cuda_layers import recurrent_why_not, verify


def verify_layers(layers: Iterable[RecurrentLayer]) -> None:
    """Compare recurrent layers on tensor cores with float64, see `cuda_layers.verify`, by the kernels that the run needs anyway."""
    for each in layers:
        if not recurrent_why_not(each.units):
            verify("recurrent layers", tensor_core_error, *each)


def tensor_core_error(kind: str, inputs: int, units: int, device: torch.device) -> float:
    """Return how far a layer's outputs, carries and gradients are from float64, relative to the largest of each."""
    steps, count, draws = 3, COLUMNS + 1, torch.Generator().manual_seed(0)
    network = seeded(0, lambda: Recurrent(kind, nn.Sequential(), [inputs, units], nn.Sequential(), None))
    x, carry = (torch.randn(shape, generator=draws) for shape in ((steps, count, inputs), (count, network.carry)))
    begins = torch.rand((steps, count), generator=draws) < 0.2
    exact = _passed(copy.deepcopy(network).double(), x.double(), carry.double(), begins)
    network.over_steps = layer
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # of the products that torch computes
    try:
        found = _passed(network.to(device), x.to(device), carry.to(device), begins.to(device))
    finally:
        torch.set_float32_matmul_precision(precision)
    # The maximum of torch is NaN if one of the errors is.
    return float(torch.stack([(mine.cpu() - each).abs().max() / each.abs().max() for mine, each in zip(found, exact, strict=True)]).max())


def _passed(network: Recurrent, x: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> list[torch.Tensor]:
    """Return outputs, carries, and the gradients of half the sum of the squares of the outputs."""
    y, carries = network.trace(x.requires_grad_(), carry, begins)
    return [y.detach(), carries.detach(), *torch.autograd.grad(0.5 * y.square().sum(), [x, *network.parameters()])]
