"""Two learners on matching pennies, which `python scripts/reproduce.py --only equilibrium` trains with several entropy coefficients.

The game is in tests/environments/probes.py, so this needs a checkout. Default settings of PPO, 64 environments, 60 rollouts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import ROOT, table

sys.path.insert(0, str(ROOT))

from tests.agents import build
from tests.environments.probes import MATCHING_PENNIES
from warprun.simulation.device import Device
from warprun.simulation.kernel_engine import KernelEngine

HORIZON = 16
COEFFICIENTS = (0.0, 0.01, 0.1, 0.3, 1.0)
ROLLOUTS = range(10, 70, 10)
"""Rollouts after which the policies are recorded."""
SEED = 1


def play(entropy_coef: float) -> dict[str, Any]:
    """Return the probability of heads of both players after each rollout in ROLLOUTS."""
    device, params = Device("cpu", "the game is small"), MATCHING_PENNIES.params()
    agent = build("ppo", MATCHING_PENNIES, n_envs=64, seed=SEED, fused=True, horizon=HORIZON, entropy_coef=entropy_coef)
    sizes = {"n_envs": 64, "horizon": HORIZON, "threads": 1}
    engine = KernelEngine(MATCHING_PENNIES, "matching_pennies", device=device, seed=SEED, params=params, networks=agent.networks(), **sizes)
    engine.prepare()
    shown = []
    for rollout in range(1, ROLLOUTS[-1] + 1):
        agent.update(engine.collect(agent.act), progress=rollout / ROLLOUTS[-1])
        if rollout in ROLLOUTS:
            with torch.no_grad():
                heads = [float(learner.policy(torch.zeros(1, 1))[0][0].softmax(0)[0]) for learner in agent.learners]
            shown.append([round(each, 4) for each in heads])
    return {"heads": shown}


def parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return a part for every coefficient."""
    return {f"{coefficient:g}": partial(play, coefficient) for coefficient in COEFFICIENTS}


def of_page(found: dict[str, dict[str, Any]]) -> str:
    """Return the table of docs/agents.md from the values of the parts."""
    rows = [[title, *(f"{one:.2f}, {other:.2f}" for one, other in values["heads"])] for title, values in found.items()]
    return table(["`agent.entropy_coef`", *ROLLOUTS], rows)
