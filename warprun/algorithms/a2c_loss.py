"""The loss of A2C for one row: Mnih et al. 2016, section 4."""

from __future__ import annotations

from typing import NamedTuple


class Coefficients(NamedTuple):
    """Numbers of the loss."""

    value_coef: float


class Terms(NamedTuple):
    """Terms of the loss of a row, which are shown."""

    policy: float
    value: float


def a2c_loss(log_prob, value, row, p):  # type: ignore[no-untyped-def]
    """Return the derivatives by log_prob and value of -log pi A + value_coef (V - R)^2, and its terms; Mnih et al. 2016, section 4.

    Unlike in `ppo_loss` there is no factor 1/2 in the value loss: value_coef = 0.5 here is value_coef = 1 there.
    """
    error = value - row.returns
    return -row.advantage, 2.0 * p.value_coef * error, Terms(-row.advantage * log_prob, error * error)
