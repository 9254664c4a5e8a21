"""Distributions, targets, losses and optimizers against the golden numbers."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from tests.learning.helpers import Golden, close
from tests.learning.papers import A2CLoss, PPOLoss, a2c_loss, ppo_loss
from warprun.algorithms import a2c, ppo
from warprun.algorithms import ppo_loss as of_ppo
from warprun.algorithms.settings import PPOConfig
from warprun.environment import Box, Discrete, MultiDiscrete
from warprun.errors import UserError
from warprun.learning.batch import Spread, explained_variance, mean_and_variance, normalize_advantage
from warprun.learning.distributions import evaluate
from warprun.learning.formulas import Row
from warprun.learning.operations import RowLoss, scan
from warprun.learning.optimizers import OPTIMIZERS, clip_norm
from warprun.learning.settings.agent import OptimizerConfig
from warprun.learning.targets import TARGETS, Discount, Step
from warprun.learning.tensors import on_tensors
from warprun.math import clip, exp, log, maximum, where

PRECISIONS = [(torch.float64, 1e-10), (torch.float32, 1e-5)]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_categorical(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g, space = golden("categorical"), Discrete(5)
    logits, action = g["logits"].to(dtype), g["action"][:, None].int()
    log_prob, entropy = evaluate(space, logits, None, action)
    close(log_prob, g["log_prob"], tolerance)
    close(entropy, g["entropy"], tolerance)
    everything = torch.arange(5).expand(40, 5)[..., None]
    close(evaluate(space, logits[:, None].expand(40, 5, 5), None, everything)[0], g["log_probs"], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_gaussian(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g, space = golden("gaussian"), Box(3)
    output = torch.cat((g["mean"], g["log_std"]), -1).to(dtype)
    log_prob, entropy = evaluate(space, output, None, g["action"].to(dtype))
    close(log_prob, g["log_prob"], tolerance)
    close(entropy, g["entropy"], tolerance)


def test_multi_discrete_is_a_product_of_choices() -> None:
    output = torch.randn(9, 5, dtype=torch.float64)
    mask = torch.tensor([True, True, False, True, True]).expand(9, 5)
    action = torch.tensor([[1, 2]], dtype=torch.int32).expand(9, 2)
    space, parts = MultiDiscrete((2, 3)), ((Discrete(2), slice(0, 2)), (Discrete(3), slice(2, 5)))
    single = [evaluate(s, output[:, part], mask[:, part], action[:, j : j + 1]) for j, (s, part) in enumerate(parts)]
    close(torch.stack(evaluate(space, output, mask, action)), torch.stack(single[0]) + torch.stack(single[1]))


@pytest.mark.parametrize("size", [1.0, 1e3, -1e5])
def test_masked_actions_do_not_exist(size: float) -> None:
    """Probability, entropy and gradients equal those of a distribution over the allowed actions alone."""
    logits = (size * torch.tensor([[0.3, 1.0, 0.7, 0.1]])).requires_grad_()
    mask, action = torch.tensor([[True, False, True, False]]), torch.tensor([[2]])
    few = logits.detach()[:, ::2].clone().requires_grad_()
    masked, alone = evaluate(Discrete(4), logits, mask, action), evaluate(Discrete(2), few, None, action // 2)
    close(torch.stack(masked), torch.stack(alone), 1e-6)
    sum(masked).backward()  # type: ignore[union-attr]
    sum(alone).backward()  # type: ignore[union-attr]
    close(logits.grad[:, ::2], few.grad, 1e-5)  # type: ignore[index, arg-type]
    assert logits.grad[:, 1::2].abs().max() == 0  # type: ignore[index]
    assert evaluate(Discrete(4), logits, mask, torch.tensor([[1]]))[0].exp() == 0


def discount(gamma: float, gae_lambda: float = 1.0, rho_bar: float = 1.0, c_bar: float = 1.0, n_step: int = 1) -> Discount:
    return Discount(gamma, gamma * gae_lambda, rho_bar, c_bar, n_step)


def steps_of(g: dict[str, torch.Tensor], dtype: torch.dtype) -> Step:
    """Return the golden steps, whose episodes end in both ways."""
    reward, value, next_value = (g[name].to(dtype) for name in ("reward", "value", "next_value"))
    return steps(reward, value, next_value, g["terminated"], g["truncated"])


def steps(reward: torch.Tensor, value: torch.Tensor, next_value: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor) -> Step:
    ends = terminated | truncated
    ends[-1] = True
    return Step(reward, value, next_value.masked_fill(terminated, 0.0), ends)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_gae(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g = golden("gae")
    for i, (gamma, gae_lambda) in enumerate(g["gamma_lambda"].tolist()):
        advantage, returns = scan(TARGETS["gae"], steps_of(g, dtype), discount(gamma, gae_lambda))
        assert advantage.dtype == dtype
        close(advantage, g["advantage"][i], tolerance)
        close(returns, g["ret"][i], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_nstep(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g, n = golden("gae"), golden("nstep")
    for i, gamma in enumerate(n["gamma"].tolist()):
        for rewards in n["n"].tolist():
            advantage, returns = scan(TARGETS["nstep"], steps_of(g, dtype), discount(gamma, n_step=rewards))
            close(returns, n[f"ret_n{rewards}_g{i}"], tolerance)
            close(advantage, returns - g["value"].to(dtype))


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_vtrace(golden: Golden, dtype: torch.dtype, tolerance: float) -> None:
    g = golden("vtrace")
    reward, value, log_ratio = (g[name].to(dtype) for name in ("reward", "value", "log_rho"))
    next_value, terminated = torch.cat((value[1:], g["bootstrap_value"].to(dtype)[None])), g["done"].bool()
    taken = steps(reward, value, next_value, terminated, torch.zeros_like(terminated))._replace(log_ratio=log_ratio)
    for i, (gamma, rho_bar, c_bar, trace_lambda) in enumerate(g["gamma_rhobar_cbar_lambda"].tolist()):
        advantage, v = scan(TARGETS["vtrace"], taken, discount(gamma, trace_lambda, rho_bar, c_bar))
        close(v, g["vs"][i], tolerance)
        close(advantage, g["pg_advantage_pgrho_is_rhobar"][i], tolerance)


def test_without_lag_vtrace_gives_lambda_returns(golden: Golden) -> None:
    """With episodes that are truncated, too."""
    g = golden("gae")
    taken = steps_of(g, torch.float64)
    for gamma, gae_lambda in g["gamma_lambda"].tolist():
        p = discount(gamma, gae_lambda)
        advantage, v = scan(TARGETS["vtrace"], taken._replace(log_ratio=torch.zeros_like(g["reward"], dtype=torch.float64)), p)
        expected, returns = scan(TARGETS["gae"], taken, p)
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
    taken = steps(reward, value, next_value, terminated, truncated)._replace(log_ratio=log_ratio)
    advantage, v = scan(TARGETS["vtrace"], taken, discount(gamma, trace_lambda, rho_bar, c_bar))
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
    advantage, returns = scan(TARGETS["exarl_vtrace"], steps(column, value, value, ends, torch.zeros_like(ends)), discount(0.5))
    monte_carlo = torch.tensor([[2.75], [3.5], [3.0]])
    close(returns, 0.5 * (value + monte_carlo), 1e-6)
    close(advantage, monte_carlo - value + 0.5 * returns, 1e-6)


def test_explained_variance(golden: Golden) -> None:
    g = golden("misc")
    close(explained_variance(Spread.of(g["ev_true"] - g["ev_pred"], g["ev_true"])), g["explained_variance"])
    assert explained_variance(Spread.of(torch.tensor([1.0, 2.0]), torch.ones(2))) == 0


LOSS_PRECISIONS = [(torch.float64, 1e-10, 1e-8), (torch.float32, 1e-5, 1e-5)]


@pytest.mark.parametrize(("dtype", "tolerance", "gradient_tolerance"), LOSS_PRECISIONS)
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


def golden_ppo(g: dict[str, torch.Tensor], dtype: torch.dtype, logits: torch.Tensor, value: torch.Tensor, plain: bool = False) -> PPOLoss:
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


@pytest.mark.parametrize(("dtype", "tolerance", "gradient_tolerance"), LOSS_PRECISIONS)
def test_ppo(golden: Golden, dtype: torch.dtype, tolerance: float, gradient_tolerance: float) -> None:
    g = golden("ppo")
    logits, value = g["logits"].to(dtype).requires_grad_(), g["new_value"].to(dtype).requires_grad_()
    found = golden_ppo(g, dtype, logits, value)
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
    found = golden_ppo(g, torch.float64, g["logits"], g["new_value"], plain=True)
    close(found.loss, g["loss_nonorm_noclipv"])
    close(found.policy, g["pg_loss_nonorm"])
    close(found.value, g["v_loss_noclip"])


@pytest.mark.parametrize("clip_value", [None, 0.3])
@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_the_derivatives_of_a_row_are_those_of_the_papers_loss(algorithm: str, clip_value: float | None) -> None:
    """And its terms are the loss's: ratios within and beyond the clip range, on both sides."""
    generator, config = torch.Generator().manual_seed(0), PPOConfig(clip_value=clip_value)
    log_prob, value, *given = (torch.randn(200, generator=generator, dtype=torch.float64) for _ in range(6))
    old = Row(log_prob + 0.3 * given[0], value + 0.5 * given[1], given[2], given[3])  # type: ignore[arg-type]
    loss = (ppo.PPO if algorithm == "ppo" else a2c.A2C).loss(config)  # type: ignore[arg-type, attr-defined]
    exactly = type(loss.coefficients)(*map(float, loss.coefficients))
    by_log_prob, by_value, terms = on_tensors(loss.formula)(log_prob, value, old, exactly)
    leaves, zero, value_coef = (log_prob.requires_grad_(), value.requires_grad_()), torch.zeros(1), config.value_coef
    clips = config.clip, clip_value
    papers: A2CLoss | PPOLoss = a2c_loss(log_prob, zero, value, old.advantage, old.returns, value_coef, 0.0)  # type: ignore[arg-type]
    if algorithm == "ppo":
        papers = ppo_loss(log_prob, zero, value, *old, *clips, value_coef, 0.0)  # type: ignore[arg-type]
    for found, exact in zip((by_log_prob, by_value), torch.autograd.grad(papers.loss * 200, leaves), strict=True):
        close(found, exact, 1e-12)
    for name, term in zip(loss.terms, terms, strict=True):
        close(term.mean(), getattr(papers, name), 1e-12)


