"""Train environments of Gymnasium over seeds, and write the table and the figure of docs/external.md.

    python scripts/external_results.py [--only lunar_lander_ppo] [--seeds 5] [--jobs N] [--write]

`cartpole_compiled` and `cartpole_gymnasium` are the same training of the environment of warprun and of Gymnasium's CartPole-v1; the figure
shows their evaluations. Every run is judged by 1,000 fresh episodes after its end. Needs gymnasium with Box2D, and matplotlib.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FIGURE, KEPT = DOCS / "external.md", DOCS / "figures" / "external_cartpole.png", DOCS / "benchmarks" / "external.json"
EPISODES = 1000
CARTPOLE = ["agent=ppo", "tuned=none", "n_envs=8", "agent.horizon=32", "agent.epochs=10", "total_steps=100000", "stop_when_solved=false"]
CARTPOLE += ["eval.every=5%", "eval.episodes=20", "eval.final_episodes=20"]
CASES = {
    "cartpole_compiled": ["env=cartpole", *CARTPOLE],
    "cartpole_gymnasium": ["env=gymnasium", "env.id=CartPole-v1", *CARTPOLE],
    "lunar_lander_ppo": ["experiment=lunar_lander_ppo"],
    "lunar_lander_td3": ["experiment=lunar_lander_td3"],
}
"""Case -> overrides."""
FIGURE_CASES = {"cartpole_compiled": "env=cartpole", "cartpole_gymnasium": "env=gymnasium env.id=CartPole-v1"}
HEADER = "| case | env steps | mean return of every seed, 1,000 fresh episodes | wall s, median |\n|---|---|---|---|\n"
PROGRAM = """
import json, sys
import warprun
from warprun.runtime.evaluate import evaluate_run
result = warprun.train(sys.argv[3:])
found = evaluate_run(result.folder, int(sys.argv[2]), True, "cpu", 1)
records = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
json.dump({
    "return": found["return"],
    "return_stderr": found["return_stderr"],
    "env_steps": result.env_steps,
    "wall_s": round(result.wall_s, 2),
    "curve": [(r["env_steps"], r["eval/return"]) for r in records if "eval/return" in r and "perf/eval_ms" in r],
}, open(sys.argv[1], "w"))
"""


def train(overrides: list[str]) -> dict[str, Any]:
    """Train and evaluate one run in its own process and return its numbers. Raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "result.json"
        quiet = ["device=cpu", "concurrency.threads=1", f"output_root={folder}/runs", "log.live=false"]
        command = [sys.executable, "-c", PROGRAM, str(found), str(EPISODES), *overrides, *quiet]
        subprocess.run(command, stdout=subprocess.DEVNULL, cwd=folder, check=True)
        run: dict[str, Any] = json.loads(found.read_text())
        return run


def row(case: str, runs: list[dict[str, Any]]) -> str:
    """Return the table row of one case."""
    returns = ", ".join(f"{run['return']:.1f} ± {run['return_stderr']:.1f}" for run in runs)
    return f"| `{case}` | {runs[0]['env_steps']:,} | {returns} | {statistics.median(run['wall_s'] for run in runs):.0f} |\n"


def draw(found: dict[str, list[dict[str, Any]]]) -> None:
    """Draw the evaluations of the same training of both environments: every seed, and the mean."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    for number, (case, label) in enumerate(FIGURE_CASES.items()):
        curves = [run["curve"] for run in found[case]]
        steps = [point[0] for point in curves[0]]
        for curve in curves:
            axes.plot(steps, [point[1] for point in curve], color=f"C{number}", alpha=0.3, linewidth=0.8)
        mean = [statistics.mean(curve[n][1] for curve in curves) for n in range(len(steps))]
        axes.plot(steps, mean, "o-", color=f"C{number}", label=f"{label}, mean of {len(curves)} seeds", markersize=3)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("mean return of an evaluation")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(FIGURE, dpi=150)


def main() -> int:
    """Run the cases, print the table, and write it and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="CASE", choices=CASES, help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--write", action="store_true", help=f"replace these cases in {KEPT.name}, the table and the figure")
    chosen = parser.parse_args()
    jobs = [(case, seed) for case in chosen.only or CASES for seed in range(chosen.seeds)]

    def one(job: tuple[str, int]) -> dict[str, Any]:
        run = train([*CASES[job[0]], f"seed={job[1]}"])
        print(*job, {name: value for name, value in run.items() if name != "curve"}, flush=True)
        return run

    with ThreadPoolExecutor(chosen.jobs) as pool:
        runs = list(pool.map(one, jobs))
    found = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found |= {case: [run for job, run in zip(jobs, runs, strict=True) if job[0] == case] for case in chosen.only or CASES}
    table = HEADER + "".join(row(case, found[case]) for case in CASES if case in found)
    print(table)
    if chosen.write:
        KEPT.write_text(json.dumps(found) + "\n")
        between = re.compile(r"(<!-- external results -->\n).*?(<!-- end -->)", re.DOTALL)
        PAGE.write_text(between.sub(lambda match: match[1] + table + match[2], PAGE.read_text()))
        if set(FIGURE_CASES) <= set(found):
            draw(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
