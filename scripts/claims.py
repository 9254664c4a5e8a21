"""The tables of all published claims and their verdicts, and of the numbers that other pages take from the same raw files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import claims_exarl
import claims_warpsci
from common import DOCS, described, table
from evidence import Raw, of_rounds
from startup import COMMANDS

CLAIMS = (*claims_warpsci.CLAIMS, *claims_exarl.CLAIMS)


def limit_of(raw: Raw) -> str:
    """Return the table of training against a C program, empty before it is measured."""
    kinds = [f"{units} {kind}" for units in (64, 32) for kind in ("rollout", "training")]
    rows = []
    for kind in kinds:
        found = [of_rounds(raw, "limit", f"{who} {kind}") for who in ("C", "warprun", "share")]
        rows += [(kind, *(each.text(".3g") for each in found if each))] if all(found) else []
    return table(["units, work", "C program", "warprun", "warprun / C"], rows) if rows else ""


def limit_sentence(raw: Raw) -> str:
    """Return how long training takes beside a C program, empty before it is measured."""
    shares = [of_rounds(raw, "limit", f"share {units} training") for units in (64, 32)]
    longer = [f"{1 / share.median:.2f}" for share in shares if share]
    if len(longer) < len(shares):
        return ""
    page = "benchmarks/throughput.md#against-a-hand-written-c-program"
    return (
        f"Training of A2C takes {longer[0]} times as long as a C program that is written for nothing else with 64-64 units, and\n"
        f"{longer[1]} times with 32-32 ([benchmarks/throughput.md]({page})).\n"
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


def startup_of(raw: Raw) -> str:
    """Return the table of times from a command to its end, empty before it is measured."""
    rows = []
    for name in COMMANDS:
        found = [of_rounds(raw, "startup", name, key) for key in ("s", "cpu_s")]
        rows += [(name, *(each.text(".2f") for each in found if each))] if all(found) else []
    return table(["command", "s", "s of processor time"], rows) if rows else ""


class Speeds(NamedTuple):
    """A table of numbers of a measurement of scripts/reproduce.py, as medians over rounds with the least and the largest."""

    place: tuple[Path, str]
    """Page and mark."""
    measurement: str
    titles: tuple[str, ...]
    rows: dict[str, tuple[tuple[str, ...], ...]]
    """First cell -> the keys of the number of each other cell; none: the cell is empty."""
    scale: float = 1.0

    def table(self, raw: Raw) -> str:
        """Return the table and where it was measured; without rows before that."""
        found = {first: [of_rounds(raw, self.measurement, *keys) if keys else None for keys in row] for first, row in self.rows.items()}
        rows = [(first, *(cell.scaled(self.scale).text(".3g") if cell else "" for cell in row)) for first, row in found.items() if any(row)]
        return table(self.titles, rows) + (f"\n{conditions(raw, self.measurement)}" if rows else "")


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
        {
            "rollouts alone": (("rollouts",), ()),
            "updates alone": (("updates",), ()),
            "an actor and a learner": (("both",), ("share",)),
        },
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
)


DECIDING = {
    "exarl": "EXARL 7, 9 and 12",
    "catalysis": "elastic band, transition state",
    "catalysis_published": "published settings",
    "catalysis_envs": "figure 4",
    "covid": "two-level agents",
    "booster_compat": "figure 20",
}
"""Study of trainings -> what it decides."""


def trainings_of(raw: Raw) -> str:
    """Return a line for every study of trainings: where its runs were made, and at which load."""
    written = ""
    for name, what in DECIDING.items():
        runs = [run for own in raw["results"].get(name, {}).values() for run in own.values() if "machine" in run]
        loads = [run["load"] for run in runs if "load" in run]
        for machine in dict.fromkeys(run["machine"] for run in runs):
            count, failed = sum(run["machine"] == machine for run in runs), sum("failed" in run for run in runs)
            load = f"; load average {min(loads):.1f} to {max(loads):.1f}" if loads else ""
            written += f"\n`{name}` ({what}): {machine}. {count} runs, {failed} failed{load}.\n"
    return written


def table_of(raw: Raw) -> str:
    """Return the table of all claims, and the machines that it was measured on."""
    rows = [(claim.name, claim.text, claim.done, *claim.answer(raw)) for claim in CLAIMS]
    written = table(["claim", "what was published, on what", "what is done here", "found here", "verdict"], rows)
    return written + "".join(f"\n`{name}`: {conditions(raw, name)}" for name in raw["reproduce"]) + trainings_of(raw)


def conditions(raw: Raw, name: str) -> str:
    """Return where a measurement of scripts/reproduce.py was made, and beside which load."""
    own = raw["reproduce"][name]
    parts = own["parts"].values()
    most = max((part["foreign_cores"] for part in parts if part["quiet"]), default=0.0)
    return (
        f"{described(own['machine'])}. Load average before at most "
        f"{max(own['load_before'])}, other processes at most {most:.2f} of a core; {sum(not part['quiet'] for part in parts)} of "
        f"{len(parts)} parts not quiet and left out.\n"
    )
