"""Clipping, Adam and the average of a target network (CPU), on pieces of the parameters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.learning.formulas import adam, between
from warprun.math import sqrt

PIECE = 4096
"""Parameters in a piece: each has its own sum of squares, so that threads do not change the norm."""
LANES = 16
"""Sums of squares of a piece: the additions of a single one would wait for each other."""

float32 = np.float32


class State(NamedTuple):
    """The tensors of Adam as arrays, and its settings."""

    parameters: NDArray[np.float32]
    """[P]."""
    target: NDArray[np.float32]
    """[P], or [0] without a target network."""
    mean: NDArray[np.float32]
    square: NDArray[np.float32]
    partial_sums: NDArray[np.float32]
    """[piece, LANES]: sums of the squares of a gradient."""
    norm: NDArray[np.float32]
    """[]: that of the gradient before clipping."""
    steps: NDArray[np.float64]
    """[1]."""
    learning_rate: NDArray[np.float64]
    """[]."""
    beta1: float
    beta2: float
    eps: float


def begin_step(first, last, gradient, state):
    """Sum the squares of pieces `first` .. `last` - 1 of `gradient` [P]; the first piece counts the step."""
    for piece in range(first, last):
        sums, part = state.partial_sums[piece], gradient[piece * PIECE : (piece + 1) * PIECE]
        sums[:] = float32(0.0)
        whole = part.size // LANES * LANES
        for m in range(0, whole, LANES):
            for lane in range(LANES):
                sums[lane] += part[m + lane] * part[m + lane]
        for m in range(whole, part.size):
            sums[0] += part[m] * part[m]
    if first == 0:
        state.steps[0] += 1.0


def end_step(first, last, gradient, state, max_norm, tau):
    """Clip these pieces of `gradient` in place, take an Adam step and move the target by `tau`; Kingma & Ba 2015, algorithm 1."""
    total = float32(0.0)
    for piece in range(state.partial_sums.shape[0]):
        for lane in range(LANES):
            total += state.partial_sums[piece, lane]
    norm = sqrt(total)
    if first == 0:
        state.norm[()] = norm
    scale = min(float32(1.0), float32(max_norm) / (norm + float32(1e-6)))
    correction1 = np.float64(1.0) - np.float64(state.beta1) ** state.steps[0]
    correction2 = np.float64(1.0) - np.float64(state.beta2) ** state.steps[0]
    step, square_scale = float32(state.learning_rate[()] / correction1), float32(1.0 / correction2)
    keep1, keep2, beta2 = float32(1.0 - state.beta1), float32(1.0 - state.beta2), float32(state.beta2)
    eps, target_step = float32(state.eps), float32(tau)
    begin, end = first * PIECE, last * PIECE
    slope, mean, square = gradient[begin:end], state.mean[begin:end], state.square[begin:end]
    parameters, target = state.parameters[begin:end], state.target[begin:end]
    for m in range(slope.size):
        slope[m] *= scale
        mean[m], square[m], change = adam(slope[m], mean[m], square[m], keep1, beta2, keep2, step, square_scale, eps)
        parameters[m] -= change
    for m in range(target.size):
        target[m] = between(target[m], parameters[m], target_step)
