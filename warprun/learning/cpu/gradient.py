"""The gradient of a policy in one kernel (CPU): forward, slope of the loss, backward and sum, in blocks that stay in cache.

Rows are cut into shares by a rule that knows only their number; a thread computes one share after the other, and gradients are added
in the order of the shares, so the number of threads does not change a bit. What differs between algorithms is one scalar function,
`slopes`, that stands beside the loss it is the derivative of.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from warprun.environment import Box, MultiDiscrete, Space
from warprun.kernels import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.kernels.mlp import Network, backward, forward, normalize
from warprun.kernels.simd import COLUMNS
from warprun.kernels.threads import threads as threads_of_process
from warprun.math import exp, log

SHARES = 16
"""Parts of a batch with a gradient of their own: enough for balance on any desktop, few enough that adding them costs nothing."""
CACHE_BYTES = 640 * 1024
"""Activations and slopes that a thread works on at once: most of a second-level cache of 1 MB."""
FORBIDDEN = np.float32(-1e30)
"""Logit of a masked action: finite, so that probability 0 times its logarithm is 0."""

float32 = np.float32


class Rows(NamedTuple):
    """What a gradient is computed from. R rows in all, of which `order` picks B (empty: all, in their order)."""

    order: Any
    """[B] int64 or [0]."""
    obs: Any
    """[R, F] float32."""
    mask: Any
    """[R, M] bool, or [0, 0]."""
    action: Any
    """[R, C] int32 or float32."""
    log_prob: Any
    """[R] float32: under the policy of the rollout."""
    value: Any
    """[R] float32: by the network of the rollout."""
    advantage: Any
    """[B] float32: already picked."""
    returns: Any
    """[R] float32."""


class Memory(NamedTuple):
    """What threads write on, [thread, ...] each, and what shares give."""

    blocks: Any
    """[thread, block, row, COLUMNS]."""
    slopes: Any
    """The same for derivatives."""
    columns: Any
    """[thread, CHOICES + 3 C, COLUMNS]: numbers of a column."""
    picked: Any
    """[thread, COLUMNS] int64: the row that stands in each column."""
    zeros: Any
    gradient: Any
    """[share, P]."""
    terms: Any
    """[share, TERMS] float64: sums over rows."""


TERMS = 5
"""policy, value, entropy, approx_kl, clip_fraction."""

# Rows of Memory.columns; from CHOICES on, three for each choice of an action: what makes logits log-probabilities, entropy, action.
LOG_PROB, OLD_LOG_PROB, OLD_VALUE, ADVANTAGE, RETURNS, SLOPE = 0, 1, 2, 3, 4, 5
POLICY, VALUE, ENTROPY, KL, CLIPPED = 6, 7, 8, 9, 10  # the terms, in their order
CHOICES = 11


def slopes(log_prob, value, old_log_prob, old_value, advantage, returns, coefficients):
    """Stand here for the derivatives of an algorithm's loss, which `FusedGradient` puts in this place."""
    raise NotImplementedError


def actions_forward(network, nvec, rows, n, block, columns, picked):
    """Stand here for `choices_forward` or `gaussian_forward`, as the action space is."""
    raise NotImplementedError


def actions_backward(network, nvec, n, block, columns, entropy_weight, slope, gradient):
    """Stand here for `choices_backward` or `gaussian_backward`."""
    raise NotImplementedError


def share_of_gradient(share, shares, thread, network, nvec, rows, coefficients, entropy_coef, memory):
    """Compute the gradient of one share of the rows, and the sums of its terms."""
    gradient, terms = memory.gradient[share], memory.terms[share]
    gradient[:] = float32(0.0)
    terms[:] = 0.0
    count = rows.advantage.size
    weight = float32(1.0) / float32(count)
    begin, end = count * share // shares, count * (share + 1) // shares
    together = memory.blocks.shape[1]
    while begin < end:
        used = 0
        while used < together and begin < end:
            n = min(COLUMNS, end - begin)
            block, slope = memory.blocks[thread, used], memory.slopes[thread, used]
            columns, picked = memory.columns[thread], memory.picked[thread]
            load(network, rows, begin, n, block, columns, picked)
            forward(network.parameters, network.layers, block)
            actions_forward(network, nvec, rows, n, block, columns, picked)
            for c in range(COLUMNS):
                slope_log_prob, slope_value, columns[POLICY, c], columns[VALUE, c], columns[KL, c], columns[CLIPPED, c] = slopes(
                    columns[LOG_PROB, c],
                    block[network.value_row, c],
                    columns[OLD_LOG_PROB, c],
                    columns[OLD_VALUE, c],
                    columns[ADVANTAGE, c],
                    columns[RETURNS, c],
                    coefficients,
                )
                columns[SLOPE, c] = slope_log_prob * weight
                slope[network.value_row, c] = slope_value * weight
            for k in range(TERMS):
                total = float32(0.0)
                for c in range(n):
                    total += columns[POLICY + k, c]
                terms[k] += total
            actions_backward(network, nvec, n, block, columns, entropy_coef * weight, slope, gradient)
            slope[network.policy_row : network.value_row + 1, n:] = float32(0.0)
            begin += n
            used += 1
        backward(
            network.parameters,
            network.layers,
            memory.blocks[thread, :used],
            memory.slopes[thread, :used],
            memory.zeros,
            gradient,
        )


