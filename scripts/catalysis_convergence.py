"""Convergence of catalysis against wall time for 4, 20, 100, 500 and 10,000 environments, five seeds each, as a figure.

    python scripts/catalysis_convergence.py FOLDER [--minutes 0.1] [--seeds 5] [--envs 4 20 ...] [--scenarios lh er1] [--threads N]
        [--draw-only]

Trains `experiment=catalysis_convergence` into FOLDER, one run after the other, and draws FOLDER/convergence.png: return, success rate and
episode length of sampled evaluations. Lines are means over seeds; bands are one standard deviation, within the range of the seeds. Time
counts from the first update and includes evaluations. Needs the published grids (warprun data catalysis) and matplotlib
(pip install matplotlib).
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

MEASURES = {"eval/return": "return (with shaping)", "eval/terminated": "success rate", "eval/episode_length": "steps of an episode"}
COLORS = ("#56b4e9", "#009e73", "#e69f00", "#d55e00", "#444444")


def train(run: Path, scenario: str, n_envs: int, seed: int, minutes: float, threads: int | None) -> None:
    """Train one run into its own folder, unless it is there."""
    if not run.exists():
        overrides = ["experiment=catalysis_convergence", f"env.scenario={scenario}", f"n_envs={n_envs}", f"seed={seed}"]
        overrides += [f"max_minutes={minutes}", f"run_dir={run}", f"eval.every={every(n_envs)}iterations", "log.live=false"]
        overrides += [f"concurrency.threads={threads}"] if threads else []
        program = "import sys, warprun; warprun.train(sys.argv[1:])"
        subprocess.run([sys.executable, "-c", program, *overrides], stdout=subprocess.DEVNULL, check=True)


def curve(run: Path, measure: str, n_envs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return minutes since training began and values of the evaluations of a run."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    fresh = [record for record in records if "perf/eval_ms" in record]
    first = fresh[0]
    spent = every(n_envs) * (first["perf/rollout_ms"] + first["perf/update_ms"]) + first["perf/eval_ms"]
    return np.array([r["wall_s"] - first["wall_s"] + spent / 1000 for r in fresh]) / 60, np.array([r[measure] for r in fresh])


def every(n_envs: int) -> int:
    """Return after how many updates to evaluate: those of 10,000 environments take long; of fewer, the first twenty may solve it."""
    return min(20, 20_000 // n_envs)


def draw(folder: Path, scenarios: list[str], envs: list[int], seeds: int) -> Path:
    """Draw the runs of a folder and return the picture's path."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(MEASURES), len(scenarios), figsize=(4.2 * len(scenarios), 7.5), squeeze=False, sharex=True)
    for column, scenario in enumerate(scenarios):
        for panel, (measure, label) in zip(panels[:, column], MEASURES.items(), strict=True):
            for n_envs, color in zip(envs, COLORS, strict=False):
                runs = [folder / f"{scenario}_{n_envs}_{seed}" for seed in range(seeds)]
                band(panel, [curve(run, measure, n_envs) for run in runs], n_envs, color)
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter("{x:g}")
            panel.xaxis.set_minor_formatter("")
            panel.set_ylabel(label if column == 0 else "")
            panel.spines[["top", "right"]].set_visible(False)
        panels[0, column].set_title(scenario)
        panels[1, column].set_ylim(-0.03, 1.03)
        panels[-1, column].set_xlabel("wall-clock minutes of training")
    panels[0, 0].legend(title="environments", frameon=False, fontsize=8)
    figure.tight_layout()
    out = folder / "convergence.png"
    figure.savefig(out, dpi=150)
    return out


def band(panel: Any, curves: list[tuple[np.ndarray, np.ndarray]], n_envs: int, color: str) -> None:
    """Draw the mean of curves on common times, and a band of one standard deviation."""
    times = np.geomspace(min(t[0] for t, _ in curves), min(t[-1] for t, _ in curves), 200)
    values = np.array([np.interp(times, t, v) for t, v in curves])
    mean, spread = values.mean(0), values.std(0)
    panel.plot(times, mean, color=color, label=f"{n_envs:,}")
    # Limit the band to the measured range, so that no share exceeds 1 and no length is below 0.
    low, high = np.maximum(mean - spread, values.min(0)), np.minimum(mean + spread, values.max(0))
    panel.fill_between(times, low, high, color=color, alpha=0.2, linewidth=0)


def main() -> int:
    """Train what is missing and draw; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=0.1, help="of each run")
    parser.add_argument("--threads", type=int, help="CPU threads of a run (default: all cores)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--envs", type=int, nargs="+", default=[4, 20, 100, 500, 10_000])
    parser.add_argument("--scenarios", nargs="+", default=["lh", "er1"])
    parser.add_argument("--draw-only", action="store_true")
    chosen = parser.parse_args()
    if not chosen.draw_only:
        for scenario in chosen.scenarios:
            for n_envs in chosen.envs:
                for seed in range(chosen.seeds):
                    train(chosen.folder / f"{scenario}_{n_envs}_{seed}", scenario, n_envs, seed, chosen.minutes, chosen.threads)
                    print(scenario, n_envs, seed, flush=True)
    print(draw(chosen.folder, chosen.scenarios, chosen.envs, chosen.seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