def helped(x: torch.Tensor) -> torch.Tensor:
    return exp(x)


def losses_that_work() -> dict[str, Any]:
    """Return formulas that are the same for numbers and for tensors."""

    def in_a_closure(log_prob, value, row, p):  # type: ignore[no-untyped-def]
        return -row.advantage, helped(value), (clip(value, -p.clip, p.clip),)

    def nested(log_prob, value, row, p, scale=maximum):  # type: ignore[no-untyped-def]
        def square(x):  # type: ignore[no-untyped-def]
            return exp(2.0 * log(x))

        return square(value), where(p.clip > 1.0, value, log_prob), (scale(p.clip, 0.5),)

    def without_value(log_prob, value, row, p):  # type: ignore[no-untyped-def]
        _, before, advantage, _ = row
        return -advantage, 0.0, (abs(value - before) > p.clip,)

    return {each.__name__: each for each in (in_a_closure, nested, without_value)}


@pytest.mark.parametrize("name", losses_that_work())
def test_formulas_of_users_give_the_same_for_tensors_as_for_numbers(name: str) -> None:
    loss = RowLoss(losses_that_work()[name], of_ppo.Coefficients(0.2, 1.0, 0.5), ("shown",)).tried("mine")
    numbers = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)) + 0.5
    by_log_prob, by_value, (shown,) = loss.of_rows(numbers[0], numbers[1], Row(*numbers[2:]))
    for n, column in enumerate(numbers.T):
        given = [np.float32(x) for x in column.tolist()]
        single = loss.formula(given[0], given[1], Row(*given[2:]), loss.coefficients)  # type: ignore[arg-type]
        found = torch.stack((by_log_prob[n], by_value[n], shown[n]))
        close(found, torch.tensor([float(single[0]), float(single[1]), float(single[2][0])]), 1e-6)