def load(network, rows, begin, n, block, columns, picked):
    """Bring `n` rows into a block, a row a column; the columns that are left keep what they hold, with slope 0."""
    for c in range(n):
        picked[c] = rows.order[begin + c] if rows.order.size > 0 else begin + c
    for c in range(n):
        row = picked[c]
        columns[OLD_LOG_PROB, c] = rows.log_prob[row]
        columns[OLD_VALUE, c] = rows.value[row]
        columns[RETURNS, c] = rows.returns[row]
        columns[ADVANTAGE, c] = rows.advantage[begin + c]
        for f in range(rows.obs.shape[1]):
            block[f, c] = rows.obs[row, f]
    normalize(network.mean, network.scale, block)


def choices_forward(network, nvec, rows, n, block, columns, picked):
    """Give the log-probability of the actions and the entropy, and make the logits in `block` log-probabilities."""
    if rows.mask.shape[1] > 0:
        for c in range(n):
            for k in range(rows.mask.shape[1]):
                if not rows.mask[picked[c], k]:
                    block[network.policy_row + k, c] = FORBIDDEN
    for c in range(COLUMNS):
        columns[LOG_PROB, c] = float32(0.0)
        columns[ENTROPY, c] = float32(0.0)
    first = network.policy_row
    for j in range(nvec.size):
        total, entropy, chosen = columns[CHOICES + 3 * j], columns[CHOICES + 3 * j + 1], columns[CHOICES + 3 * j + 2]
        for c in range(n):
            chosen[c] = rows.action[picked[c], j]
        for c in range(COLUMNS):
            total[c] = block[first, c]
        for k in range(1, nvec[j]):
            for c in range(COLUMNS):
                total[c] = max(total[c], block[first + k, c])
        for k in range(nvec[j]):
            for c in range(COLUMNS):
                block[first + k, c] -= total[c]
        for c in range(COLUMNS):
            total[c] = float32(0.0)
            entropy[c] = float32(0.0)
        for k in range(nvec[j]):
            for c in range(COLUMNS):
                total[c] += exp(block[first + k, c])
        for c in range(COLUMNS):
            total[c] = log(total[c])
        for k in range(nvec[j]):
            for c in range(COLUMNS):
                log_p = block[first + k, c] - total[c]
                block[first + k, c] = log_p
                entropy[c] -= exp(log_p) * log_p
                columns[LOG_PROB, c] += log_p if chosen[c] == float32(k) else float32(0.0)
        for c in range(COLUMNS):
            columns[ENTROPY, c] += entropy[c]
        first += nvec[j]


def choices_backward(network, nvec, n, block, columns, entropy_weight, slope, gradient):
    """Give the slopes of the logits: d log p(a) / d l_k = [k = a] - p_k and d H / d l_k = -p_k (log p_k + H)."""
    first = network.policy_row
    for j in range(nvec.size):
        entropy, chosen = columns[CHOICES + 3 * j + 1], columns[CHOICES + 3 * j + 2]
        for k in range(nvec[j]):
            for c in range(COLUMNS):
                log_p = block[first + k, c]
                p = exp(log_p)
                picked = float32(1.0) if chosen[c] == float32(k) else float32(0.0)
                slope[first + k, c] = columns[SLOPE, c] * (picked - p) + entropy_weight * p * (log_p + entropy[c])
        first += nvec[j]


