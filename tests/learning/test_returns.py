"""Returns against the golden numbers."""

from __future__ import annotations

import pytest
import torch

from tests.learning.helpers import Golden, close
from warprun.learning.returns import Spread, explained_variance, gae, nstep, vtrace

PRECISIONS = [(torch.float64, 1e-10), (torch.float32, 1e-5)]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_gae(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g = golden("gae")
    reward, value, next_value = (g[name].to(dtype) for name in ("reward", "value", "next_value"))
    for i, (gamma, gae_lambda) in enumerate(g["gamma_lambda"].tolist()):
        advantage, returns = gae(reward, value, next_value, g["terminated"], g["truncated"], gamma, gae_lambda)
        assert advantage.dtype == dtype
        close(advantage, g["advantage"][i], tolerance)
        close(returns, g["ret"][i], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_nstep(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g, n = golden("gae"), golden("nstep")
    for i, gamma in enumerate(n["gamma"].tolist()):
        for steps in n["n"].tolist():
            returns = nstep(g["reward"].to(dtype), g["next_value"].to(dtype), g["terminated"], g["truncated"], gamma, steps)
            close(returns, n[f"ret_n{steps}_g{i}"], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_vtrace(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g = golden("vtrace")
    log_rho, reward, value = (g[name].to(dtype) for name in ("log_rho", "reward", "value"))
    next_value = torch.cat((value[1:], g["bootstrap_value"][None].to(dtype)))
    never = torch.zeros_like(g["done"])
    for i, (gamma, rho_bar, c_bar, trace_lambda) in enumerate(g["gamma_rhobar_cbar_lambda"].tolist()):
        for name, pg_rho_bar in (("pg_advantage_pgrho1", 1.0), ("pg_advantage_pgrho_is_rhobar", rho_bar)):
            v, advantage = vtrace(
                log_rho, reward, value, next_value, g["done"], never, gamma, rho_bar, c_bar, trace_lambda, pg_rho_bar=pg_rho_bar
            )
            close(v, g["vs"][i], tolerance)
            close(advantage, g[name][i], tolerance)


def test_vtrace_on_policy_is_the_lambda_return_also_where_truncated(golden: Golden) -> None:
    g = golden("gae")
    ends = (g["terminated"], g["truncated"])
    v, _ = vtrace(torch.zeros_like(g["reward"]), g["reward"], g["value"], g["next_value"], *ends, 0.9, 1.0, 1.0, 0.8, 1.0)
    close(v, gae(g["reward"], g["value"], g["next_value"], *ends, 0.9, 0.8)[1])


def test_vtrace_advantage_bootstraps_from_the_next_value_where_truncated() -> None:
    zero, ends = torch.zeros(2), torch.tensor([True, False])
    _, advantage = vtrace(zero, zero, zero, torch.tensor([3.0, 5.0]), ~ends & ends, ends, 0.5, 1.0, 1.0, 1.0, 1.0)
    close(advantage, torch.tensor([1.5, 2.5]))


def test_explained_variance(golden: Golden) -> None:
    g = golden("misc")
    close(explained_variance(Spread.of(g["ev_true"] - g["ev_pred"], g["ev_true"])), g["explained_variance"])


def test_nothing_to_explain() -> None:
    assert explained_variance(Spread.of(torch.tensor([1.0, 2.0]), torch.ones(2))) == 0
