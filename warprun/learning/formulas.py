"""Formulas of learning for one row or one number: kernels for CPU and CUDA loop over them, and torch computes most of them on tensors.

Those of losses stand beside their algorithms, those of advantages in `targets.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from warprun.learning.settings.plan import LOSS_ROWS
from warprun.math import maximum, sqrt, where

if TYPE_CHECKING:
    from warprun.learning.tensors import Number

float32 = np.float32

RESOLUTION = 2.0**-24
"""Relative rounding error of float32: a standard deviation of less than this part of the mean is rounding."""
TINY = np.float64(2.0**-126)
"""Smallest float32 with all its digits: below it a standard deviation is rounding, too, and 1 / TINY is still a float32."""
MOST_TERMS = LOSS_ROWS
"""Most terms of a loss, the entropy among them: kernels keep a row of memory for each."""
SMALLEST_MOMENT = np.float32(1e-36)
"""Moments of Adam below it become 0. Those of units without gradient would decay to denormal numbers and stay there, and Intel's processors
take some 40 times as long for those."""


STEP = 1.5
"""Factor by which an adapted learning rate changes."""
ROUNDING = 2.0**-20
"""Advantages whose standard deviation is less than this part of their mean differ by the rounding of float32 sums."""


class Row(NamedTuple):
    """A row of the rollout as a loss gets it, see `RowLoss`."""

    log_prob: Number
    value: Number
    advantage: Number
    returns: Number


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


def between(a, b, weight):  # type: ignore[no-untyped-def]
    """Return a + weight (b - a); exactly b for a weight of 1."""
    return a + weight * (b - a) if weight < float32(0.5) else b - (float32(1.0) - weight) * (b - a)


def merged(mean, variance, count, offset, more_variance, more):  # type: ignore[no-untyped-def]
    """Return mean and population variance of `count` rows and `more` others, whose mean is `mean` + `offset`; Chan et al. 1979.

    A `count` of 0 takes the 1 that stands for "no variance known yet" out of the sum.
    """
    total = count + more
    squares = variance * count + more_variance * more + offset * offset * (count * more / total)
    return mean + offset * (more / total), squares / total


def explained(errors, returns):  # type: ignore[no-untyped-def]
    """Return 1 - Var(errors) / Var(returns), given both variances; 0 if the returns do not vary."""
    return where(returns > 0.0, (returns - errors) / returns, 0.0)


def averaged(mean, x, number):  # type: ignore[no-untyped-def]
    """Return the mean of `number` numbers, of which `x` is the last and `mean` that of the others, any number if there are none."""
    return x if number == 1 else mean + float32(1.0) / float32(number) * (x - mean)


def adapted(factor, kl, desired, low, high):  # type: ignore[no-untyped-def]
    """Return the factor of the learning rate after an update of divergence `kl`, see `operations.TorchOperations.adapt`."""
    change = np.float64(1.0) / np.float64(STEP) if kl > 2.0 * desired else np.float64(STEP) if kl < 0.5 * desired else np.float64(1.0)
    return min(max(factor * change, low), high)


def varies(mean, variance):  # type: ignore[no-untyped-def]
    """Return whether numbers vary by more than the rounding of float32."""
    least = maximum(abs(RESOLUTION * mean), TINY)
    return variance > least * least


def advantage_scale(mean, variance):  # type: ignore[no-untyped-def]
    """Return what advantages less their mean are multiplied by: 1 over the standard deviation, or 1 if they do not vary."""
    deviation = sqrt(variance)
    return where(deviation > ROUNDING * abs(mean), 1.0 / (deviation + 1e-8), 1.0)


def normalized_reward(reward, terminated, mean, scale, gamma):  # type: ignore[no-untyped-def]
    """Return a reward less the potential `mean` that is lost, in units of the standard deviation, see `RewardNormalizer`."""
    return (reward - where(terminated, mean, (1.0 - gamma) * mean)) * scale


def rescaled(x, eps):  # type: ignore[no-untyped-def]
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x; Pohlen et al. 2018, section 3.2.

    The difference of the root and 1 is written as |x| / (sqrt(|x| + 1) + 1), which loses no digits near 0.
    """
    return x / (sqrt(abs(x) + 1.0) + 1.0) + eps * x


def unscaled(x, eps):  # type: ignore[no-untyped-def]
    """Return the inverse of `rescaled`; Pohlen et al. 2018, proposition A.2.

    With u = sqrt(|x| + 1) - 1 it is |h(x)| = u + eps u (u + 2): the positive root u of this, in the form that loses no digits, and from it
    |x| = u (u + 2).
    """
    size, linear = abs(x), 1.0 + 2.0 * eps
    u = 2.0 * size / (linear + sqrt(linear * linear + 4.0 * eps * size))
    return where(x < 0.0, -1.0, 1.0) * u * (u + 2.0)
