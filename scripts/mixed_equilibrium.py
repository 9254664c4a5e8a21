"""Train two learners on matching pennies with several entropy coefficients, and print the table of docs/agents.md.

    python scripts/mixed_equilibrium.py [--agent ppo] [--seed 1] [--write]

The game is in tests/environments/probes.py, so the script needs a checkout. Default settings, 64 environments, 60
rollouts.
"""

import sys

import torch
from common import DOCS, ROOT, replace, settings, table

sys.path.insert(0, str(ROOT))

from tests.agents import build
from tests.environments.probes import MATCHING_PENNIES
from warprun.simulation.device import Device
from warprun.simulation.kernel_engine import KernelEngine

HORIZON = 16
COEFFICIENTS = (0.0, 0.01, 0.1, 0.3, 1.0)
ROLLOUTS = range(10, 70, 10)
"""Rollouts after which the policies are recorded."""


def play(name: str, entropy_coef: float, seed: int) -> list[tuple[float, float]]:
    """Return the probability of heads of both players after each rollout in ROLLOUTS."""
    device, params = Device("cpu", "the game is small"), MATCHING_PENNIES.params()
    agent = build(name, MATCHING_PENNIES, n_envs=64, seed=seed, fused=True, horizon=HORIZON, entropy_coef=entropy_coef)
    sizes = {"n_envs": 64, "horizon": HORIZON, "threads": 1}
    engine = KernelEngine(
        MATCHING_PENNIES,
        "matching_pennies",
        device=device,
        seed=seed,
        params=params,
        networks=agent.networks(),
        **sizes,
    )
    engine.prepare()
    shown = []
    for rollout in range(1, ROLLOUTS[-1] + 1):
        agent.update(engine.collect(agent.act), progress=rollout / ROLLOUTS[-1])
        if rollout in ROLLOUTS:
            with torch.no_grad():
                heads = [float(learner.policy(torch.zeros(1, 1))[0][0].softmax(0)[0]) for learner in agent.learners]
            shown.append((heads[0], heads[1]))
    return shown


def main() -> None:
    """Print the table, and write it with --write."""
    chosen = settings(__doc__, choices={"agent": ("ppo", "a2c")}, agent="ppo", seed=1, write=False)
    rows = []
    for coefficient in COEFFICIENTS:
        cells = [f"{one:.2f}, {other:.2f}" for one, other in play(chosen.agent, coefficient, chosen.seed)]
        rows.append([f"{coefficient:g}", *cells])
    text = table(["`agent.entropy_coef`", *ROLLOUTS], rows)
    print(text)
    if chosen.write:
        replace(DOCS / "agents.md", "equilibrium", text)


if __name__ == "__main__":
    main()
