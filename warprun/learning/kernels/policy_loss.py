"""The loss of an on-policy agent on a tile of rows, for kernels: probabilities of actions, and slopes of a policy and its value.

The formula of a row (`operations.RowLoss`) gives the derivatives by log-probability and value. What leads from the outputs of a network to
the log-probability of an action, and back, belongs to the distribution of actions. All is written with the operations of a tile
(`kernels.cpu.tiles`, `kernels.cuda.tiles`), one loop over columns for each number: only then LLVM gathers vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, SupportsFloat

import numpy as np

from warprun.kernels.made import made
from warprun.kernels.sampling import FORBIDDEN, gaussian_derivatives, gaussian_entropy, gaussian_log_density, logit_derivative
from warprun.learning.formulas import Row, advantage_scale
from warprun.learning.kernels.cpu.tiles import (
    add_term,
    columns,
    get_output,
    get_scratch,
    keep_advantages,
    keep_picked,
    observe,
    parameter,
    row_at,
    set_output,
    set_scratch,
    set_slope,
)
from warprun.math import exp, log

# Rows of the scratch memory; from COMPONENTS on two for each component of an action, entropy and action, or one, action and slope.
LOG_PROB, OLD_LOG_PROB, OLD_VALUE, ADVANTAGE, RETURNS, D_LOG_PROB, ENTROPY, TOTAL, COMPONENTS = range(9)

float32 = np.float32


class Distribution(NamedTuple):
    """The distribution of actions that a policy's outputs describe."""

    evaluate: Callable[..., None]
    """evaluate(tile, net, policy, rows) keeps log-probabilities and entropies, and turns outputs into what `set_slopes` needs."""
    set_slopes: Callable[..., None]
    """set_slopes(tile, net, policy, rows, entropy_weight) sets the slopes of the outputs; a row of scratch memory for each component gets
    those of parameters that depend on no observation."""


class Policy(NamedTuple):
    """Numbers of a policy: choices of each component of an action, or where its log standard deviations are."""

    nvec: object
    """[C] int32; [1] for real actions."""
    components: int
    log_std: int
    """First of the log standard deviations, see `parameter`."""


@made
def policy_loss(
    distribution: Distribution, formula: Callable[..., tuple[SupportsFloat, SupportsFloat, object]], terms: int
) -> Callable[..., None]:
    """Return the loss on a tile whose formula of a row has so many terms; another term is the entropy.

    `settings` of the loss are (Policy, coefficients, entropy_coef [1]), its batch are `rows.Rows`.
    """
    evaluate, set_slopes, add_terms = distribution.evaluate, distribution.set_slopes, adding(terms)

    def policy_gradient(tile, nets, settings, rows):
        net, (policy, coefficients, entropy_coef) = nets[0], settings
        value, weight = net.outputs.number - 1, float32(1.0) / float32(rows.advantage.size)
        observe(tile, net, rows)
        keep_rows(tile, rows)
        evaluate(tile, net, policy, rows)
        for c in columns(tile):
            row = Row(
                get_scratch(tile, OLD_LOG_PROB, c),
                get_scratch(tile, OLD_VALUE, c),
                get_scratch(tile, ADVANTAGE, c),
                get_scratch(tile, RETURNS, c),
            )
            d_log_prob, d_value, shown = formula(get_scratch(tile, LOG_PROB, c), get_output(tile, net, value, c), row, coefficients)
            set_scratch(tile, D_LOG_PROB, c, float32(d_log_prob) * weight)
            set_slope(tile, net, value, c, float32(d_value) * weight)
            add_terms(tile, c, shown)
            add_term(tile, terms, c, get_scratch(tile, ENTROPY, c))
        set_slopes(tile, net, policy, rows, entropy_coef[0] * weight)

    policy_gradient.__name__ = formula.__name__  # kernels are called after it
    return policy_gradient


def adding(terms: int) -> Callable[..., None]:
    """Return what adds the numbers of a tuple of so many to the terms, one after the other."""
    if terms == 0:
        return nothing
    before, last = adding(terms - 1), terms - 1

    def add_terms(tile, c, shown):
        before(tile, c, shown)
        add_term(tile, last, c, float32(shown[last]))

    return add_terms


def nothing(tile, c, shown):
    """Add no term."""


def keep_rows(tile, rows):
    """Keep the numbers of the tile's rows, with advantages normalized as by `batch.normalize_advantage`."""
    mean, scale = rows.mean[0], advantage_scale(rows.mean[0], rows.variance[0])
    keep_picked(tile, rows, rows.log_prob, OLD_LOG_PROB)
    keep_picked(tile, rows, rows.value, OLD_VALUE)
    keep_picked(tile, rows, rows.returns, RETURNS)
    keep_advantages(tile, rows, mean, scale, ADVANTAGE)


