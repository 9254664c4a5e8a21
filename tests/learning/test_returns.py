"""Targets against the golden numbers."""

from __future__ import annotations

import pytest
import torch

from tests.learning.helpers import Golden, close
from warprun.learning.batch import Spread, explained_variance
from warprun.learning.operations import Steps, exarl_vtrace, gae, nstep, vtrace
from warprun.learning.settings import OnPolicyConfig

PRECISIONS = [(torch.float64, 1e-10), (torch.float32, 1e-5)]


def steps_of(g: dict[str, torch.Tensor], dtype: torch.dtype) -> Steps:
    """Return the golden steps, whose episodes end in both ways."""
    return Steps(*(g[name].to(dtype) for name in ("reward", "value", "next_value")), g["terminated"], g["truncated"])


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_gae(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g = golden("gae")
    for i, (gamma, gae_lambda) in enumerate(g["gamma_lambda"].tolist()):
        advantage, returns = gae(steps_of(g, dtype), OnPolicyConfig(gamma=gamma, gae_lambda=gae_lambda))
        assert advantage.dtype == dtype
        close(advantage, g["advantage"][i], tolerance)
        close(returns, g["ret"][i], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_nstep(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g, n = golden("gae"), golden("nstep")
    for i, gamma in enumerate(n["gamma"].tolist()):
        for steps in n["n"].tolist():
            advantage, returns = nstep(steps_of(g, dtype), OnPolicyConfig(gamma=gamma, n_step=steps))
            close(returns, n[f"ret_n{steps}_g{i}"], tolerance)
            close(advantage, returns - g["value"].to(dtype))


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_vtrace(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g = golden("vtrace")
    reward, value, log_ratio = (g[name].to(dtype) for name in ("reward", "value", "log_rho"))
    next_value, terminated = torch.cat((value[1:], g["bootstrap_value"].to(dtype)[None])), g["done"].bool()
    for i, (gamma, rho_bar, c_bar, trace_lambda) in enumerate(g["gamma_rhobar_cbar_lambda"].tolist()):
        steps = Steps(reward, value, next_value, terminated, torch.zeros_like(terminated), log_ratio)
        settings = OnPolicyConfig(gamma=gamma, gae_lambda=trace_lambda, rho_bar=rho_bar, c_bar=c_bar)
        advantage, v = vtrace(steps, settings)
        close(v, g["vs"][i], tolerance)
        close(advantage, g["pg_advantage_pgrho_is_rhobar"][i], tolerance)


def test_without_lag_vtrace_gives_lambda_returns(golden: Golden) -> None:
    """With episodes that are truncated, too."""
    g = golden("gae")
    steps = steps_of(g, torch.float64)
    for gamma, gae_lambda in g["gamma_lambda"].tolist():
        settings = OnPolicyConfig(gamma=gamma, gae_lambda=gae_lambda)
        advantage, v = vtrace(steps._replace(log_ratio=torch.zeros_like(steps.reward)), settings)
        expected, returns = gae(steps, settings)
        close(v, returns, 1e-12)
        if gae_lambda == 1.0:
            close(advantage, expected, 1e-12)


def test_vtrace_of_truncated_episodes_is_the_sum_of_the_paper() -> None:
    """Equation 1 of Espeholt et al. 2018, term by term; what ends an episode ends the sum, and a truncated step keeps its value."""
    torch.manual_seed(0)
    horizon, gamma, trace_lambda, rho_bar, c_bar = 9, 0.9, 0.8, 1.3, 0.9
    reward, value, next_value, log_ratio = torch.randn(4, horizon, 40, dtype=torch.float64)
    terminated, truncated = torch.rand(2, horizon, 40) < 0.2
    truncated &= ~terminated
    goes_on = ~(terminated | truncated)
    next_value[:-1] = torch.where(goes_on[:-1], value[1:], next_value[:-1])
    settings = OnPolicyConfig(gamma=gamma, gae_lambda=trace_lambda, rho_bar=rho_bar, c_bar=c_bar)
    advantage, v = vtrace(Steps(reward, value, next_value, terminated, truncated, log_ratio), settings)
    for s in range(horizon):
        for n in range(40):
            total, weight, t = float(value[s, n]), 1.0, s
            while t < horizon:
                following = 0.0 if terminated[t, n] else float(next_value[t, n])
                ratio = float(log_ratio[t, n].exp())
                total += weight * min(rho_bar, ratio) * (float(reward[t, n]) + gamma * following - float(value[t, n]))
                weight *= gamma * trace_lambda * min(c_bar, ratio)
                if not goes_on[t, n]:
                    break
                t += 1
            assert abs(total - float(v[s, n])) < 1e-10
            after = 0.0 if terminated[s, n] else float(v[s + 1, n] if goes_on[s, n] and s + 1 < horizon else next_value[s, n])
            rho = min(rho_bar, float(log_ratio[s, n].exp()))
            assert abs(rho * (float(reward[s, n]) + gamma * after - float(value[s, n])) - float(advantage[s, n])) < 1e-10


def test_what_exarl_calls_vtrace() -> None:
    """By hand: an episode of rewards 1, 2 and 3, values 10, 20 and 30, gamma 0.5."""
    column = torch.tensor([[1.0], [2.0], [3.0]])
    value, ends = 10.0 * column, torch.tensor([[False], [False], [True]])
    advantage, returns = exarl_vtrace(Steps(column, value, value, ends, torch.zeros_like(ends)), OnPolicyConfig(gamma=0.5))
    monte_carlo = torch.tensor([[2.75], [3.5], [3.0]])
    close(returns, 0.5 * (value + monte_carlo), 1e-6)
    close(advantage, monte_carlo - value + 0.5 * returns, 1e-6)


def test_explained_variance(golden: Golden) -> None:
    g = golden("misc")
    close(explained_variance(Spread.of(g["ev_true"] - g["ev_pred"], g["ev_true"])), g["explained_variance"])


def test_nothing_to_explain() -> None:
    assert explained_variance(Spread.of(torch.tensor([1.0, 2.0]), torch.ones(2))) == 0
