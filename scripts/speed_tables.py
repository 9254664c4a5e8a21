"""The tables of speeds that scripts/reproduce.py measures, and sentences with some of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from common import DOCS, described, table
from evidence import Raw, conditions, of_rounds
from speeds import COMMANDS


class Speeds(NamedTuple):
    """A table of numbers of a measurement of scripts/reproduce.py, as medians over rounds with the least and the largest."""

    place: tuple[Path, str]
    """Page and mark."""
    measurement: str
    titles: tuple[str, ...]
    rows: dict[str, tuple[tuple[str, ...], ...]]
    """First cell -> the keys of the number of each other cell; none: the cell is empty."""
    scale: float = 1.0
    form: str = ".3g"
    tells: bool = True
    """Whether it says where the numbers were measured."""

    def table(self, raw: Raw) -> str:
        """Return the table and where it was measured; without rows before that, or without a table if it tells nothing."""
        found = {first: [of_rounds(raw, self.measurement, *keys) if keys else None for keys in row] for first, row in self.rows.items()}
        rows = [
            (first, *(cell.scaled(self.scale).text(self.form) if cell else "" for cell in row)) for first, row in found.items() if any(row)
        ]
        return table(self.titles, rows) + (f"\n{conditions(raw, self.measurement)}" if rows and self.tells else "")


MILLIONS = ("work", "million environment steps/s")
BENCHMARKS = DOCS / "benchmarks"
SPEEDS = (
    Speeds(
        (DOCS / "performance.md", "headlines"),
        "throughput",
        MILLIONS,
        {
            "CartPole, simulation without a policy": (("cartpole a2c 10000", "simulation"),),
            "CartPole, rollouts": (("cartpole a2c 10000", "rollout"),),
            "CartPole, A2C": (("cartpole a2c 10000", "training"),),
            "CartPole, PPO with its tuned settings, one epoch of 16 minibatches": (("cartpole ppo 10000", "training"),),
            "Acrobot, A2C": (("acrobot a2c 10000", "training"),),
            "catalysis, 2,000 environments, A2C": (("catalysis a2c 2000", "training"),),
        },
    ),
    Speeds(
        (DOCS / "performance.md", "loops"),
        "loops",
        ("step", "warprun", "vectorized NumPy", "ratio"),
        {
            name: tuple((kind, cell) for cell in ("warprun", "NumPy", "ratio"))
            for name, kind in {
                "Runge-Kutta, 1 substep": "rk4-1",
                "10 substeps": "rk4-10",
                "100 substeps": "rk4-100",
                "diffusion": "row",
                "table": "table",
                "Newton's method": "newton",
            }.items()
        },
    ),
    Speeds(
        (DOCS / "parallel.md", "exchange"),
        "actors",
        ("work", "million environment steps/s", "share"),
        {"rollouts alone": (("rollouts",), ()), "updates alone": (("updates",), ()), "an actor and a learner": (("both",), ("share",))},
    ),
    Speeds(
        (BENCHMARKS / "environments.md", "catalysis speed"),
        "throughput",
        MILLIONS,
        {
            "simulation alone": (("catalysis a2c 2000", "simulation"),),
            "rollouts": (("catalysis a2c 2000", "rollout"),),
            "training": (("catalysis a2c 2000", "training"),),
        },
    ),
    Speeds(
        (BENCHMARKS / "environments.md", "covid speed"),
        "covid_speed",
        ("thousand environment steps/s", "1 environment", "60", "1,000"),
        {
            "simulation, vectorized NumPy": (("numpy 1",), ("numpy 60",), ("numpy 1000",)),
            "simulation": (("kernels 1",), ("kernels 60",), ("kernels 1000",)),
            "simulation, two threads": ((), (), ("kernels 1000, two threads",)),
            "training, two threads": ((), ("training 60, two threads",), ("training 1000, two threads",)),
        },
        1e-3,
    ),
    Speeds(
        (BENCHMARKS / "throughput.md", "limit"),
        "limit",
        ("units, work", "C program", "warprun", "warprun / C"),
        {
            f"{units} {kind}": tuple((f"{who} {units} {kind}",) for who in ("C", "warprun", "share"))
            for units in (64, 32)
            for kind in ("rollout", "training")
        },
        tells=False,
    ),
    Speeds(
        (BENCHMARKS / "throughput.md", "startup"),
        "startup",
        ("command", "s", "s of processor time"),
        {name: ((name, "s"), (name, "cpu_s")) for name in COMMANDS},
        form=".2f",
        tells=False,
    ),
)


def limit_sentence(raw: Raw) -> str:
    """Return what share of the speed of a C program training reaches, and on which processor, empty before it is measured."""
    shares = [of_rounds(raw, "limit", f"share {units} training") for units in (64, 32)]
    reached = [f"{share.median:.2f}" for share in shares if share]
    if len(reached) < len(shares):
        return ""
    machine = described(raw["reproduce"]["limit"]["machine"]).partition(",")[0]
    page = "benchmarks/throughput.md#against-a-hand-written-c-program"
    return (
        f"Training of A2C reaches {reached[0]} of the speed of a C program that is written for nothing else with 64-64 units, and\n"
        f"{reached[1]} with 32-32, on two cores ({machine}; [benchmarks/throughput.md]({page})).\n"
    )


def first_sentence(raw: Raw) -> str:
    """Return the speeds that README.md begins with, empty before they are measured."""
    keys = (("cartpole a2c", "simulation"), ("cartpole a2c", "training"), ("cartpole ppo", "training"))
    found = [of_rounds(raw, "throughput", f"{case} 10000", kind) for case, kind in keys]
    rates = [f"{each.median:.3g}" for each in found if each]
    if len(rates) < len(keys):
        return ""
    machine = described(raw["reproduce"]["throughput"]["machine"]).partition(",")[0]
    return (
        f"On two cores ({machine}) it simulates {rates[0]} million CartPole steps per second,\n"
        f"and trains A2C on {rates[1]} million and PPO on {rates[2]} million of them "
        "([performance](docs/performance.md), with intervals and commands).\n"
    )
