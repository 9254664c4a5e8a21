"""Advantages and returns of a rollout: a formula of one step for each way to compute them, which kernels and torch run over time.

A formula takes what it gave for the following step of the same actor, so the last step comes first. `Target.windowed` says which one begins
with the first step instead, several times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from warprun.math import exp, minimum, where

if TYPE_CHECKING:
    import torch

    from warprun.learning.settings.on_policy import OnPolicyConfig
    from warprun.learning.tensors import Number


Coefficient: TypeAlias = float | np.float32


class Step(NamedTuple):
    """A step of an actor; for torch the steps of all, [T, ...] each."""

    reward: Number
    value: Number
    """V of the observation of the step."""
    next_value: Number
    """V of the observation that the step led to: where truncated of the final one, where terminated 0."""
    ends: torch.Tensor | bool
    """Whether the episode ends with the step, or the rollout does: what the following step gives does not count."""
    log_ratio: Number = 0.0
    """log(pi / mu) of the action, pi the policy that learns and mu the one that acted; only for targets that use it."""


class Discount(NamedTuple):
    """Numbers of the formulas; float32 for kernels."""

    gamma: Coefficient
    trace: Coefficient
    """gamma lambda."""
    rho_bar: Coefficient
    c_bar: Coefficient
    n_step: int

    @staticmethod
    def of(config: OnPolicyConfig) -> Discount:
        """Return those of the settings."""
        gamma, gae_lambda, rho_bar, c_bar = map(np.float32, (config.gamma, config.gae_lambda, config.rho_bar, config.c_bar))
        return Discount(gamma, gamma * gae_lambda, rho_bar, c_bar, config.n_step)


def gae(after, s, p):  # type: ignore[no-untyped-def]
    """Return A and A + V; Schulman et al. 2016, eq. 16. `after` is A of the following step."""
    delta = s.reward + p.gamma * s.next_value - s.value
    advantage = delta + where(s.ends, 0.0, p.trace * after)
    return advantage, advantage, advantage + s.value


def nstep(after, s, p):  # type: ignore[no-untyped-def]
    """Return R - V and the n-step return R; Sutton & Barto 2018, eq. 7.1. `after` is the return of one step less of the following step."""
    returns = s.reward + p.gamma * where(s.ends, s.next_value, after)
    return returns, returns - s.value, returns


def vtrace(after, s, p):  # type: ignore[no-untyped-def]
    """Return the advantage and v for a rollout of another policy; Espeholt et al. 2018, eq. 1 and section 4.2. `after` is v - V.

    lambda is that of remark 2: it shortens the traces of v, not the one step of the advantage, rho (r + gamma v' - V). Without lag v is the
    lambda-return.
    """
    ratio = exp(s.log_ratio)
    rho, one_step = minimum(ratio, p.rho_bar), s.reward + p.gamma * s.next_value
    correction = rho * (one_step - s.value) + where(s.ends, 0.0, p.trace * minimum(ratio, p.c_bar) * after)
    # Where the episode goes on, v' takes the place of V': they differ by the correction of the following step.
    advantage = rho * (one_step + where(s.ends, 0.0, p.gamma * after) - s.value)
    return correction, advantage, s.value + correction


def exarl_vtrace(after, s, p):  # type: ignore[no-untyped-def]
    """Return what EXARL calls V-trace, without ratios (github.com/exalearn/EXARL, agent A2C_Vtrace). `after` is the Monte Carlo return R.

    With delta = R - V the return is V + gamma delta, the advantage delta + gamma times this return.
    """
    monte_carlo = s.reward + p.gamma * where(s.ends, s.next_value, after)
    delta = monte_carlo - s.value
    returns = s.value + p.gamma * delta
    return monte_carlo, delta + p.gamma * returns, returns


class Target(NamedTuple):
    """A way to compute advantages and returns."""

    formula: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    """f(after, Step, Discount) returns what the step before gets as `after`, the advantage and the return."""
    windowed: bool = False
    """Whether the scan goes forward `n_step` times, and `after` is the following step's return of the time before; at first its V."""
    uses_ratio: bool = False
    """Whether it needs `Step.log_ratio`, and values of the policy that learns."""
    gives_errors: bool = True
    """Whether advantages are the errors of the values: return minus value."""


TARGETS: Mapping[str, Target] = {
    "gae": Target(gae),
    "nstep": Target(nstep, windowed=True),
    "vtrace": Target(vtrace, uses_ratio=True, gives_errors=False),
    "exarl_vtrace": Target(exarl_vtrace, gives_errors=False),
}
"""By the setting `agent.advantage`."""
