"""The losses of A2C and PPO against the golden numbers."""

from __future__ import annotations

import pytest
import torch

from tests.learning.helpers import Golden, close
from warprun.algorithms.a2c import A2CLoss, a2c_loss
from warprun.algorithms.ppo import PPOLoss, ppo_loss
from warprun.environment import Discrete
from warprun.learning.batch import mean_and_variance, normalize_advantage
from warprun.learning.distributions import evaluate

PRECISIONS = [(torch.float64, 1e-10, 1e-8), (torch.float32, 1e-5, 1e-5)]


@pytest.mark.parametrize(("dtype", "tolerance", "gradient_tolerance"), PRECISIONS)
def test_a2c(golden: Golden, dtype: torch.dtype, tolerance: float, gradient_tolerance: float) -> None:
    g = golden("a2c")
    logits, value = g["logits"].to(dtype).requires_grad_(), g["value"].to(dtype).requires_grad_()
    pair = evaluate(Discrete(4), logits, None, g["action"][:, None])
    advantage, returns = g["advantage"].to(dtype), g["ret"].to(dtype)
    found: A2CLoss = a2c_loss(*pair, value, advantage, returns, g["vf_coef"].item(), g["ent_coef"].item())
    close(found.loss, g["loss"], tolerance)
    found.loss.backward()
    close(logits.grad, g["grad_logits"], gradient_tolerance)  # type: ignore[arg-type]
    close(value.grad, g["grad_value"], gradient_tolerance)  # type: ignore[arg-type]


def ppo(g: dict[str, torch.Tensor], dtype: torch.dtype, logits: torch.Tensor, value: torch.Tensor, plain: bool = False) -> PPOLoss:
    space, action = Discrete(4), g["action"][:, None]
    old_log_prob = evaluate(space, g["old_logits"].to(dtype), None, action)[0]
    pair = evaluate(space, logits, None, action)
    advantage = g["advantage"].to(dtype)
    return ppo_loss(
        *pair,
        value,
        old_log_prob,
        g["old_value"].to(dtype),
        advantage if plain else normalize_advantage(advantage, *mean_and_variance(advantage)),
        g["ret"].to(dtype),
        clip=g["clip"].item(),
        clip_value=None if plain else g["clip"].item(),
        value_coef=g["vf_coef"].item(),
        entropy_coef=g["ent_coef"].item(),
    )


@pytest.mark.parametrize(("dtype", "tolerance", "gradient_tolerance"), PRECISIONS)
def test_ppo(golden: Golden, dtype: torch.dtype, tolerance: float, gradient_tolerance: float) -> None:
    g = golden("ppo")
    logits, value = g["logits"].to(dtype).requires_grad_(), g["new_value"].to(dtype).requires_grad_()
    found = ppo(g, dtype, logits, value)
    names = ("loss", "pg_loss", "v_loss", "entropy", "approx_kl_k3", "clipfrac")
    for actual, name in zip(found, names, strict=True):
        close(actual, g[name], tolerance)
    advantage = g["advantage"].to(dtype)
    close(normalize_advantage(advantage, *mean_and_variance(advantage)), g["adv_norm"], tolerance)
    found.loss.backward()
    close(logits.grad, g["grad_logits"], gradient_tolerance)  # type: ignore[arg-type]
    close(value.grad, g["grad_value"], gradient_tolerance)  # type: ignore[arg-type]


def test_ppo_without_normalisation_and_value_clipping(golden: Golden) -> None:
    g = golden("ppo")
    found = ppo(g, torch.float64, g["logits"], g["new_value"], plain=True)
    close(found.loss, g["loss_nonorm_noclipv"])
    close(found.policy, g["pg_loss_nonorm"])
    close(found.value, g["v_loss_noclip"])
