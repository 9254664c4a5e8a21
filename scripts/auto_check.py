"""Check what `n_envs=auto` chooses against the measured time until an environment is solved, and write the table of docs/auto.md.

    python scripts/auto_check.py [--seeds 3] [--threads 1] [--out outputs/auto.jsonl] [--write]

Trains CartPole and Acrobot with PPO and A2C, seven sizes each, sizes in turn for each seed; a run ends when it is solved, or after 36 s.
An existing OUT is continued. The choice is that of the rule of `warprun.runs.auto` with the median throughput of each size.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pages import DOCS, replace

import warprun
from warprun.config.compose import compose
from warprun.config.schema import sized
from warprun.runs import auto, checkpoint

CASES = [("cartpole", "ppo"), ("cartpole", "a2c"), ("acrobot", "ppo"), ("acrobot", "a2c")]
SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
BASE = ["eval.every=50000 steps", "log.live=false", "log.tensorboard=false", "checkpoint.best=false", "device=cpu", "max_minutes=0.6"]
Row = dict[str, float | int | str]


def measure(env: str, agent: str, n_envs: int, seed: int, threads: int) -> Row:
    """Train one run; return its env_steps, its CPU seconds from the end of the first iteration, and its throughput per CPU second."""
    base = [f"env={env}", f"agent={agent}", f"seed={seed}", f"concurrency.threads={threads}", *BASE]
    settings = sized(compose(base), n_envs, "")
    batches = [f"agent.minibatches={settings.agent.minibatches}"] if agent == "ppo" else []
    root, wall, cpu = Path(tempfile.mkdtemp()), time.perf_counter(), time.process_time()
    try:
        result = warprun.train([*base, *batches, f"n_envs={n_envs}", f"output_root={root}"])
        began_s = float(checkpoint.load(result.folder).meta["run"]["began_s"])
        rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").open()]
    finally:
        shutil.rmtree(root)
    # Other work on the machine takes its share of the time of one thread, which is left out.
    share = min(1.0, (time.process_time() - cpu) / (time.perf_counter() - wall) / threads)
    speed, seconds = statistics.median(row["perf/env_steps_per_s"] for row in rows) / share, (result.wall_s - began_s) * share
    took = {"env_steps": result.env_steps, "seconds": seconds, "throughput": speed, "load": os.getloadavg()[0]}
    return {"env": env, "agent": agent, "n_envs": n_envs, "seed": seed, "status": result.status, **took}


def line(env: str, agent: str, rows: list[Row]) -> tuple[str, float]:
    """Return the line of the table of one case, and how much longer the chosen size takes than the best one."""
    own = {n: [row for row in rows if (row["env"], row["agent"], row["n_envs"]) == (env, agent, n)] for n in SIZES}
    config = compose([f"env={env}", f"agent={agent}"])
    best = {n: statistics.median(float(row["throughput"]) for row in found) for n, found in own.items() if found}
    tried = [auto.Tried(sized(config, n, ""), speed) for n, speed in best.items()]
    chosen = auto.decided(tried, config.n_envs).n_envs
    times = {n: statistics.median(float(row["seconds"]) if row["status"] == "solved" else math.inf for row in own[n]) for n in best}
    cells = ["" if n not in times else f"{times[n]:.2f}" if math.isfinite(times[n]) else "–" for n in SIZES]
    cells = [f"**{cell}**" if n == chosen else cell for n, cell in zip(SIZES, cells, strict=True)]
    ratio = times[chosen] / min(times.values())
    return f"| {env}, {agent} | {' | '.join(cells)} | {ratio:.2f} |", ratio


def table(rows: list[Row]) -> str:
    """Return the table as Markdown, with a line on the load below."""
    lines = [line(env, agent, rows)[0] for env, agent in CASES]
    head = f"| | {' | '.join(f'{n:,}' for n in SIZES)} | chosen / best |\n|{'---|' * (len(SIZES) + 2)}"
    loads = [float(row["load"]) for row in rows]
    seeds = len({row["seed"] for row in rows})
    return f"{head}\n" + "\n".join(lines) + f"\n\nSeeds: {seeds}; load average of the machine {min(loads):.0f} to {max(loads):.0f}."


def main() -> int:
    """Measure, print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("outputs/auto.jsonl"))
    parser.add_argument("--write", action="store_true", help="write the table into docs/auto.md")
    chosen = parser.parse_args()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = [json.loads(text) for text in chosen.out.open()] if chosen.out.exists() else []
    done = {(row["env"], row["agent"], row["n_envs"], row["seed"]) for row in rows}
    for seed in range(chosen.seeds):
        for case in CASES:
            for n_envs in SIZES:
                if (*case, n_envs, seed) not in done:
                    rows.append(measure(*case, n_envs, seed, chosen.threads))
                    with chosen.out.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    print(made := table(rows))
    if chosen.write:
        replace(DOCS / "auto.md", "auto", f"{made}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
