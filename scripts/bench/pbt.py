"""Compare population-based training with random search: the same intervals, members and env_steps, several seeds.

    python scripts/bench/pbt.py [KEY=VALUE ...] [--seeds 5] [--members 8] [--out outputs/bench/pbt.json]

The settings are those of `warprun tune`; without any they are PPO on Pendulum with wide intervals. Each search has its
own seed. The table has for each search the median over seeds of the best member's return and of the middle member's, by
200 fresh episodes after the training, from the least to the largest. Speed does not matter, so other load does no harm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).resolve().parents[1]))

from common import settings, table

SETTINGS = [
    "env=pendulum",
    "agent=ppo",
    "tuned=none",
    "total_steps=4e5",
    "tune.every=4e4",
    "n_envs=64",
    "agent.horizon=64",
    "agent.learning_rate=tag(log,interval(1e-5,1e-1))",
    "agent.gamma=interval(0.8,0.999)",
    "agent.gae_lambda=interval(0.8,1.0)",
    "agent.entropy_coef=tag(log,interval(1e-5,1e-1))",
    "eval.final_episodes=200",
]
LEAN = ["eval.every=never", "checkpoint.best=false", "stop_when_solved=false", "log.every=10%", f"launcher.workers={os.cpu_count()}"]


def main() -> None:
    """Measure, write JSON and print the table."""
    chosen = settings(__doc__, "overrides*", seeds=5, members=8, out="outputs/bench/pbt.json")
    given = [*(chosen.overrides or SETTINGS), *LEAN]
    searches = {
        "population-based training": ["sampler=pbt", f"members={chosen.members}"],
        "random search": ["sampler=random", f"trials={chosen.members}", "pruner=none"],
    }
    found: dict[str, list[list[float]]] = {name: [] for name in searches}
    for seed in range(chosen.seeds):
        for name, search in searches.items():
            found[name].append(returns([*given, *search, f"tune.seed={seed}"]))
            print(f"seed {seed}, {name}: {[round(each, 1) for each in found[name][-1]]}", flush=True)
    out = Path(chosen.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"settings": given, "returns": found}) + "\n")
    rows = [(name, ranged([max(each) for each in runs]), ranged([median(each) for each in runs])) for name, runs in found.items()]
    print(table(("search", "best member", "middle member"), rows), end="")


def returns(given: list[str]) -> list[float]:
    """Return the returns of all members of a search at its end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "warprun", "tune", *given, f"sweep_dir={folder}/search"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        files = sorted(Path(folder, "search").glob("[0-9]*/metrics.jsonl"))
        if not files:
            sys.exit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
        lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [[line["eval/return"] for line in run if "eval/return" in line][-1] for run in lines]


def ranged(values: list[float]) -> str:
    """Return the median of values, with the least and the largest."""
    return f"{median(values):.0f} [{min(values):.0f}, {max(values):.0f}]"


if __name__ == "__main__":
    main()
