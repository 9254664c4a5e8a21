"""The rows of a gradient, over which the kernels for CPU and for CUDA loop."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from warprun.kernels.mlp_cuda import TALL
from warprun.learning.batch import Batch
from warprun.learning.formulas import MOST_TERMS


class Rows(NamedTuple):
    """The data of a gradient: R rows, of which `order` selects B (empty: all, in their order). Tensors, or the arrays of kernels."""

    order: torch.Tensor
    """[B] int64 or [0]."""
    obs: torch.Tensor
    """[R, F] float32."""
    mask: torch.Tensor
    """[R, M] bool, or [0, 0]."""
    action: torch.Tensor
    """[R, C] int32 or float32."""
    log_prob: torch.Tensor
    """[R] float32: under the policy of the rollout."""
    value: torch.Tensor
    """[R] float32: by the network of the rollout."""
    advantage: torch.Tensor
    """[B] float32: already selected by `order`."""
    returns: torch.Tensor
    """[R] float32."""
    activations: torch.Tensor
    """[tiles, T, network rows, COLUMNS] float32: what the network computed for all rows (`Trajectory.activations`), which a gradient may
    change; or [0, 0, 0, 0]."""
    step_rows: int
    """Rows of a step of the rollout, if all rows are taken in their order; else B."""


@cache
def empty(axes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor without numbers, always the same one: an update that is recorded makes none."""
    return torch.zeros((0,) * axes, dtype=dtype, device=device)


def rows_of(batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None) -> Rows:
    """Return the rows `order` of a batch, or all, contiguous, with `advantage` [B]."""
    whole, device = order is None, batch.obs.device
    mask = empty(2, torch.bool, device) if batch.mask is None else batch.mask
    everything = empty(1, torch.int64, device) if order is None else order
    kept = batch.activations if whole and batch.activations is not None else empty(4, torch.float32, device)
    tensors = (everything, batch.obs, mask, batch.action, batch.log_prob, batch.value, advantage, batch.returns, kept)
    step_rows = batch.step_rows if whole and batch.step_rows else len(advantage)
    return Rows._make([*(tensor.contiguous() for tensor in tensors), step_rows])


def gradient_rows(network_rows: int, components: int, terms: int = MOST_TERMS) -> int:
    """Return the rows of a CUDA block that computes a gradient: those of the network, then the `terms` of the loss and, for each of the
    `components` of an action, what its distribution needs; at least TALL - 1, because the backward pass reads past a layer."""
    return network_rows + max(terms + components, TALL - 1)
