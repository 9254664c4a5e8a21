"""Returns against the golden numbers."""

from __future__ import annotations

import pytest
import torch

from tests.learning.helpers import Golden, close
from warprun.learning.returns import Spread, explained_variance, gae, nstep

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


def test_explained_variance(golden: Golden) -> None:
    g = golden("misc")
    close(explained_variance(Spread.of(g["ev_true"] - g["ev_pred"], g["ev_true"])), g["explained_variance"])


def test_nothing_to_explain() -> None:
    assert explained_variance(Spread.of(torch.tensor([1.0, 2.0]), torch.ones(2))) == 0
