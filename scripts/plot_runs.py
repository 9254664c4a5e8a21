"""Plot the return of runs against environment steps and against wall time, from their metrics.jsonl.

    python scripts/plot_runs.py RUN ... [-o runs.png] [--solved 475] [--log-x]

RUN is a run folder, or a folder of run folders. Runs with the same environment, agent and number of environments share a color.
Thin lines are the training episodes, lines with dots the evaluations. Needs matplotlib: pip install matplotlib.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml


def folders(given: list[Path]) -> list[Path]:
    """Return the run folders among `given` and in them."""
    return [run for folder in given for run in ([folder] if (folder / "metrics.jsonl").exists() else sorted(folder.glob("*/")))]


def read(run: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the label of a run and the records of its metrics, without an incomplete last line."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    records = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    agent = config["agent"]
    replay = ", prioritized replay" if agent.get("replay", {}).get("prioritized") else ""
    return f"{config['env']['name']}, {agent['name']}{replay}, {config['n_envs']:,} environments", records


def points(records: list[dict[str, Any]], x: str, y: str) -> tuple[list[float], list[float]]:
    """Return x and y of the records that have a new value of `y`."""
    # Records repeat the last evaluation until the next one; only the record of a new evaluation has its duration.
    fresh = [record for record in records if not y.startswith("eval/") or "perf/eval_ms" in record]
    found = [(record[x], record[y]) for record in fresh if record.get(y) is not None]
    return [a for a, _ in found], [b for _, b in found]


def main() -> int:
    """Draw the figure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("-o", "--out", type=Path, default=Path("runs.png"))
    parser.add_argument("--solved", type=float, help="draw a line at this return")
    parser.add_argument("--log-x", action="store_true", help="logarithmic x axes")
    chosen = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        print("plot_runs: matplotlib is missing; run: pip install matplotlib", file=sys.stderr)
        return 2
    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter

    runs = [read(run) for run in folders(chosen.runs) if (run / "metrics.jsonl").exists() and (run / "config.yaml").exists()]
    if not runs:
        print("plot_runs: no run with metrics in " + ", ".join(map(str, chosen.runs)), file=sys.stderr)
        return 2
    labels = list(dict.fromkeys(label for label, _ in runs))
    pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    for panel, x, name in zip(panels, ("env_steps", "wall_s"), ("environment steps", "wall time, s"), strict=True):
        for label, records in runs:
            color = f"C{labels.index(label)}"
            panel.plot(*points(records, x, "train/return"), color=color, alpha=0.5, linewidth=1)
            panel.plot(*points(records, x, "eval/return"), "o-", color=color, markersize=4, linewidth=1.5)
        if chosen.solved is not None:
            panel.axhline(chosen.solved, color="0.6", linewidth=0.8, linestyle="--", zorder=0)
        if chosen.log_x:
            panel.set_xscale("log")
        else:
            panel.set_xlim(left=0)
        if x == "env_steps":
            panel.xaxis.set_major_formatter(EngFormatter(sep=" "))
        panel.set_xlabel(name)
        panel.grid(alpha=0.2)
    panels[0].set_ylabel("return of an episode")
    lines = [pyplot.Line2D([], [], color=f"C{n}", label=label) for n, label in enumerate(labels)]
    lines += [pyplot.Line2D([], [], color="0.4", linewidth=1, label="training (sampled actions)")]
    lines += [pyplot.Line2D([], [], color="0.4", marker="o", markersize=4, linewidth=1.5, label="evaluation (greedy)")]
    figure.legend(handles=lines, frameon=False, fontsize=9, loc="outside lower center", ncols=3)
    figure.savefig(chosen.out, dpi=150)
    print(chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
