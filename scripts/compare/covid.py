"""What `python scripts/results.py covid` measures of a run of the COVID-19 economy, and references for it.

Returns are those of one episode, means of EPISODES episodes with sampled actions: of the trained policies, of untrained
ones, of one trained and one untrained group; and of the most probable actions. All policies use the same random
numbers. "payments" is the mean subsidy level. References are constant policies, and the highest return of the governors
found with a constant subsidy (a choice every 28 days, each improved in turn until no change helps).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from result_tables import COVID_GROUPS, DISCOUNTS, SUBSIDIES

from warprun.config.compose import compose
from warprun.config.schema import Config, from_dict
from warprun.runs import checkpoint, rundir
from warprun.runs.build import make_agent, make_engine, set_up
from warprun.runs.evaluation import Evaluator
from warprun.simulation.kernel_engine import KernelEngine
from warprun.state import restore

GROUPS = COVID_GROUPS
EPISODES = 60
COOLDOWN = 28
SUBSIDY_INTERVAL = 90
Returns = dict[str, float]
Episodes = dict[str, np.ndarray]
"""Per episode: the return of each group, and "payments", the mean subsidy level."""


def play(evaluator: Evaluator, greedy: bool = False) -> Episodes:
    """Play an episode in every environment; each call draws with the same random numbers."""
    engine, days = evaluator.simulator, evaluator.max_steps
    choices = -(-days // SUBSIDY_INTERVAL)
    engine.steps = 0
    engine.reset()
    total = dict.fromkeys((*GROUPS, "payments"), np.zeros(engine.n_envs))
    for day in range(0, days, engine.trajectory.horizon):
        taken = engine.collect(evaluator.agent.act, greedy).groups
        daily = {group: taken[group].reward.double().mean(-1) for group in GROUPS}
        daily["payments"] = taken["planner"].action[..., 0, 0] / choices  # 0 on days without a choice
        total = {name: total[name] + values[: days - day].sum(0).cpu().numpy() for name, values in daily.items()}
    return total


def returns(folder: Path) -> dict[str, Episodes]:
    """Return the returns of the policies of a run, by policy."""
    config = from_dict(rundir.read_config(folder))
    setup = set_up(config)
    agent = make_agent(setup)
    evaluator = Evaluator(setup, agent, EPISODES, config.seed)
    policy, saved = agent.policy_state(), checkpoint.load(folder).tensors
    untrained = {name: tensor.clone() for name, tensor in policy.items()}
    trained = {name: saved[f"agent/{name}"] for name in policy}
    found = {"untrained": play(evaluator)}
    restore(policy, trained)
    found["trained"] = play(evaluator)
    found["trained - untrained"] = {name: values - found["untrained"][name] for name, values in found["trained"].items()}
    for group in GROUPS:
        restore(policy, {name: (trained if name.startswith(group) else untrained)[name] for name in trained})
        found[f"only {group} trained"] = play(evaluator)
    restore(policy, trained)
    # One episode: nothing is random.
    found["trained, most probable actions"] = play(Evaluator(setup, agent, 1, config.seed), greedy=True)
    return found


class Replayed:
    """Replays episodes of given actions, `n` at once."""

    def __init__(self, config: Config, n: int) -> None:
        self.days = config.env.time_limit or 540
        self.engine: KernelEngine = make_engine(set_up(config), n, self.days, 0)

    def rewards(self, levels: np.ndarray, subsidy: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rewards [T, N, 51] and [T, N] of levels [T, N, 51] and a constant subsidy."""
        groups = self.engine.trajectory.groups
        groups["governors"].action[..., 0] = torch.from_numpy(levels.astype(np.int32))
        groups["planner"].action.fill_(subsidy)
        self.engine.steps = 0
        self.engine.reset()
        self.engine.retrace()
        return groups["governors"].reward.double().numpy(), groups["planner"].reward[..., 0].double().numpy()

    def __call__(self, levels: np.ndarray, subsidy: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the returns, [N, 51] and [N]."""
        governors, planner = self.rewards(levels, subsidy)
        return governors.sum(0), planner.sum(0)


def best_response(replayed: Replayed, subsidy: int) -> Returns:
    """Return the returns of both groups with the best levels found for a constant subsidy."""
    n, windows = 10, -(-replayed.days // COOLDOWN)
    chosen, reached = np.full((windows, 51), 6), -np.inf
    for sweep in range(20):
        for window in np.random.default_rng(sweep).permutation(windows):
            tried = np.repeat(chosen[:, None], n, 1)
            tried[window] = np.arange(1, n + 1)[:, None]
            governors, planner = replayed(np.repeat(tried, COOLDOWN, 0)[: replayed.days], subsidy)
            best = governors.argmax(0)  # states do not infect each other, so each improves by itself
            chosen[window] = best + 1
        if governors.max(0).mean() - reached < 0.01:
            break
        reached = governors.max(0).mean()
    governors, planner = replayed(np.repeat(np.repeat(chosen[:, None], n, 1), COOLDOWN, 0)[: replayed.days], subsidy)
    return {"governors": float(governors[0].mean()), "planner": float(planner[0])}


def constant(replayed: Replayed, level: int) -> Returns:
    """Return the returns of a constant level without subsidies."""
    governors, planner = replayed(np.full((replayed.days, 10, 51), level), 0)
    return {"governors": float(governors[0].mean()), "planner": float(planner[0])}


def month_at_another_level(replayed: Replayed, gamma: float) -> np.ndarray:
    """Return the change of the return from day 61 on if days 61 to 88 are at level 1 to 10 instead of 6, [10]."""
    levels = np.full((replayed.days, 10, 51), 6)
    levels[60 : 60 + COOLDOWN] = np.arange(1, 11)[:, None]
    governors, _ = replayed.rewards(levels, 10)
    left = governors[60:].mean(2)
    changed: np.ndarray = gamma ** np.arange(len(left)) @ (left - left[:, 5:6])
    return changed


def measured(folder: Path) -> Returns:
    """Return the mean returns of the policies of a run."""
    return {f"{policy}/{name}": round(float(each.mean()), 3) for policy, found in returns(folder).items() for name, each in found.items()}


def references() -> dict[str, dict[str, Any]]:
    """Return the returns of constant policies and of the best governors found, and what a month at another level changes."""
    replayed = Replayed(compose(["env=covid"]), 10)
    found: dict[str, Any] = {}
    for level in (1, 10):
        found |= {f"level {level}/{group}": value for group, value in constant(replayed, level).items()}
    for subsidy in SUBSIDIES:
        found |= {f"subsidy {subsidy}/{group}": value for group, value in best_response(replayed, subsidy).items()}
    found |= {f"month {gamma}": month_at_another_level(replayed, gamma).round(2).tolist() for gamma in DISCOUNTS}
    return {"all": found}
