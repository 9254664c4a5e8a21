"""Train what WarpSci's figures 2a, 2b and 2c show, and draw them: throughput and return over time with 10 to 10,000 environments.

    python scripts/warpsci_figures.py [--out outputs/warpsci] [--seeds 8] [--minutes 0.25] [--draw-only] [--docs]

64 runs of a quarter of a minute, one after the other: do not use the machine for anything else. `warprun report` draws
them into OUT/report; --docs copies the figures into docs/figures and the table into docs/reproductions.md. Needs matplotlib.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reproductions.md"
SIZES = "n_envs=10,100,1000,10000"
EXPERIMENTS = ("warpsci_cartpole", "warpsci_acrobot")
FIGURES = {
    "throughput": ("warpsci_2a", "Figure 2a: throughput against the number of environments"),
    "learning": ("warpsci_2bc", "Figures 2b and 2c: return against environment steps and time, for four numbers of environments"),
}
"""Figure of the report -> its name in docs/figures, and what it shows."""
PROGRAM = "import sys; from warprun.cli.main import run; sys.exit(run(sys.argv[1:]))"


def warprun(*arguments: str) -> None:
    """Run a command of warprun. Raises CalledProcessError."""
    subprocess.run([sys.executable, "-c", PROGRAM, *arguments], check=True)


def machine(out: Path) -> str:
    """Return what the runs were made on, and how busy it was when they began and ended."""
    versions = json.loads(next(out.rglob("versions.json")).read_text())
    load = json.loads((out / "load.json").read_text())
    device = versions["gpu"] or versions["cpu"]
    return f"{device}, {versions['cores']} cores; load average {load['before']:.1f} before and {load['after']:.1f} after the runs"


def into_docs(out: Path) -> None:
    """Copy the figures, and write the table with the machine, into the documentation."""
    for name, (kept, _) in FIGURES.items():
        shutil.copyfile(out / "report" / f"{name}.png", DOCS / "figures" / f"{kept}.png")
    pictures = [f"![{caption}](figures/{kept}.png)" for kept, caption in FIGURES.values()]
    text = (out / "report" / "report.md").read_text()
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    made = "\n\n".join(["<!-- warpsci -->", *pictures, table, f"Machine: {machine(out)}.", "<!-- end -->"])
    PAGE.write_text(re.sub(r"<!-- warpsci -->.*?<!-- end -->", lambda _: made, PAGE.read_text(), flags=re.DOTALL))


def main() -> int:
    """Run, draw; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/warpsci"))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=0.25, help="of each run")
    parser.add_argument("--draw-only", action="store_true", help="use existing runs")
    parser.add_argument("--docs", action="store_true", help="copy figures and table into docs")
    chosen = parser.parse_args()
    if not chosen.draw_only:
        before = os.getloadavg()[0]
        settings = [SIZES, f"seed=range(0,{chosen.seeds})", f"max_minutes={chosen.minutes}", f"output_root={chosen.out}"]
        for experiment in EXPERIMENTS:
            warprun("-m", f"experiment={experiment}", *settings, "log.live=false", "log.tensorboard=false")
        (chosen.out / "load.json").write_text(json.dumps({"before": before, "after": os.getloadavg()[0]}))
    warprun("report", str(chosen.out), "by=n_envs", "log_x=true", f"out={chosen.out / 'report'}")
    if chosen.docs:
        into_docs(chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
