"""One element of a step of Adam, as a function for kernels; `optimizers.Adam` is the same in torch."""

import numpy as np

from warprun.math import sqrt

SMALLEST_MOMENT = np.float32(1e-36)
"""Moments below it become 0. Those of units without gradient would decay to denormal numbers and stay there, and Intel's processors take
some 40 times as long for those."""

float32 = np.float32


def adam(g, mean, square, keep1, beta2, keep2, step, square_scale, eps):  # type: ignore[no-untyped-def]
    """Return the new mean and square of a gradient's element `g`, and what is subtracted from the parameter; Kingma & Ba 2015, algorithm 1.

    `keep1` and `keep2` are 1 - beta1 and 1 - beta2. `step` is the learning rate over 1 - beta1^t, `square_scale` 1 over 1 - beta2^t.
    """
    mean += keep1 * (g - mean)
    square = beta2 * square + keep2 * g * g
    mean = mean if abs(mean) > SMALLEST_MOMENT else float32(0.0)
    square = square if square > SMALLEST_MOMENT else float32(0.0)
    return mean, square, step * mean / (sqrt(square * square_scale) + eps)


def power(base, exponent):  # type: ignore[no-untyped-def]
    """Return `base` to a whole `exponent`, in the precision of `base`, by squaring."""
    result = base / base
    while exponent > 0:
        if exponent % 2 == 1:
            result *= base
        base *= base
        exponent //= 2
    return result
