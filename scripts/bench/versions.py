"""Measure two installed versions of warprun against each other with `warprun bench`, in turn in every round.

    python scripts/bench/versions.py OLD/bin/python NEW/bin/python [--rounds 5] [KEY=VALUE ...]

The other settings are those of `warprun bench`; without any they are `env=cartpole agent=a2c threads=1
sizes=10,100,10000`. The table has medians in environment steps per second, and the median of the ratios of the rounds:
neighbours in time share what else the machine does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from types import MappingProxyType

sys.path.append(str(Path(__file__).parents[1]))

from common import settings

SETTINGS = ["env=cartpole", "agent=a2c", "threads=1", "sizes=10,100,10000"]
WORK = ("simulation", "rollout", "training")


def main() -> None:
    """Print the table."""
    chosen = settings(__doc__, "old", "new", "overrides*", rounds=5)
    given = chosen.overrides or SETTINGS
    print(f"warprun bench {' '.join(given)}: {chosen.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    found = [(measure(chosen.old, given), measure(chosen.new, given)) for _ in range(chosen.rounds)]
    print(f"{'n_envs':>10}  {'':12}{'old':>10}{'new':>10}{'new / old':>12}")
    for n_envs in found[0][0]:
        for work in WORK:
            olds, news = ([version[n_envs][work] for version in versions] for versions in zip(*found, strict=True))
            ratio = median(b / a for a, b in zip(olds, news, strict=True))
            print(f"{n_envs:>10,}  {work:12}{median(olds) / 1e6:9.2f}M{median(news) / 1e6:9.2f}M{ratio:12.3f}")
    print(f"load at the end {os.getloadavg()[0]:.1f}")


def measure(python: str, given: list[str], variables: Mapping[str, str] = MappingProxyType({})) -> dict[int, dict[str, float]]:
    """Return the steps per second of every size: n_envs -> work -> rate; `variables` are of the environment of the process."""
    with tempfile.TemporaryDirectory() as folder:
        program = [python, "-m", "warprun", "bench", *given, f"out={folder}"]
        subprocess.run(program, stdout=subprocess.DEVNULL, cwd=folder, env=os.environ | variables, check=True)
        measurements = json.loads((Path(folder) / "bench.json").read_text())["measurements"]
    return {each["n_envs"]: {work: each[f"{work}_steps_per_s"] for work in WORK} for each in measurements}


if __name__ == "__main__":
    main()
