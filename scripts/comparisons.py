"""Run the comparisons of docs/benchmarks/off_policy.md (conf/experiment, five seeds each), plot them and print a table.

    python scripts/comparisons.py [--out outputs/comparisons] [--only NAME ...] [--draw-only]

Runs are stored in OUT/NAME, the figure in OUT/NAME.png. Needs matplotlib.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from plot_runs import folders, points, read

SEEDS = "seed=0,1,2,3,4"
COMPARISONS: dict[str, tuple[float, list[list[str]]]] = {
    "td3_or_ddpg": (-200, [["agent=td3,ddpg"]]),
    "prioritized_ddpg": (-200, [["agent.replay.prioritized=false,true"]]),
    "a2c_or_dqn": (200, [["agent=dqn,a2c"]]),
}
"""Experiment -> the return that counts as reached, and the sweeps."""
PROGRAM = "import sys; from warprun.cli.main import run; sys.exit(run(sys.argv[1:]))"
HEADER = """\
| runs | at the bar | env steps to it, median | wall s to it, median | last evaluation, min | median |
|---|---|---|---|---|---|"""


def table(runs: list[Path], bar: float) -> str:
    """Return a row per kind of run: how many reached the bar in an evaluation, when, and their last evaluations."""
    kinds: dict[str, list[tuple[list[float], list[float], list[float]]]] = {}
    for run in runs:
        label, records = read(run)
        steps, found = points(records, "env_steps", "eval/return")
        kinds.setdefault(label, []).append((steps, points(records, "wall_s", "eval/return")[0], found))
    lines = [HEADER]
    for label, seeds in kinds.items():
        first = [next((n for n, value in enumerate(found) if value >= bar), None) for _, _, found in seeds]
        there = [(steps[n], wall[n]) for n, (steps, wall, _) in zip(first, seeds, strict=True) if n is not None]
        when = [f"{statistics.median(column):,.{digits}f}" for column, digits in zip(zip(*there, strict=True), (0, 1), strict=False)]
        last = [found[-1] for _, _, found in seeds]
        cells = [label, f"{len(there)}/{len(seeds)}", *(when or ["", ""]), f"{min(last):.1f}", f"{statistics.median(last):.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the comparisons; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/comparisons"))
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, default=list(COMPARISONS), metavar="NAME", help=", ".join(COMPARISONS))
    parser.add_argument("--draw-only", action="store_true", help="use existing runs")
    chosen = parser.parse_args()
    for name in chosen.only:
        bar, sweeps = COMPARISONS[name]
        for sweep in [] if chosen.draw_only else sweeps:
            command = [
                sys.executable,
                "-c",
                PROGRAM,
                "-m",
                f"experiment={name}",
                *sweep,
                SEEDS,
                f"output_root={chosen.out / name}",
                "log.live=false",
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        picture = [str(Path(__file__).with_name("plot_runs.py")), str(chosen.out / name), "-o", str(chosen.out / f"{name}.png")]
        subprocess.run([sys.executable, *picture, "--solved", str(bar)], check=True)
        print(table(folders([chosen.out / name]), bar), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
