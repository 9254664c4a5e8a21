"""The gradient of a policy in one kernel (CPU): forward, derivatives of the loss, backward and sum, in blocks that stay in cache.

Rows are cut into shares by a rule that depends only on their number. A thread computes one share after the other, and gradients are added
in the order of the shares, so the number of threads does not change a bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import typeof

from warprun.kernels import ahead
from warprun.kernels import compile as kernels
from warprun.kernels.mlp import Network, backward, forward, normalize
from warprun.kernels.simd import COLUMNS
from warprun.kernels.threads import threads as threads_of_process
from warprun.learning.gradients import (
    FORBIDDEN,
    TERMS,
    Derivatives,
    Rows,
    gaussian_derivatives,
    gaussian_entropy,
    gaussian_log_density,
    logit_derivative,
)
from warprun.math import exp, log
from warprun.spec import Box, MultiDiscrete, Space

SHARES = 16
"""Shares of a batch, each with its own gradient: enough to balance the threads of a desktop, few enough that adding them is cheap."""
CACHE_BYTES = 640 * 1024
"""Activations and derivatives that a thread processes at once: most of a second-level cache of 1 MB."""

float32 = np.float32


class Memory(NamedTuple):
    """Working memory of the threads, [thread, ...] each, and the results of the shares."""

    blocks: np.ndarray
    """[thread, block, row, COLUMNS]."""
    d_blocks: np.ndarray
    """The same shape: derivatives of the loss with respect to `blocks`."""
    columns: np.ndarray
    """[thread, CHOICES + 3 C, COLUMNS]: numbers of a column."""
    picked: np.ndarray
    """[thread, COLUMNS] int64: the row in each column."""
    zeros: np.ndarray
    """[row]."""
    gradient: np.ndarray
    """[share, P]."""
    terms: np.ndarray
    """[share, TERMS] float64: sums over rows."""


# Rows of Memory.columns. From CHOICES on, three for each choice of an action: logarithm of the sum of exponentials, entropy, action.
LOG_PROB, OLD_LOG_PROB, OLD_VALUE, ADVANTAGE, RETURNS, D_LOG_PROB = 0, 1, 2, 3, 4, 5
POLICY, VALUE, ENTROPY, KL, CLIPPED = 6, 7, 8, 9, 10  # the terms, in their order
CHOICES = 11

CONSTANTS = {
    "FLAGS": kernels.FLAGS,
    "COLUMNS": COLUMNS,
    "TERMS": TERMS,
    "LOG_PROB": LOG_PROB,
    "OLD_LOG_PROB": OLD_LOG_PROB,
    "OLD_VALUE": OLD_VALUE,
    "ADVANTAGE": ADVANTAGE,
    "RETURNS": RETURNS,
    "D_LOG_PROB": D_LOG_PROB,
    "POLICY": POLICY,
    "VALUE": VALUE,
    "KL": KL,
    "CLIPPED": CLIPPED,
    "float32": float32,
}
"""Globals of the kernel."""


def load(network, rows, begin, n, block, columns, picked):
    """Write `n` rows to a block, one per column. Other columns keep their values; the kernel sets their derivatives to 0."""
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
    """Write log-probabilities of actions and entropies to `columns`, and turn the logits in `block` into log-probabilities."""
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


def choices_backward(network, nvec, n, block, columns, entropy_weight, d_block, gradient):
    """Write the derivatives by the logits (`logit_derivative`)."""
    first = network.policy_row
    for j in range(nvec.size):
        entropy, chosen = columns[CHOICES + 3 * j + 1], columns[CHOICES + 3 * j + 2]
        for k in range(nvec[j]):
            for c in range(COLUMNS):
                picked = float32(1.0) if chosen[c] == float32(k) else float32(0.0)
                log_p, d_log_prob = block[first + k, c], columns[D_LOG_PROB, c]
                d_block[first + k, c] = logit_derivative(log_p, picked, entropy[c], d_log_prob, entropy_weight)
        first += nvec[j]


def gaussian_forward(network, nvec, rows, n, block, columns, picked):
    """Write log-densities and entropies to `columns`, and turn the means in `block` into (action - mean) / standard deviation."""
    for c in range(COLUMNS):
        columns[LOG_PROB, c] = float32(0.0)
        columns[ENTROPY, c] = float32(0.0)
    for d in range(rows.action.shape[1]):
        log_std = network.parameters[network.log_std + d]
        scale = exp(-log_std)
        for c in range(n):
            z = (rows.action[picked[c], d] - block[network.policy_row + d, c]) * scale
            block[network.policy_row + d, c] = z
            columns[LOG_PROB, c] += gaussian_log_density(z, log_std)
            columns[ENTROPY, c] += gaussian_entropy(log_std)


def gaussian_backward(network, nvec, n, block, columns, entropy_weight, d_block, gradient):
    """Write the derivatives by the means and by the log standard deviations (`gaussian_derivatives`)."""
    for d in range(network.value_row - network.policy_row):
        scale = exp(-network.parameters[network.log_std + d])
        total = float32(0.0)
        for c in range(n):
            z = block[network.policy_row + d, c]
            d_mean, d_log_std = gaussian_derivatives(z, scale, columns[D_LOG_PROB, c], entropy_weight)
            d_block[network.policy_row + d, c] = d_mean
            total += d_log_std
        gradient[network.log_std + d] += total


KERNEL = '''"""The gradient of a loss by the parameters of a policy ({derivatives}, {actions}); written by warprun."""

from numba import njit


@njit(nogil=True, cache=True, **FLAGS)
def gradient(first, last, thread, shares, network, nvec, rows, coefficients, entropy_coef, memory):
    count = rows.advantage.size
    weight = float32(1.0) / float32(count)
    together = memory.blocks.shape[1]
    for share in range(first, last):
        gradient, terms = memory.gradient[share], memory.terms[share]
        gradient[:] = float32(0.0)
        terms[:] = 0.0
        begin, end = count * share // shares, count * (share + 1) // shares
        while begin < end:
            used = 0
            while used < together and begin < end:
                n = min(COLUMNS, end - begin)
                block, d_block = memory.blocks[thread, used], memory.d_blocks[thread, used]
                columns, picked = memory.columns[thread], memory.picked[thread]
                load(network, rows, begin, n, block, columns, picked)
                forward(network.parameters, network.layers, block)
                {actions}_forward(network, nvec, rows, n, block, columns, picked)
                for c in range(COLUMNS):
                    d_log_prob, d_value, columns[POLICY, c], columns[VALUE, c], columns[KL, c], columns[CLIPPED, c] = {derivatives}(
                        columns[LOG_PROB, c],
                        block[network.value_row, c],
                        columns[OLD_LOG_PROB, c],
                        columns[OLD_VALUE, c],
                        columns[ADVANTAGE, c],
                        columns[RETURNS, c],
                        coefficients,
                    )
                    columns[D_LOG_PROB, c] = d_log_prob * weight
                    d_block[network.value_row, c] = d_value * weight
                for k in range(TERMS):
                    total = float32(0.0)
                    for c in range(n):
                        total += columns[POLICY + k, c]
                    terms[k] += total
                {actions}_backward(network, nvec, n, block, columns, entropy_coef * weight, d_block, gradient)
                d_block[network.policy_row : network.value_row + 1, n:] = float32(0.0)
                begin += n
                used += 1
            blocks, d_blocks = memory.blocks[thread, :used], memory.d_blocks[thread, :used]
            backward(network.parameters, network.layers, blocks, d_blocks, memory.zeros, gradient)
'''
"""The kernel, with placeholders for the name of the action distribution and of the derivatives of the loss.

