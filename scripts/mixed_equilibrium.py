"""Train two learners on matching pennies with several entropy coefficients, and print the table of docs/agents.md.

    python scripts/mixed_equilibrium.py [--agent ppo] [--seed 1] [--write]

The game is in tests/environments/probes.py, so the script needs a checkout. Default settings, 64 environments, 60 rollouts.
"""

import argparse
import sys
from pathlib import Path

import torch
from pages import DOCS, replace

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.agents import build  # noqa: E402
from tests.environments.probes import MATCHING_PENNIES  # noqa: E402
from warprun.simulation.device import Device  # noqa: E402
from warprun.simulation.kernel_engine import KernelEngine  # noqa: E402

HORIZON = 16
COEFFICIENTS = (0.0, 0.01, 0.1, 0.3, 1.0)
ROLLOUTS = range(10, 70, 10)
"""Rollouts after which the policies are recorded."""


def play(name: str, entropy_coef: float, seed: int) -> list[tuple[float, float]]:
    """Return the probability of heads of both players after each rollout in ROLLOUTS."""
    device, params = Device("cpu", "the game is small"), MATCHING_PENNIES.params()
    agent = build(name, MATCHING_PENNIES, n_envs=64, seed=seed, fused=True, horizon=HORIZON, entropy_coef=entropy_coef)
    sizes = {"n_envs": 64, "horizon": HORIZON, "threads": 1}
    engine = KernelEngine(MATCHING_PENNIES, "matching_pennies", device=device, seed=seed, params=params, networks=agent.networks(), **sizes)
    engine.prepare()
    shown = []
    for rollout in range(1, ROLLOUTS[-1] + 1):
        agent.update(engine.collect(agent.act), progress=rollout / ROLLOUTS[-1])
        if rollout in ROLLOUTS:
            with torch.no_grad():
                heads = [float(learner.policy(torch.zeros(1, 1))[0][0].softmax(0)[0]) for learner in agent.learners]
            shown.append((heads[0], heads[1]))
    return shown


def main() -> int:
    """Print the table, and write it with --write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", choices=("ppo", "a2c"), default="ppo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the table into docs/agents.md")
    chosen = parser.parse_args()
    lines = ["| `agent.entropy_coef` | " + " | ".join(map(str, ROLLOUTS)) + " |", "|---" * (1 + len(ROLLOUTS)) + "|"]
    for coefficient in COEFFICIENTS:
        cells = [f"{one:.2f}, {other:.2f}" for one, other in play(chosen.agent, coefficient, chosen.seed)]
        lines.append(f"| {coefficient:g} | " + " | ".join(cells) + " |")
    table = "\n".join(lines) + "\n"
    print(table)
    if chosen.write:
        replace(DOCS / "agents.md", "equilibrium", table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
