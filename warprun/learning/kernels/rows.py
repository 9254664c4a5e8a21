"""The rows of a rollout as the loss of an on-policy agent takes them."""

from __future__ import annotations

from functools import cache

import torch

from warprun.learning.batch import Batch
from warprun.learning.kernels.arguments import Rows
from warprun.learning.operations import Moments
from warprun.spec import Space


@cache
def constant(number: float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of equal numbers, always the same one: an update that is recorded makes none."""
    return torch.full(shape, number, dtype=dtype, device=device)


def example(space: Space, device: torch.device) -> Rows:
    """Return rows of one number each, whose types are those of all rows with actions of a space."""
    number = constant(0.0, (1,), torch.float32, device)
    return Rows(
        order=constant(0, (1,), torch.int64, device),
        obs=number.view(1, 1),
        mask=constant(0, (1, 1), torch.bool, device),
        action=constant(0, (1, 1), getattr(torch, space.dtype), device),
        log_prob=number,
        value=number,
        advantage=number,
        returns=number,
        mean=number,
        variance=number,
        ordered=False,
        masked=False,
    )


def rows_of(batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None, moments: Moments | None) -> Rows:
    """Return the rows `order` of a batch, or all, contiguous, with `advantage` [B]."""
    device = batch.obs.device
    mean, variance = moments or (constant(0.0, (), torch.float32, device), constant(1.0, (), torch.float32, device))
    return Rows(
        order=constant(0, (1,), torch.int64, device) if order is None else order.contiguous(),
        obs=batch.obs.contiguous(),
        mask=constant(0, (1, 1), torch.bool, device) if batch.mask is None else batch.mask.contiguous(),
        action=batch.action.contiguous(),
        log_prob=batch.log_prob.contiguous(),
        value=batch.value.contiguous(),
        advantage=advantage.contiguous(),
        returns=batch.returns.contiguous(),
        mean=mean.view(1),
        variance=variance.view(1),
        ordered=order is not None,
        masked=batch.mask is not None,
    )
