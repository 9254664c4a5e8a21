"""The gradient of a policy in one kernel (CPU): forward, derivatives of the loss, backward and sum, in blocks that stay in cache.

Rows are cut into blocks and shares by a rule that depends only on their number and on that of a step: a block holds the rows of one tile at
one step, and is as narrow as they allow. A thread computes one share after the other, and gradients are added in the order of the shares,
so the number of threads does not change a bit. Activations are computed, or those of the rollout, which are the same.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from warprun.kernels import ahead
from warprun.kernels import compile as kernels
from warprun.kernels.bound import Call, signature
from warprun.kernels.mlp import Network, backward, forward, normalize, width_of
from warprun.kernels.sampling import FORBIDDEN, gaussian_derivatives, gaussian_entropy, gaussian_log_density, logit_derivative
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team
from warprun.learning.batch import ROUNDING, Batch
from warprun.learning.formulas import MOST_TERMS, Row
from warprun.learning.kernels.rows import Rows, rows_of
from warprun.learning.operations import Moments, RowLoss
from warprun.math import exp, log
from warprun.simulation.codegen.templates import fill
from warprun.spec import Box, Space, choices

SHARES = 16
"""Shares of a batch, each with its own gradient: enough to balance the threads of a desktop, few enough that adding them is cheap."""
CACHE_BYTES = 640 * 1024
"""Activations and derivatives that a thread processes at once: most of a second-level cache of 1 MB."""
SHARE_BLOCKS = 4
"""Blocks of a share, if there are not too many rows: the sums over the columns of so many blocks cost a quarter of those of single ones."""

float32 = np.float32


class Numbers(NamedTuple):
    """Numbers of an update, [] float32 each, in the memory of those who set them."""

    entropy_coef: np.ndarray
    mean: np.ndarray
    """Of the advantages, which are normalized by it and by `variance`; 0 and 1 leave them as they are."""
    variance: np.ndarray


class Workspace(NamedTuple):
    """Working memory of the threads, [thread, ...] each, and the results of the shares."""

    blocks: np.ndarray
    """[thread, together * row * COLUMNS]: blocks, one after the other."""
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
    """[share, terms and entropy] float64: sums over rows."""
    total: np.ndarray
    """[P]: the sum of `gradient`."""
    means: np.ndarray
    """[terms and entropy]: means over rows."""


# Rows of Workspace.columns: from FIRST_TERM on the terms of the loss, from CHOICES on three for each choice of an action: logarithm of the
# sum of exponentials, entropy, action.
LOG_PROB, OLD_LOG_PROB, OLD_VALUE, ADVANTAGE, RETURNS, D_LOG_PROB, ENTROPY, FIRST_TERM = range(8)
CHOICES = FIRST_TERM + MOST_TERMS - 1


def shift_and_scale(mean, variance):
    """Return what is subtracted from advantages and what they are multiplied by, so that they are those of `normalize_advantage`."""
    deviation = math.sqrt(np.float64(variance))
    return mean, float32(1.0 / (deviation + 1e-8) if deviation > ROUNDING * abs(mean) else 1.0)


def load(rows, shift, scale, begin, n, columns, picked):
    """Write the numbers of `n` rows to `columns`. Other columns keep their values; the kernel sets their derivatives to 0."""
    for c in range(n):
        picked[c] = rows.order[begin + c] if rows.order.size > 0 else begin + c
    # A loop for each: only then LLVM gathers vectors.
    for c in range(n):
        columns[OLD_LOG_PROB, c] = rows.log_prob[picked[c]]
    for c in range(n):
        columns[OLD_VALUE, c] = rows.value[picked[c]]
    for c in range(n):
        columns[RETURNS, c] = rows.returns[picked[c]]
    for c in range(n):
        columns[ADVANTAGE, c] = (rows.advantage[begin + c] - shift) * scale


def steps_of(count, step_rows):
    """Return into how many steps of how many rows a gradient cuts `count` rows: those of the rollout if they fill a block."""
    return (count // step_rows, step_rows) if step_rows >= COLUMNS else (1, count)


def blocks_of(steps, step_rows):
    """Return how many blocks these rows take."""
    return -(-step_rows // COLUMNS) * steps


def compute(network, obs, n, block, picked):
    """Compute the network for the first `n` rows that are `picked` of `obs`, one per column of `block`."""
    for f in range(obs.shape[1]):
        for c in range(n):
            block[f, c] = obs[picked[c], f]
    normalize(network.mean, network.scale, block)
    forward(network.parameters, network.layers, block)


def choices_forward(network, nvec, rows, n, block, columns, picked):
    """Write log-probabilities of actions and entropies to `columns`, and turn the logits in `block` into log-probabilities."""
    if rows.mask.shape[1] > 0:
        for c in range(n):
            for k in range(rows.mask.shape[1]):
                if not rows.mask[picked[c], k]:
                    block[network.policy_row + k, c] = FORBIDDEN
    for c in range(block.shape[1]):
        columns[LOG_PROB, c] = float32(0.0)
        columns[ENTROPY, c] = float32(0.0)
    first = network.policy_row
    for j in range(nvec.size):
        total, entropy, chosen = columns[CHOICES + 3 * j], columns[CHOICES + 3 * j + 1], columns[CHOICES + 3 * j + 2]
        for c in range(n):
            chosen[c] = rows.action[picked[c], j]
        for c in range(block.shape[1]):
            total[c] = block[first, c]
        for k in range(1, nvec[j]):
            for c in range(block.shape[1]):
                total[c] = max(total[c], block[first + k, c])
        for k in range(nvec[j]):
            for c in range(block.shape[1]):
                block[first + k, c] -= total[c]
        for c in range(block.shape[1]):
            total[c] = float32(0.0)
            entropy[c] = float32(0.0)
        for k in range(nvec[j]):
            for c in range(block.shape[1]):
                total[c] += exp(block[first + k, c])
        for c in range(block.shape[1]):
            total[c] = log(total[c])
        for k in range(nvec[j]):
            for c in range(block.shape[1]):
                log_p = block[first + k, c] - total[c]
                block[first + k, c] = log_p
                entropy[c] -= exp(log_p) * log_p
                columns[LOG_PROB, c] += log_p if chosen[c] == float32(k) else float32(0.0)
        for c in range(block.shape[1]):
            columns[ENTROPY, c] += entropy[c]
        first += nvec[j]


def choices_backward(network, nvec, n, block, columns, entropy_weight, d_block, gradient):
    """Write the derivatives by the logits (`logit_derivative`)."""
    first = network.policy_row
    for j in range(nvec.size):
        entropy, chosen = columns[CHOICES + 3 * j + 1], columns[CHOICES + 3 * j + 2]
        for k in range(nvec[j]):
            for c in range(block.shape[1]):
                picked = float32(1.0) if chosen[c] == float32(k) else float32(0.0)
                log_p, d_log_prob = block[first + k, c], columns[D_LOG_PROB, c]
                d_block[first + k, c] = logit_derivative(log_p, picked, entropy[c], d_log_prob, entropy_weight)
        first += nvec[j]


def gaussian_forward(network, nvec, rows, n, block, columns, picked):
    """Write log-densities and entropies to `columns`, and turn the means in `block` into (action - mean) / standard deviation."""
    for c in range(block.shape[1]):
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


KERNEL = '''"""The gradient of $name by the parameters of a policy ($actions); written by warprun."""

from numba import njit


@njit(cache=True, **BOUND)
def gradient(first, last, thread, shares, rows, numbers, network, nvec, coefficients, memory):
    height, kept = network.rows, rows.activations.reshape(rows.activations.size)
    steps, step_rows = steps_of(rows.advantage.size, rows.step_rows)
    weight = float32(1.0) / float32(rows.advantage.size)
    shift, scale = shift_and_scale(numbers.mean[()], numbers.variance[()])
    # Blocks are numbered tile after tile, in each step after step. Only those of the last tile may have fewer columns.
    full = step_rows // COLUMNS * steps
    in_all = blocks_of(steps, step_rows)
    together = memory.blocks.shape[1] // (height * COLUMNS)
    columns, picked = memory.columns[thread], memory.picked[thread]
    for share in range(first, last):
        gradient, terms = memory.gradient[share], memory.terms[share]
        gradient[:] = float32(0.0)
        terms[:] = 0.0
        number, end = in_all * share // shares, in_all * (share + 1) // shares
        while number < end:
            # As many blocks of one width as fit into the memory.
            used = min(together, (min(end, full) if number < full else end) - number)
            n = COLUMNS if number < full else step_rows % COLUMNS
            width = width_of(n)
            size = used * height * width
            start = (number if number < full else full) * COLUMNS + max(0, number - full) * width
            place = kept[start * height :] if kept.size > 0 else memory.blocks[thread]
            blocks = place[:size].reshape(used, height, width)
            d_blocks = memory.d_blocks[thread][:size].reshape(used, height, width)
            for b in range(used):
                block, d_block = blocks[b], d_blocks[b]
                begin = (number + b) % steps * step_rows + (number + b) // steps * COLUMNS
                load(rows, shift, scale, begin, n, columns, picked)
                if kept.size == 0:
                    compute(network, rows.obs, n, block, picked)
                ${actions}_forward(network, nvec, rows, n, block, columns, picked)
                for c in range(width):
                    row = Row(columns[OLD_LOG_PROB, c], columns[OLD_VALUE, c], columns[ADVANTAGE, c], columns[RETURNS, c])
                    d_log_prob, d_value, shown = loss(columns[LOG_PROB, c], block[network.value_row, c], row, coefficients)
                    columns[D_LOG_PROB, c] = d_log_prob * weight
                    d_block[network.value_row, c] = d_value * weight
                    $write_terms
                for k in range(terms.size):
                    place = FIRST_TERM + k if k < terms.size - 1 else ENTROPY
                    total = float32(0.0)
                    for c in range(n):
                        total += columns[place, c]
                    terms[k] += total
                ${actions}_backward(network, nvec, n, block, columns, numbers.entropy_coef[()] * weight, d_block, gradient)
                d_block[network.policy_row : network.value_row + 1, n:] = float32(0.0)
            number += used
            backward(network.parameters, network.layers, blocks, d_blocks, memory.zeros, gradient)


@njit(cache=True, **BOUND)
def finish(first, last, thread, shares, rows, memory):
    total, means = memory.total, memory.means
    total[:] = float32(0.0)
    for share in range(shares):
        more = memory.gradient[share]
        for m in range(total.size):
            total[m] += more[m]
    for k in range(means.size):
        term = 0.0
        for share in range(shares):
            term += memory.terms[share, k]
        means[k] = term / rows.advantage.size
'''
"""The kernel of an action distribution and a loss, and the one that adds shares.

