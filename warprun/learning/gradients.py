"""What kernels that compute gradients take and give, on CPU and on a GPU, and the formulas of policies that they share.

Algorithms differ in one scalar function, the `Derivatives` of their loss. The formulas of a single choice or a single component of an
action are here, as functions for kernels; each kernel loops over them as suits its device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch

from warprun.kernels.mlp_cuda import TALL, columns_for
from warprun.learning.returns import Estimate, Target
from warprun.math import exp
from warprun.simulation.trajectory import Trajectory
from warprun.spec import Spec

float32 = np.float32

FORBIDDEN = np.float32(-1e30)
"""Logit of a masked action: finite, so that probability 0 times its logarithm is 0."""
HALF_LOG_2_PI = np.float32(0.9189385332046727)


TERMS = 5
"""Terms of a loss: policy, value, entropy, approx_kl, clip_fraction."""


class Derivatives(NamedTuple):
    """The derivatives of a loss, such as `a2c_derivatives`, which is defined next to its loss."""

    function: Callable[..., tuple[float, ...]]
    """f(log_prob, value, old_log_prob, old_value, advantage, returns, coefficients) of one row, a function for kernels.

    It returns the derivatives of the row's loss with respect to log_prob and value, then the terms of the row: policy loss, value loss, KL
    divergence, and whether the ratio is clipped. The entropy bonus is not included.
    """
    coefficients: tuple[np.float32, ...]
    """Numbers of the loss, a NamedTuple."""


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


class GradientKernels(Protocol):
    """Computes the gradients of one network with kernels."""

    def gradient(
        self, rows: Rows, entropy_coef: torch.Tensor, moments: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of the mean loss over `rows`, and the means of the loss and of its terms, [1 + TERMS] float32.

        The loss is that of the policy, plus the value loss times its coefficient, minus the entropy times `entropy_coef`.
        The tensors of `rows` are contiguous and on the device of the network; `entropy_coef` is a number there, []. With `moments`, mean
        and variance, [] each, the loss takes advantages that are normalized by them (`returns.normalize_advantage`). The next call may
        overwrite both. The same `rows` object means the same memory.
        """


class ReturnKernels(Protocol):
    """Computes next values and advantages with kernels."""

    def next_value(self, trajectory: Trajectory, name: str) -> torch.Tensor:
        """Return V of the observation after each step of group `name`, [T, N, A]."""

    def estimate(self, target: Target, trajectory: Trajectory, name: str, reward: torch.Tensor, log_ratio: torch.Tensor | None) -> Estimate:
        """Return advantages and returns, [T, N, A], of group `name`; the next call for this trajectory may overwrite them.

        `reward` is in the units of the values; `log_ratio` [T, N, A] is for targets that use it.
        """


class Fused(NamedTuple):
    """The kernels of one policy."""

    returns: ReturnKernels
    gradient: GradientKernels | None = None
    """None where torch computes gradients."""
    step: Callable[[torch.Tensor], torch.Tensor] | None = None
    """step(gradient [P]) clips, moves the parameters and returns the norm, [], which the next call overwrites; None where torch does."""
    observe: Callable[[torch.Tensor], None] | None = None
    """observe(rows [B, F]) takes observations into the statistics that normalise them; None where torch does."""
    normalize_reward: Callable[[Trajectory, str], torch.Tensor] | None = None
    """normalize_reward(trajectory, group) returns the rewards of a group normalised, [T, N, A]; None where torch does."""


def gradient_rows(network_rows: int, components: int) -> int:
    """Return the rows of a CUDA block that computes a gradient: those of the network, then TERMS terms of the loss and, for each of the
    `components` of an action, what its distribution needs; at least TALL - 1, because the backward pass reads past a layer."""
    return network_rows + max(TERMS + components, TALL - 1)


def gradients_fit(spec: Spec, network_rows: Mapping[str, int]) -> bool:
    """Return whether gradients can be computed in the shared memory of a GPU; `network_rows` per group: see `plan.Fusion`."""
    return all(columns_for(gradient_rows(rows, spec.group(name).action.components), 1) > 0 for name, rows in network_rows.items())


def logit_derivative(log_p, chosen, entropy, d_log_prob, entropy_weight):  # type: ignore[no-untyped-def]
    """Return the derivative by a logit: d log p(a) / d l_k = [k = a] - p_k and d H / d l_k = -p_k (log p_k + H).

    `log_p` is log p_k, `chosen` is [k = a], `entropy` is H of the choice. The loss has the derivative `d_log_prob` and -`entropy_weight` H.
    """
    p = exp(log_p)
    return d_log_prob * (chosen - p) + entropy_weight * p * (log_p + entropy)


def gaussian_log_density(z, log_std):  # type: ignore[no-untyped-def]
    """Return the logarithm of a Gaussian density at `z` standard deviations from the mean."""
    return float32(-0.5) * z * z - log_std - HALF_LOG_2_PI


def gaussian_entropy(log_std):  # type: ignore[no-untyped-def]
    """Return the entropy of a Gaussian: 1/2 + log(sqrt(2 pi)) + log_std."""
    return log_std + (float32(0.5) + HALF_LOG_2_PI)


def gaussian_derivatives(z, scale, d_log_prob, entropy_weight):  # type: ignore[no-untyped-def]
    """Return the derivatives by the mean, z / standard deviation, and by the log standard deviation, z^2 - 1, with that of the entropy.

    `scale` is 1 / standard deviation. The loss has the derivative `d_log_prob` and -`entropy_weight` H.
    """
    return d_log_prob * z * scale, d_log_prob * (z * z - float32(1.0)) - entropy_weight