Each combination is a kernel of its own, because Numba can neither inline nor cache a function that it gets as an argument.
"""


class FusedGradient:
    """Computes gradients of one network; allocates its memory once."""

    def __init__(self, network: Network, space: Space, derivatives: Derivatives, threads: int) -> None:
        self.network = network
        self.coefficients = derivatives.coefficients
        self.threads = threads_of_process(threads)
        self.nvec = np.array([] if isinstance(space, Box) else space.nvec if isinstance(space, MultiDiscrete) else [space.n], np.int64)
        actions, loss = "gaussian" if isinstance(space, Box) else "choices", derivatives.function.__name__
        heads = (gaussian_forward, gaussian_backward) if isinstance(space, Box) else (choices_forward, choices_backward)
        functions = {function.__name__: function for function in (load, forward, backward, *heads, derivatives.function)}
        source = KERNEL.format(actions=actions, derivatives=loss)
        self.module = kernels.load_module(loss, source, functions | CONSTANTS)
        together = max(1, min(16, CACHE_BYTES // (2 * network.rows * COLUMNS * 4)))

        def zeros(*shape: int) -> np.ndarray:
            return np.zeros(shape, np.float32)

        self.memory = Memory(
            blocks=zeros(self.threads.count, together, network.rows, COLUMNS),
            d_blocks=zeros(self.threads.count, together, network.rows, COLUMNS),
            columns=zeros(self.threads.count, CHOICES + 3 * self.nvec.size, COLUMNS),
            picked=np.zeros((self.threads.count, COLUMNS), np.int64),
            zeros=zeros(network.rows),
            gradient=zeros(SHARES, network.parameters.size),
            terms=np.zeros((SHARES, TERMS)),
        )

    def compile_ahead(self) -> None:
        """Let another process compile the kernel (`kernels.ahead`)."""
        numbers = np.zeros(1, np.float32)
        action = np.zeros((1, 1), np.int32 if self.nvec.size else np.float32)
        rows = Rows._make([np.zeros(0, np.int64), np.zeros((1, 1), np.float32), np.zeros((0, 0), np.bool_), action, *[numbers] * 4])
        ahead.want(self.module, "gradient", [typeof(value) for value in (0, 0, 0, *self._given(1, rows, 0.0))])

    def _given(self, shares: int, rows: Rows, entropy_coef: float) -> tuple[object, ...]:
        return shares, self.network, self.nvec, rows, self.coefficients, np.float32(entropy_coef), self.memory

    def gradient(self, rows: Rows, entropy_coef: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of the mean loss over `rows`, and the means of the terms, [TERMS] float32."""
        count = len(rows.advantage)
        # A share smaller than a block would compute unused columns.
        shares = max(1, min(SHARES, -(-count // COLUMNS)))
        given = self._given(shares, Rows._make(tensor.numpy() for tensor in rows), float(entropy_coef))
        self.threads.share(lambda first, last, n: self.module.gradient(first, last, n, *given), shares)
        gradient = torch.from_numpy(self.memory.gradient[:shares]).sum(0)
        return gradient, torch.from_numpy(self.memory.terms[:shares]).sum(0).div_(count).float()