Each combination is a kernel of its own, because Numba can neither inline nor cache a function that it gets as an argument.
"""
FUNCTIONS = (load, compute, shift_and_scale, steps_of, blocks_of, width_of, backward)
"""Functions that the kernels of all losses call."""
CONSTANTS = {
    "BOUND": kernels.BOUND,
    "COLUMNS": COLUMNS,
    "LOG_PROB": LOG_PROB,
    "OLD_LOG_PROB": OLD_LOG_PROB,
    "OLD_VALUE": OLD_VALUE,
    "ADVANTAGE": ADVANTAGE,
    "RETURNS": RETURNS,
    "D_LOG_PROB": D_LOG_PROB,
    "ENTROPY": ENTROPY,
    "FIRST_TERM": FIRST_TERM,
    "Row": Row,
    "float32": float32,
}
"""Other globals of the kernel."""


class CpuGradient:
    """Computes gradients of one network by kernels; allocates its memory once."""

    def __init__(self, network: Network, space: Space, loss: RowLoss, entropy_coef: torch.Tensor, threads: int) -> None:
        """`entropy_coef` [] is read in every gradient."""
        self.network = network
        self.team = team(threads)
        self.nvec = np.array(choices(space), np.int64)
        actions, terms = "gaussian" if isinstance(space, Box) else "choices", len(loss.terms)
        heads = (gaussian_forward, gaussian_backward) if isinstance(space, Box) else (choices_forward, choices_backward)
        write_terms = "\n".join(f"columns[FIRST_TERM + {k}, c] = shown[{k}]" for k in range(terms))
        source = fill(KERNEL, name=loss.formula.__name__, actions=actions, write_terms=write_terms)
        names = {function.__name__: function for function in (*FUNCTIONS, *heads)} | CONSTANTS
        self.module = kernels.load_module(loss.formula.__name__, source, names | {"loss": loss.formula})
        self.together = max(1, min(16, CACHE_BYTES // (2 * network.rows * COLUMNS * 4)))
        """Blocks that a thread processes at once."""
        self._plain = torch.zeros(()), torch.ones(())
        """Moments that leave advantages as they are."""

        count, numbers = self.team.count, self.together * network.rows * COLUMNS
        self.memory = Workspace(
            blocks=aligned_zeros(count, numbers),
            d_blocks=aligned_zeros(count, numbers),
            columns=aligned_zeros(count, CHOICES + 3 * self.nvec.size, COLUMNS),
            picked=np.zeros((count, COLUMNS), np.int64),
            zeros=aligned_zeros(network.rows),
            gradient=aligned_zeros(SHARES, network.parameters.size),
            terms=np.zeros((SHARES, terms + 1)),
            total=aligned_zeros(network.parameters.size),
            means=aligned_zeros(terms + 1),
        )
        self._results = torch.from_numpy(self.memory.total), torch.from_numpy(self.memory.means)
        number, action = np.zeros(1, np.float32), np.zeros((1, 1), np.int32 if self.nvec.size else np.float32)
        obs, mask, activations = np.zeros((1, 1), np.float32), np.zeros((0, 0), np.bool_), np.zeros((0, 0, 0, 0), np.float32)
        # These stand for the rows and the numbers until the first gradient.
        rows = Rows._make([np.zeros(0, np.int64), obs, mask, action, *[number] * 4, activations, 1])
        zero = Numbers(*[np.zeros((), np.float32)] * 3)
        self._compute = Call(self.module.gradient, 1, rows, zero, self.network, self.nvec, loss.coefficients, self.memory)
        self._finish = Call(self.module.finish, 1, rows, self.memory)
        self._entropy_coef = entropy_coef
        self._rows: Rows | None = None
        self._numbers: tuple[torch.Tensor, ...] = ()
        self._whole: WeakKeyDictionary[Batch, Rows] = WeakKeyDictionary()
        """The rows of batches that are taken whole: made once, for the same object has the same memory."""

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        ahead.want(self.module, "gradient", signature(self._compute.arguments))
        ahead.want(self.module, "finish", signature(self._finish.arguments))

    def __call__(
        self, batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None, moments: Moments | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of the mean loss over rows, and means of its terms; the next call overwrites both."""
        rows = self._rows_of(batch, advantage, order)
        count = len(advantage)
        shares = max(1, min(SHARES, blocks_of(*steps_of(count, rows.step_rows)) // min(self.together, SHARE_BLOCKS)))
        self._give(shares=shares)
        if rows is not self._rows:
            self._give(rows=Rows._make(part.numpy() if isinstance(part, torch.Tensor) else part for part in rows))
            self._rows = rows
        numbers = self._entropy_coef, *(moments or self._plain)
        if any(new is not former for new, former in zip_longest(numbers, self._numbers)):
            self._compute.change(numbers=Numbers(*(number.float().numpy() for number in numbers)))
            self._numbers = numbers
        self.team.share(self._compute, shares, 6.0 * self.network.parameters.size * count)
        self._finish(0, 1, 0)
        return self._results

    def _rows_of(self, batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None) -> Rows:
        if order is not None or advantage is not batch.advantage:
            return rows_of(batch, advantage, order)
        return self._whole.get(batch) or self._whole.setdefault(batch, rows_of(batch, advantage, None))

    def _give(self, **given: object) -> None:
        """Change arguments that both kernels have."""
        self._compute.change(**given)
        self._finish.change(**given)
