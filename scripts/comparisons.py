"""Run the comparisons of docs/benchmarks/off_policy.md (conf/experiment, five seeds each) and report them.

    python scripts/comparisons.py [--out outputs/comparisons] [--only NAME ...] [--draw-only]

Runs are stored in OUT/NAME, tables and figures in OUT/NAME_report. Needs matplotlib.
"""

import argparse
import subprocess
import sys
from pathlib import Path

SEEDS = "seed=0,1,2,3,4"
COMPARISONS: dict[str, tuple[float, str]] = {
    "td3_or_ddpg": (-200, "agent=td3,ddpg"),
    "prioritized_ddpg": (-200, "agent.replay.prioritized=false,true"),
    "a2c_or_dqn": (200, "agent=dqn,a2c"),
}
"""Experiment -> the return that counts as reached, and what is compared."""
PROGRAM = "import sys; from warprun.cli.main import run; sys.exit(run(sys.argv[1:]))"


def warprun(*arguments: str) -> None:
    """Run a command of warprun. Raises CalledProcessError."""
    subprocess.run([sys.executable, "-c", PROGRAM, *arguments], check=True)


def main() -> int:
    """Run the comparisons; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/comparisons"))
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, default=list(COMPARISONS), metavar="NAME", help=", ".join(COMPARISONS))
    parser.add_argument("--draw-only", action="store_true", help="use existing runs")
    chosen = parser.parse_args()
    for name in chosen.only:
        bar, compared = COMPARISONS[name]
        if not chosen.draw_only:
            warprun("-m", f"experiment={name}", compared, SEEDS, f"output_root={chosen.out / name}", "log.live=false")
        by = compared.partition("=")[0]
        warprun("report", str(chosen.out / name), f"by={by}", f"threshold={bar}", f"out={chosen.out / f'{name}_report'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
