"""The distributions over actions, in the layout of the Trajectory.

`policy_output` [..., P] holds the logits of all choices one after the other (Discrete, MultiDiscrete), or the means and then the
logarithms of the standard deviations of a diagonal Gaussian (Box; an action is the raw draw, but for `squashed`).
`mask` [..., P] bool marks the allowed logits: the others have probability exactly 0 and add 0 to the entropy; None: all are allowed.
`action` [..., C] is int32, or a float for Box. Sums run over the components of an action.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch

from warprun.spec import SQUASHED_LOG_STD, ActionKind, Space


def evaluate(
    space: Space, policy_output: torch.Tensor, mask: torch.Tensor | None, action: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of `action` and the entropy, [...] each, in one pass."""
    return EVALUATE[space.kind](space, policy_output, mask, action)


def _evaluate_choices(
    space: Space, logits: torch.Tensor, mask: torch.Tensor | None, action: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    # The smallest finite number, not -inf: exp gives exactly 0, and 0 * log 0 stays 0 forwards and backwards.
    if mask is not None:
        logits = torch.where(mask, logits, torch.finfo(logits.dtype).min)
    parts = tuple(choice.log_softmax(-1) for choice in logits.split(list(space.choices), -1))
    # A loop instead of a stack and a sum: almost every space has a single choice, and then nothing is added.
    log_prob, entropy = _at(parts[0], action, 0), _entropy(parts[0])
    for j, log_p in enumerate(parts[1:], start=1):
        log_prob, entropy = log_prob + _at(log_p, action, j), entropy + _entropy(log_p)
    return log_prob, entropy


def _evaluate_reals(
    space: Space, policy_output: torch.Tensor, mask: torch.Tensor | None, action: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    mean, log_std = policy_output.chunk(2, -1)
    z = (action - mean) * (-log_std).exp()
    log_prob = -0.5 * z * z - log_std - 0.5 * math.log(2 * math.pi)
    return log_prob.sum(-1), (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


Evaluate: TypeAlias = Callable[[Space, torch.Tensor, torch.Tensor | None, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
EVALUATE: dict[ActionKind, Evaluate] = {"choices": _evaluate_choices, "reals": _evaluate_reals}


def squashed(policy_output: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the actions tanh(u), u = mean + standard deviation `noise`, [..., C], and their log-densities [...].

    `policy_output` [..., 2 C] is that of a squashed policy (`spec.PolicyKind`), `noise` [..., C] standard normal. Haarnoja et al. 2018,
    appendix C. The logarithm of 1 - tanh^2 u is written as 2 (log 2 - u - log(1 + e^-2u)): the difference rounds to 0 for large u.
    """
    mean, log_std = policy_output.chunk(2, -1)
    log_std = log_std.clamp(*SQUASHED_LOG_STD)
    u = mean + log_std.exp() * noise
    log_slope = 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u))
    return u.tanh(), (-0.5 * noise * noise - log_std - 0.5 * math.log(2 * math.pi) - log_slope).sum(-1)


def _at(log_p: torch.Tensor, action: torch.Tensor, j: int) -> torch.Tensor:
    return log_p.gather(-1, action[..., j : j + 1].long()).squeeze(-1)


def _entropy(log_p: torch.Tensor) -> torch.Tensor:
    return -(log_p.exp() * log_p).sum(-1)