def evaluate_choices(tile, net, policy, rows):
    """Turn logits into log-probabilities; keep those of the actions, and the entropies, which of each component too."""
    if rows.masked:
        for c in columns(tile):
            row = row_at(tile, rows, c)
            for k in range(rows.mask.shape[1]):
                if not rows.mask[row, k]:
                    set_output(tile, net, k, c, FORBIDDEN)
    for c in columns(tile):
        set_scratch(tile, LOG_PROB, c, float32(0.0))
        set_scratch(tile, ENTROPY, c, float32(0.0))
    first = 0
    for j in range(policy.components):
        n, entropy, chosen = policy.nvec[j], COMPONENTS + 2 * j, COMPONENTS + 2 * j + 1
        keep_picked(tile, rows, rows.action[:, j], chosen)
        for c in columns(tile):
            set_scratch(tile, TOTAL, c, get_output(tile, net, first, c))
        for k in range(first + 1, first + n):
            for c in columns(tile):
                set_scratch(tile, TOTAL, c, max(get_scratch(tile, TOTAL, c), get_output(tile, net, k, c)))
        for k in range(first, first + n):
            for c in columns(tile):
                set_output(tile, net, k, c, get_output(tile, net, k, c) - get_scratch(tile, TOTAL, c))
        for c in columns(tile):
            set_scratch(tile, TOTAL, c, float32(0.0))
            set_scratch(tile, entropy, c, float32(0.0))
        for k in range(first, first + n):
            for c in columns(tile):
                set_scratch(tile, TOTAL, c, get_scratch(tile, TOTAL, c) + exp(get_output(tile, net, k, c)))
        for c in columns(tile):
            set_scratch(tile, TOTAL, c, log(get_scratch(tile, TOTAL, c)))
        for k in range(n):
            for c in columns(tile):
                log_p = get_output(tile, net, first + k, c) - get_scratch(tile, TOTAL, c)
                set_output(tile, net, first + k, c, log_p)
                set_scratch(tile, entropy, c, get_scratch(tile, entropy, c) - exp(log_p) * log_p)
                of_action = log_p if get_scratch(tile, chosen, c) == float32(k) else float32(0.0)
                set_scratch(tile, LOG_PROB, c, get_scratch(tile, LOG_PROB, c) + of_action)
        for c in columns(tile):
            set_scratch(tile, ENTROPY, c, get_scratch(tile, ENTROPY, c) + get_scratch(tile, entropy, c))
        first += n


def choices_slopes(tile, net, policy, rows, entropy_weight):
    """Set the slopes of the logits (`logit_derivative`)."""
    first = 0
    for j in range(policy.components):
        for k in range(policy.nvec[j]):
            for c in columns(tile):
                picked = float32(1.0) if get_scratch(tile, COMPONENTS + 2 * j + 1, c) == float32(k) else float32(0.0)
                log_p, entropy = get_output(tile, net, first + k, c), get_scratch(tile, COMPONENTS + 2 * j, c)
                slope = logit_derivative(log_p, picked, entropy, get_scratch(tile, D_LOG_PROB, c), entropy_weight)
                set_slope(tile, net, first + k, c, slope)
        first += policy.nvec[j]


def evaluate_gaussian(tile, net, policy, rows):
    """Turn means into (action - mean) / standard deviation; keep log-densities and entropies."""
    for c in columns(tile):
        set_scratch(tile, LOG_PROB, c, float32(0.0))
        set_scratch(tile, ENTROPY, c, float32(0.0))
    for d in range(policy.components):
        log_std = parameter(net, policy.log_std + d)
        scale, entropy = exp(-log_std), gaussian_entropy(log_std)
        keep_picked(tile, rows, rows.action[:, d], COMPONENTS + d)
        for c in columns(tile):
            z = (get_scratch(tile, COMPONENTS + d, c) - get_output(tile, net, d, c)) * scale
            set_output(tile, net, d, c, z)
            set_scratch(tile, LOG_PROB, c, get_scratch(tile, LOG_PROB, c) + gaussian_log_density(z, log_std))
            set_scratch(tile, ENTROPY, c, get_scratch(tile, ENTROPY, c) + entropy)


def gaussian_slopes(tile, net, policy, rows, entropy_weight):
    """Set the slopes of the means and keep those of the log standard deviations (`gaussian_derivatives`)."""
    for d in range(policy.components):
        scale = exp(-parameter(net, policy.log_std + d))
        for c in columns(tile):
            z = get_output(tile, net, d, c)
            d_mean, d_log_std = gaussian_derivatives(z, scale, get_scratch(tile, D_LOG_PROB, c), entropy_weight)
            set_slope(tile, net, d, c, d_mean)
            set_scratch(tile, COMPONENTS + d, c, d_log_std)


DISTRIBUTIONS = {"choices": Distribution(evaluate_choices, choices_slopes), "reals": Distribution(evaluate_gaussian, gaussian_slopes)}
"""By the kind of the actions."""
