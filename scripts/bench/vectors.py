"""Measure what narrower vectors cost: the same training with kernels for this processor, for one with AVX2, and for one with SSE2.

    python scripts/bench/vectors.py [--rounds 5] [KEY=VALUE ...]

NUMBA_CPU_NAME and NUMBA_CPU_FEATURES choose the processor that kernels are compiled for. The settings are those of `warprun bench`; without
any they are `env=cartpole agent=a2c sizes=10000`. All take turns in every round, after one that compiles. The table has medians in million
environment steps per second, and the medians of the ratios of the rounds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1]))

from common import described, in_turn, machine, settings
from versions import WORK, measure

SETTINGS = ["env=cartpole", "agent=a2c", "sizes=10000"]
AVX2 = "+avx,+avx2,+fma,+bmi,+bmi2,+f16c,+lzcnt,+movbe,+popcnt,+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2"
PROCESSORS = {
    "this one": {},
    "AVX2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2},
    "SSE2": {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse,+sse2"},
}
"""Processor -> variables of Numba."""


def main() -> None:
    """Print the table."""
    chosen = settings(__doc__, "overrides*", rounds=5)
    given = chosen.overrides or SETTINGS
    print(f"warprun bench {' '.join(given)}: {chosen.rounds} rounds, {described(machine())}, load {os.getloadavg()[0]:.1f}")
    candidates = {name: lambda asked=asked: measure(sys.executable, given, asked) for name, asked in PROCESSORS.items()}
    in_turn(candidates, 1)
    found = in_turn(candidates, chosen.rounds)
    print(f"{'n_envs':>10}  {'':12}" + "".join(f"{name:>12}{'':>8}" for name in PROCESSORS))
    for n_envs in found["this one"][0]:
        for work in WORK:
            rates = {name: [each[n_envs][work] for each in rounds] for name, rounds in found.items()}
            ratios = {name: median(a / b for a, b in zip(rate, rates["this one"], strict=True)) for name, rate in rates.items()}
            print(f"{n_envs:>10,}  {work:12}" + "".join(f"{median(rates[n]) / 1e6:11.2f}M{ratios[n]:8.2f}" for n in rates))
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