MISTAKES: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "a branch": (lambda v, value, row, p: (v, v, (v if value > 0.0 else value,)), ("a",), "branches as where"),
    "terms": (lambda v, value, row, p: (v, v, [v]), ("a",), "must be a tuple of 1"),
    "one value": (lambda v, value, row, p: v, ("a",), "fails on tensors"),
    "in place": (lambda v, value, row, p: (v, row.returns.__isub__(value), (v,)), ("a",), "x = x + y"),
    "not finite": (lambda v, value, row, p: (v, log(-value), (v,)), ("a",), "not finite"),
    "a name twice": (lambda v, value, row, p: (v, v, (v, v)), ("a", "a"), "the name a is"),
    "a name of others": (lambda v, value, row, p: (v, v, (v,)), ("entropy",), "the name entropy is"),
    "many": (lambda v, value, row, p: (v, v, (v,) * 8), tuple("abcdefgh"), "8 terms, and 7 can be"),
    "no function": (3, ("a",), "is 3, not a function"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_loss_is_told_in_one_line(mistake: str) -> None:
    formula, terms, words = MISTAKES[mistake]
    with pytest.raises(UserError, match=re.escape(words)) as told:
        RowLoss(formula, of_ppo.Coefficients(0.2, 1.0, 0.5), terms).tried("mine")
    assert str(told.value).startswith("the loss of agent=mine") and "\n" not in str(told.value)
    with pytest.raises(UserError, match="must be a number, not None"):
        RowLoss(of_ppo.ppo_loss, of_ppo.Coefficients(0.2, None, 0.5), of_ppo.Terms._fields).tried("mine")  # type: ignore[arg-type]


OPTIMIZER_CASES = [
    ("adam_lr1e3_eps1e8", OptimizerConfig("adam", eps=1e-8), 1e-3),
    ("adam_lr25e5_eps1e5", OptimizerConfig("adam", eps=1e-5), 25e-5),
    ("rmsprop_lr7e4_a99_eps1e5", OptimizerConfig("rmsprop", alpha=0.99, eps=1e-5), 7e-4),
    ("rmsprop_tf_like", OptimizerConfig("rmsprop_tf", alpha=0.99, eps=1e-5), 7e-4),
]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("name", "config", "rate"), OPTIMIZER_CASES)
def test_optimizers(golden: Golden, name: str, config: OptimizerConfig, rate: float, dtype: torch.dtype, tolerance: float) -> None:
    g = golden("optim")
    parameters = g["theta0"].to(dtype, copy=True)
    optimizer = OPTIMIZERS[config.name](parameters, config)
    for gradient, expected in zip(g["grads"].to(dtype), g[name], strict=True):
        optimizer.step(parameters, gradient, torch.tensor(rate, dtype=torch.float64))
        close(parameters, expected, tolerance)


def test_clip_norm(golden: Golden) -> None:
    g = golden("optim")
    for gradient in g["grads"]:
        clipped = gradient.clone()
        norm = clip_norm(clipped, 0.5)
        close(norm, gradient.norm())
        if torch.isclose(norm, g["grad_norm"]):
            close(clipped, g["clipped_to_0_5"])
            return
    raise AssertionError("no gradient has the golden norm")


def test_small_gradients_stay() -> None:
    gradient = torch.tensor([0.3, 0.4])
    assert clip_norm(gradient, 1.0) == 0.5
    assert clip_norm(gradient, None) == 0.5
    assert gradient.tolist() == torch.tensor([0.3, 0.4]).tolist()