def gaussian_forward(network, nvec, rows, n, block, columns, picked):
    """Give the log-density of the actions and the entropy; the means in `block` become (action - mean) / standard deviation."""
    for c in range(COLUMNS):
        columns[LOG_PROB, c] = float32(0.0)
        columns[ENTROPY, c] = float32(0.0)
    for d in range(rows.action.shape[1]):
        log_std = network.parameters[network.log_std + d]
        scale = exp(-log_std)
        for c in range(n):
            z = (rows.action[picked[c], d] - block[network.policy_row + d, c]) * scale
            block[network.policy_row + d, c] = z
            columns[LOG_PROB, c] += float32(-0.5) * z * z - log_std - float32(0.9189385332046727)  # log(sqrt(2 pi))
            columns[ENTROPY, c] += log_std + float32(1.4189385332046727)  # 1/2 + log(sqrt(2 pi))


def gaussian_backward(network, nvec, n, block, columns, entropy_weight, slope, gradient):
    """Give the slopes of the means, z / standard deviation, and of the log standard deviations, z^2 - 1."""
    for d in range(network.value_row - network.policy_row):
        scale = exp(-network.parameters[network.log_std + d])
        total = float32(0.0)
        for c in range(n):
            z = block[network.policy_row + d, c]
            slope[network.policy_row + d, c] = columns[SLOPE, c] * z * scale
            total += columns[SLOPE, c] * (z * z - float32(1.0)) - entropy_weight
        gradient[network.log_std + d] += total


SOURCE = '''"""The gradient of a policy; written by warprun."""

from numba import njit


@njit(nogil=True, cache=True, **FLAGS)
def gradient(first, last, thread, shares, network, nvec, rows, coefficients, entropy_coef, memory):
    for share in range(first, last):
        share_of_gradient(share, shares, thread, network, nvec, rows, coefficients, entropy_coef, memory)

'''


class FusedGradient:
    """Computes gradients of one network; the memory for it is taken once."""

    def __init__(self, network: Network, space: Space, slopes: Callable[..., Any], coefficients: Any, threads: int) -> None:
        self.network = network
        self.coefficients = coefficients
        self.threads = threads_of_process(threads)
        self.nvec = np.array([] if isinstance(space, Box) else space.nvec if isinstance(space, MultiDiscrete) else [space.n], np.int64)
        heads = (gaussian_forward, gaussian_backward) if isinstance(space, Box) else (choices_forward, choices_backward)
        # Numba cannot cache a kernel that is handed functions, so they become globals.
        own_globals = globals() | {"slopes": slopes, "actions_forward": heads[0], "actions_backward": heads[1]}
        own = FunctionType(share_of_gradient.__code__, own_globals, share_of_gradient.__name__)
        functions = {"share_of_gradient": own}
        constants = {"FLAGS": kernels.FLAGS, "COLUMNS": COLUMNS}
        self.module: ModuleType = kernels.load_module(slopes.__name__, SOURCE, functions | constants, kernels.merged_function)
        together = max(1, min(16, CACHE_BYTES // (2 * network.rows * COLUMNS * 4)))

        def zeros(*shape: int) -> np.ndarray:
            return np.zeros(shape, np.float32)

        self.memory = Memory(
            blocks=zeros(self.threads.count, together, network.rows, COLUMNS),
            slopes=zeros(self.threads.count, together, network.rows, COLUMNS),
            columns=zeros(self.threads.count, CHOICES + 3 * self.nvec.size, COLUMNS),
            picked=np.zeros((self.threads.count, COLUMNS), np.int64),
            zeros=zeros(network.rows),
            gradient=zeros(SHARES, network.parameters.size),
            terms=np.zeros((SHARES, TERMS)),
        )

    def gradient(self, rows: Rows, entropy_coef: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of the mean loss over `rows`, and the means of the terms, [TERMS] float32."""
        count = rows.advantage.size
        # A share of less than a block would compute columns that nobody needs.
        shares = max(1, min(SHARES, -(-count // COLUMNS)))
        given = (shares, self.network, self.nvec, rows, self.coefficients, np.float32(entropy_coef), self.memory)
        self.threads.share(lambda first, last, n: self.module.gradient(first, last, n, *given), shares)
        gradient = torch.from_numpy(self.memory.gradient[:shares]).sum(0)
        return gradient, torch.from_numpy(self.memory.terms[:shares]).sum(0).div_(count).float()
