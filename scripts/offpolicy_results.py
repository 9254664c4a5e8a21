"""Train DQN, DDPG, TD3 and SAC over seeds, evaluate the best and the last checkpoint, and write docs/benchmarks/off_policy.md.

    python scripts/offpolicy_results.py [--many] [--seeds 5] [--only CASE ...] [--minutes M] [--write]

Each run is `warprun.train([...])` in its own process, one after the other. Both checkpoints are then evaluated over 2,000 episodes that
the run has not seen. --many makes the second table: a thousand environments, where runs stop once the environment is solved.

Finished runs are stored in docs/benchmarks/offpolicy.json and are not repeated while their settings stay the same, so a table can be
measured in several calls: with --minutes no run starts after that time.
"""

import argparse
import hashlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from warprun.config.compose import compose

DOCS = Path(__file__).parents[1] / "docs" / "benchmarks"
KEPT = DOCS / "offpolicy.json"
FEW: dict[str, tuple[str, float]] = {
    "cartpole_dqn": ("env=cartpole agent=dqn", 475),
    "acrobot_dqn": ("env=acrobot agent=dqn", -100),
    "cartpole_quantiles": ("env=cartpole agent=dqn agent.quantiles=10 agent.dueling=true", 475),
    "mountain_car_dqn": ("env=mountain_car agent=dqn", -120),
    "pendulum_td3": ("env=pendulum agent=td3", -200),
    "pendulum_ddpg": ("env=pendulum agent=ddpg", -200),
    "pendulum_sac": ("env=pendulum agent=sac", -160),
    "mountain_car_continuous_td3": ("env=mountain_car_continuous agent=td3", 90),
    "mountain_car_continuous_ddpg": ("env=mountain_car_continuous agent=ddpg", 90),
    "mountain_car_continuous_sac": ("env=mountain_car_continuous agent=sac", 90),
}
"""Case -> overrides in addition to conf/tuned, and the bar."""
LARGE = "n_envs=1024 agent.learning_starts=4096 agent.utd_ratio=0.02 total_steps=1e6 eval.every=2.5%"
MANY: dict[str, tuple[str, float]] = {
    # Explore only briefly: otherwise the short episodes of random actions fill the buffer.
    "cartpole_dqn": (f"{LARGE} agent.replay.capacity=1e5 agent.n_step=10 agent.exploration_fraction=0.03", 490),
    "pendulum_td3": (f"{LARGE} agent.replay.capacity=5e5", -180),
    "pendulum_ddpg": (f"{LARGE} agent.replay.capacity=5e5", -180),
}
"""Case -> overrides in addition to those of FEW, and the return at which a run stops: above the bar, as other episodes decide."""
HEADER = """\
| case | bar | seeds at the bar | best checkpoint, min | median | last checkpoint, median | env steps | seconds, median |
|---|---|---|---|---|---|---|---|
"""
PROGRAM = """
import json, sys, time
import warprun
from warprun.runtime.evaluate import evaluate_run
result = warprun.train(sys.argv[2:])
seconds = round(time.process_time(), 2)  # of the whole process, whatever else the machine does
lines = {"best": "best", "last": "checkpoints"}
found = {name: evaluate_run(result.folder, 2000, True, "auto", 2**40, line)["return"] for name, line in lines.items()}
json.dump(found | {"env_steps": result.env_steps, "wall_s": round(result.wall_s, 2), "cpu_s": seconds}, open(sys.argv[1], "w"))
"""


def train(overrides: list[str]) -> dict[str, Any] | None:
    """Train and evaluate one run in its own process; return None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "result.json"
        command = [sys.executable, "-c", PROGRAM, str(found), *overrides, f"output_root={folder}/runs", "log.live=false"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        return json.loads(found.read_text()) if done.returncode == 0 and found.exists() else None


def row(case: str, runs: list[dict[str, Any]], asked: int) -> str:
    """Return the table row of one case."""
    bar = FEW[case][1]
    if not runs:
        return f"| {case} | {bar:g} | 0/{asked} | | | | | |"
    best = [run["best"] for run in runs]
    last, steps = (statistics.median(run[key] for run in runs) for key in ("last", "env_steps"))
    seconds = statistics.median(run.get("cpu_s", run["wall_s"]) for run in runs)
    reached = sum(value >= bar for value in best)
    of_best = f"{min(best):.1f} | {statistics.median(best):.1f}"
    return f"| {case} | {bar:g} | {reached}/{asked} | {of_best} | {last:.1f} | {steps:,.0f} | {seconds:.1f} |"


def main() -> int:
    """Run the cases, print the table and write it with --write; return 1 if a seed is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=FEW, metavar="CASE", help=", ".join(FEW))
    parser.add_argument("--many", action="store_true", help="the table of many environments")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks/off_policy.md")
    chosen = parser.parse_args()
    table = "many" if chosen.many else "few"
    kept: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    deadline = time.monotonic() + 60 * chosen.minutes
    rows, all_reached = [], True
    for case in MANY if chosen.many else FEW:
        if case not in (chosen.only or [case]):  # its row stays in the table
            before = [run for name, run in kept.items() if name.startswith(f"{table}/{case}/") and "best" in run]
            rows += [row(case, before, len(before))] if before else []
            continue
        runs = []
        for seed in range(chosen.seeds):
            more, stop = MANY[case] if chosen.many else ("stop_when_solved=false", FEW[case][1])
            overrides = [*FEW[case][0].split(), *more.split(), f"env.solved_at={stop}", f"seed={seed}"]
            name, settings = f"{table}/{case}/{seed}", hashlib.sha256(repr(compose(overrides)).encode()).hexdigest()[:16]
            if kept.get(name, {}).get("settings") != settings and time.monotonic() < deadline:
                kept[name] = (train(overrides) or {"failed": True}) | {"settings": settings}
                KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
            found = kept.get(name, {})
            print(name, found if found.get("settings") == settings else "not run yet", flush=True)
            runs += [found] if found.get("settings") == settings and "best" in found else []
        rows.append(row(case, runs, chosen.seeds))
        all_reached &= len(runs) == chosen.seeds and all(run["best"] >= FEW[case][1] for run in runs)
    text = HEADER + "\n".join(rows) + "\n"
    print(text)
    if chosen.write:
        page = DOCS / "off_policy.md"
        between = re.compile(rf"(<!-- results {table} -->\n).*?(<!-- end -->)", re.DOTALL)
        page.write_text(between.sub(lambda match: match[1] + text + match[2], page.read_text()))
    return int(not all_reached)


if __name__ == "__main__":
    sys.exit(main())
