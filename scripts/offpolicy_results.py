"""Train DQN, DDPG and TD3 over seeds, evaluate the best and the last checkpoint anew, and write the tables of docs/agents.md.

    python scripts/offpolicy_results.py [--seeds 5] [--only CASE ...] [--many] [--threads N] [--write]

Each run is `warprun.train([...])` in a process of its own, to its last step, one after the other; every checkpoint is then evaluated over
100 episodes that no run has seen. --many is the second table, thousands of environments by wall time, where runs stop at the bar.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "agents.md"
FEW: dict[str, tuple[list[str], float]] = {
    "cartpole_dqn": (["env=cartpole", "agent=dqn"], 475),
    "acrobot_dqn": (["env=acrobot", "agent=dqn"], -100),
    "mountain_car_dqn": (["env=mountain_car", "agent=dqn"], -120),
    "pendulum_td3": (["env=pendulum", "agent=td3"], -200),
    "pendulum_ddpg": (["env=pendulum", "agent=ddpg"], -200),
    "mountain_car_continuous_td3": (["env=mountain_car_continuous", "agent=td3"], 90),
    "mountain_car_continuous_ddpg": (["env=mountain_car_continuous", "agent=ddpg"], 90),
}
"""Case -> overrides and the bar; what else they need is in conf/tuned."""
LARGE = ["n_envs=1024", "agent.warmup=4096", "eval.every=25"]
MANY: dict[str, tuple[list[str], float]] = {
    "cartpole_dqn": ([*FEW["cartpole_dqn"][0], *LARGE, "agent.gradient_steps=0.04", "total_steps=6e5", "agent.replay.capacity=2e5"], 475),
    "pendulum_td3": ([*FEW["pendulum_td3"][0], *LARGE, "agent.gradient_steps=0.02", "total_steps=1e6", "agent.replay.capacity=5e5"], -200),
    "pendulum_ddpg": (
        [*FEW["pendulum_ddpg"][0], *LARGE, "agent.gradient_steps=0.02", "total_steps=1e6", "agent.replay.capacity=5e5"],
        -200,
    ),
}
HEADER = """\
| case | bar | seeds at the bar | best checkpoint, min | median | last checkpoint, median | env steps | wall s, median |
|---|---|---|---|---|---|---|---|
"""
PROGRAM = """
import json, sys
import warprun
from warprun.evaluate import evaluate_run
result = warprun.train(sys.argv[2:])
lines = {"best": "best", "last": "checkpoints"}
found = {name: evaluate_run(result.folder, 100, True, "auto", 2**40, line)["return"] for name, line in lines.items()}
json.dump(found | {"env_steps": result.env_steps, "wall_s": round(result.wall_s, 2)}, open(sys.argv[1], "w"))
"""


def train(overrides: list[str]) -> dict[str, Any] | None:
    """Train and evaluate one run in its own process; None where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "result.json"
        command = [sys.executable, "-c", PROGRAM, str(found), *overrides, f"output_root={folder}/runs", "log.live=false"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        return json.loads(found.read_text()) if done.returncode == 0 and found.exists() else None


def row(case: str, bar: float, runs: list[dict[str, Any]], asked: int) -> str:
    """Return the line of one case."""
    if not runs:
        return f"| {case} | {bar:g} | 0/{asked} | | | | | |"
    best = [run["best"] for run in runs]
    last, steps, wall = (statistics.median(run[key] for run in runs) for key in ("last", "env_steps", "wall_s"))
    reached = sum(value >= bar for value in best)
    of_best = f"{min(best):.1f} | {statistics.median(best):.1f}"
    return f"| {case} | {bar:g} | {reached}/{asked} | {of_best} | {last:.1f} | {steps:,.0f} | {wall:.1f} |"


def main() -> int:
    """Run the cases, print the table and write it where asked; return 1 where a seed is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=FEW, metavar="CASE", help=", ".join(FEW))
    parser.add_argument("--many", action="store_true", help="the table of many environments")
    parser.add_argument("--threads", type=int, help="CPU threads of a run (default: all cores)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/agents.md")
    chosen = parser.parse_args()
    cases = MANY if chosen.many else FEW
    rows, all_reached = [], True
    for case in chosen.only or cases:
        overrides, bar = cases[case]
        stop = [f"env.solved_at={bar}", f"stop_when_solved={str(chosen.many).lower()}"]
        threads = [f"concurrency.threads={chosen.threads}"] if chosen.threads else []
        runs = []
        for seed in range(chosen.seeds):
            run = train([*overrides, *stop, *threads, f"seed={seed}"])
            print(case, f"seed={seed}", run or "failed", flush=True)
            runs += [run] if run else []
        rows.append(row(case, bar, runs, chosen.seeds))
        all_reached &= len(runs) == chosen.seeds and all(run["best"] >= bar for run in runs)
    table = HEADER + "\n".join(rows) + "\n"
    print(table)
    if chosen.write:
        name = "many" if chosen.many else "few"
        between = re.compile(rf"(<!-- results {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        PAGE.write_text(between.sub(lambda match: match[1] + table + match[2], PAGE.read_text()))
    return int(not all_reached)


if __name__ == "__main__":
    sys.exit(main())
