"""The best constant control of env=heat_equation, and how it compares with a trained run.

    python scripts/heat_equation_results.py [RUN ...]

A constant control is one action a for all steps of all episodes. Temperatures are linear in it, u = b + sum_j a_j r_j:
b is what an episode without heat gives, and r_j the response of a rod at 0 to heater j alone. So the return is
quadratic in a, and least squares gives the best action for given episodes. Its value is then that of other episodes.
(Loads and initial temperatures are symmetric about 0, so for ever more episodes the best action tends to 0.)
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from common import settings

from warprun.envs.heat_equation import HEATERS, POWER_COST, HeatEquation

STEPS, EPISODES = 100, 500


def rolled_out(env: HeatEquation, action: np.ndarray) -> np.ndarray:
    """Return the temperatures after each of STEPS steps with the same action, [STEPS, cells]."""
    found = []
    for _ in range(STEPS):
        env.step(action)
        found.append(env.temperatures())
    return np.array(found)


def unheated(first: int) -> np.ndarray:
    """Return the temperatures of episodes without heat, with seeds from `first` on, [EPISODES, STEPS, cells]."""
    found = []
    for seed in range(first, first + EPISODES):
        env = HeatEquation()
        env.reset(seed=seed)
        found.append(rolled_out(env, np.zeros(len(HEATERS))))
    return np.array(found)


def response(heater: int) -> np.ndarray:
    """Return the temperatures of a rod that begins at 0, with one heater at full power and no load, [STEPS, cells]."""
    env = HeatEquation()
    env.load = np.zeros(env.cells)
    env.draw_load = lambda: None  # type: ignore[method-assign]
    return rolled_out(env, np.eye(len(HEATERS))[heater])


def best_constant(unheated: np.ndarray, responses: np.ndarray) -> np.ndarray:
    """Return the action with the largest mean return.

    `unheated` is [episodes, STEPS, cells], `responses` [heaters, STEPS, cells].

    The gradient of the return, -sum_t(mean_x(2 u r_j) + 2 POWER_COST a_j / heaters), is 0.
    """
    count, cells = responses.shape[0], responses.shape[-1]
    matrix = np.einsum("itx,jtx->ij", responses, responses) / cells + np.eye(count) * STEPS * POWER_COST / count
    best = np.linalg.solve(matrix, -np.einsum("itx,tx->i", responses, unheated.mean(0)) / cells)
    assert np.abs(best).max() <= 1.0, best
    return best


def main() -> None:
    """Print the returns of the best constant control, of none, and of runs."""
    runs = settings(__doc__, "run*").run
    responses = np.array([response(heater) for heater in range(len(HEATERS))])
    best, others = best_constant(unheated(0), responses), unheated(EPISODES)
    for action in (best, np.zeros(len(HEATERS))):
        heated = others + np.einsum("i,itx->tx", action, responses)
        found = -np.square(heated).mean(-1).sum(-1) - STEPS * POWER_COST * np.mean(action**2)
        error = 1.96 * found.std(ddof=1) / math.sqrt(EPISODES)
        print(f"constant control {np.round(action, 3).tolist()}: {found.mean():.2f} +- {error:.2f} (95 %, {EPISODES} episodes)")
    for run in runs:
        last = json.loads((Path(run) / "metrics.jsonl").read_text().splitlines()[-1])
        error = 1.96 * last["eval/return_stderr"]
        print(f"{run}: {last['eval/return']:.3f} +- {error:.3f} (95 %, {last['eval/episodes']:.0f} episodes)")


if __name__ == "__main__":
    main()
