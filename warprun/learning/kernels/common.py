"""The rows of a gradient, and formulas of single numbers, over which the kernels for CPU and for CUDA loop."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels.mlp_cuda import TALL
from warprun.kernels.sampling import HALF_LOG_2_PI
from warprun.learning.batch import Batch
from warprun.math import exp, sqrt

float32 = np.float32

FORBIDDEN = np.float32(-1e30)
"""Logit of a masked action: finite, so that probability 0 times its logarithm is 0."""
MOST_TERMS = 8
"""Most terms of a loss on CUDA, the entropy among them: each takes a row of shared memory."""
SMALLEST_MOMENT = np.float32(1e-36)
"""Moments of Adam below it become 0. Those of units without gradient would decay to denormal numbers and stay there, and Intel's processors
take some 40 times as long for those."""


class Row(NamedTuple):
    """What a loss gets of a row of the rollout, see `RowLoss`."""

    log_prob: float
    value: float
    advantage: float
    returns: float


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


def gradient_rows(network_rows: int, components: int) -> int:
    """Return the rows of a CUDA block that computes a gradient: those of the network, then the terms of the loss and, for each of the
    `components` of an action, what its distribution needs; at least TALL - 1, because the backward pass reads past a layer."""
    return network_rows + max(MOST_TERMS + components, TALL - 1)


def logit_derivative(log_p, chosen, entropy, d_log_prob, entropy_weight):  # type: ignore[no-untyped-def]
    """Return the derivative by a logit: d log p(a) / d l_k = [k = a] - p_k and d H / d l_k = -p_k (log p_k + H).

    `log_p` is log p_k, `chosen` is [k = a], `entropy` is H of the choice. The loss has the derivative `d_log_prob` and -`entropy_weight` H.
    """
    p = exp(log_p)
    return d_log_prob * (chosen - p) + entropy_weight * p * (log_p + entropy)


def gaussian_entropy(log_std):  # type: ignore[no-untyped-def]
    """Return the entropy of a Gaussian: 1/2 + log(sqrt(2 pi)) + log_std."""
    return log_std + (float32(0.5) + HALF_LOG_2_PI)


def gaussian_derivatives(z, scale, d_log_prob, entropy_weight):  # type: ignore[no-untyped-def]
    """Return the derivatives by the mean, z / standard deviation, and by the log standard deviation, z^2 - 1, with that of the entropy.

    `scale` is 1 / standard deviation. The loss has the derivative `d_log_prob` and -`entropy_weight` H.
    """
    return d_log_prob * z * scale, d_log_prob * (z * z - float32(1.0)) - entropy_weight


def adam(g, mean, square, keep1, beta2, keep2, step, square_scale, eps):  # type: ignore[no-untyped-def]
    """Return the new mean and square of a gradient's element `g`, and what is subtracted from the parameter; Kingma & Ba 2015, algorithm 1.

    `keep1` and `keep2` are 1 - beta1 and 1 - beta2. `step` is the learning rate over 1 - beta1^t, `square_scale` 1 over 1 - beta2^t.
    `optimizers.Adam` is the same in torch.
    """
    mean += keep1 * (g - mean)
    square = beta2 * square + keep2 * g * g
    mean = mean if abs(mean) > SMALLEST_MOMENT else float32(0.0)
    square = square if square > SMALLEST_MOMENT else float32(0.0)
    return mean, square, step * mean / (sqrt(square * square_scale) + eps)
