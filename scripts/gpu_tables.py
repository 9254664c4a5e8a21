"""The tables of what scripts/gpu_check.py has measured on GPUs: of a report, of docs/gpu.md and of README.md.

A raw file is a report of gpu_check, kept as docs/benchmarks/gpu_CARD.json by `python scripts/reproduce.py --gpu gpu_report.json`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from common import DOCS, table
from evidence import Interval, interval

Report = dict[str, Any]
PAGE = DOCS / "gpu.md"
FOLDER = DOCS / "benchmarks"
KINDS = ("simulation", "rollout", "training")
LARGEST = 3
"""Kernels of an iteration with a line of their own."""


def kept() -> dict[str, Report]:
    """Return all raw files by the name of the card."""
    return {report["machine"]["gpu"]: report for report in (json.loads(file.read_text()) for file in sorted(FOLDER.glob("gpu_*.json")))}


def keep(file: Path) -> None:
    """Keep a report of scripts/gpu_check.py as the raw file of its card. Exits with code 2 if it is none."""
    try:
        report = json.loads(file.read_text())
        card = re.sub(r"[^a-z0-9]+", "_", report["machine"]["gpu"].lower()).removeprefix("nvidia_").strip("_")
        list(places({card: report}))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        print(f"{file}: is no report of scripts/gpu_check.py on a GPU ({type(error).__name__}: {error})", file=sys.stderr)
        sys.exit(2)
    (FOLDER / f"gpu_{card}.json").write_text(json.dumps(report, indent=1) + "\n")


def found(report: Report, part: str) -> Any:
    """Return what a part has found; an empty list if it did not run."""
    return report["parts"].get(part, {}).get("found") or []


def millions(row: Mapping[str, Any], kind: str) -> str:
    """Return a rate in millions, empty if it was not measured."""
    rate = row.get(f"{kind}_steps_per_s")
    return f"{rate / 1e6:,.3g}" if rate and rate < 1e9 else f"{rate / 1e6:,.0f}" if rate else ""


def throughput(bench: Iterable[Mapping[str, Any]], peers: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return the table of rates by work and number of environments, JAX beside warprun."""
    ours = {(row["work"], row["n_envs"]): row for row in bench}
    theirs: dict[tuple[str, int], dict[str, Any]] = {}
    for row in peers:
        if "n_envs" in row:
            theirs.setdefault((row["work"], row["n_envs"]), {}).update(row)
    order = list(dict.fromkeys(work for work, _ in (*ours, *theirs)))
    cells = []
    for key in sorted({*ours, *theirs}, key=lambda key: (order.index(key[0]), key[1])):
        own, other = ours.get(key, {}), theirs.get(key, {})
        both = own.get("training_steps_per_s"), other.get("training_steps_per_s")
        times = f"{both[0] / both[1]:.2f} x" if both[0] and both[1] else ""
        jax = [millions(other, kind) for kind in ("rollout", "training")]
        cells.append((key[0], f"{key[1]:,}", *(millions(own, kind) for kind in KINDS), *jax, times))
    titles = ("work", "environments", "simulation, million steps/s", "rollouts", "training", "JAX, rollouts", "JAX, training", "warprun is")
    return table(titles, cells)


def gradient_steps(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of agents that learn from replay, and of memory."""
    cells = [
        (row["work"], f"{row['n_envs']:,}" if row["n_envs"] else "", f"{row['gradient_steps_per_s']:,.0f}", millions(row, "training"))
        for row in rows
    ]
    return table(("work", "environments", "gradient steps/s", "million environment steps/s"), cells)


def times(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of the time to a solved evaluation: the median of its seeds, and their range."""
    cells = []
    for row in rows:
        solved = sorted((s, steps) for s, steps in zip(row["s"], row["env_steps"], strict=True) if s is not None)
        shown = ("", "")
        if solved:
            (least, _), (middle, steps), (most, _) = solved[0], solved[len(solved) // 2], solved[-1]
            shown = (f"{middle:.3g} ({least:.3g} to {most:.3g})", f"{steps:,}")
        cells.append((row["work"], f"{row['n_envs']:,}", *shown, f"{len(solved)} of {len(row['s'])}"))
    return table(("environment", "environments", "s of training to solve it", "env steps", "seeds that solve it"), cells)


def trainings(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of runs: how each ended, after which time."""
    cells = []
    for name, run in runs.items():
        evaluated, steps = run.get("eval"), run.get("env_steps")
        shown = ("" if evaluated is None else f"{evaluated:.1f}", f"{steps:,}" if steps else "", f"{run['wall_s']:.0f}")
        cells.append((name, run["state"], *shown))
    return table(("run", "state", "eval return", "env steps", "wall s"), cells)


def iteration(profile: Mapping[str, Any]) -> str:
    """Return the table of an iteration: its largest kernels, the others, and the operations of torch; and what was expected of each."""
    kernels, expected = profile["kernels"], profile.get("expected_us", {})
    own = [each for each in kernels if not each["kernel"].startswith("torch: ")]
    of_torch = [each for each in kernels if each["kernel"].startswith("torch: ")]
    rows = [(f"`{each['kernel']}`", [each]) for each in own[:LARGEST]]
    rows += [(f"{len(own[LARGEST:])} other kernels of warprun", own[LARGEST:]), (f"{len(of_torch)} kernels of torch", of_torch)]
    cells = []
    for (name, group), key in zip(rows, [*(each["kernel"] for each in own[:LARGEST]), "other", "torch"], strict=True):
        if not group:
            continue
        spent = sum(each["us"] for each in group)
        cells.append((name, f"{sum(each['launches'] for each in group):g}", f"{spent:.0f}", expected.get(key, "")))
    steps = profile["training_steps_per_s"] / 1e6
    cells.append(
        (f"iteration of {profile['steps']:,} steps: {steps:.3g} M steps/s", "", f"{profile['us']:.0f}", expected.get("iteration", ""))
    )
    titles = ("kernel", "launches", "µs", *(["µs expected of it"] if expected else []))
    return table(titles, [row[: len(titles)] for row in cells])


def counters(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of what Nsight Compute reads of kernels."""
    shown = {
        "duration": "duration",
        "registers": "registers of a thread",
        "occupancy": "occupancy, %",
        "compute": "compute, %",
        "memory": "memory, %",
    }
    return table(("kernel", *shown.values()), [(f"`{row['kernel']}`", *(row.get(key, "") for key in shown)) for row in rows])


def about(report: Report) -> str:
    """Return the card, versions, date and commit in a sentence."""
    machine = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    changed = f" {report['changed']}" if "changed" in report else ""
    return (
        f"{machine['gpu']}, driver {machine['driver']}, {machine['cores']} cores, Python {machine['python']}, {packages}; "
        f"{report['date']}, commit {(machine['commit'] or 'unknown')[:7]}{changed}.\n"
    )


def titled(report: Report, text: str) -> str:
    """Return a table of a card for a page."""
    return f"{report['machine']['gpu']}:\n\n{text}\n" if text else ""


def rounds(report: Report, work: str, n_envs: int) -> Interval | None:
    """Return the interval of training over rounds, million steps/s; None unless there are enough of them."""
    own = [row for row in found(report, "bench") if (row["work"], row["n_envs"]) == (work, n_envs)]
    return interval([rate / 1e6 for row in own for rate in row.get("training_rounds", ())])


def rate(report: Report, work: str, n_envs: int) -> float | None:
    """Return the median rate of training, million steps/s."""
    own = (row for row in found(report, "bench") if (row["work"], row["n_envs"]) == (work, n_envs))
    return next((row["training_steps_per_s"] / 1e6 for row in own), None)


def sentence(reports: Iterable[Report]) -> str:
    """Return the speed on a GPU that README.md begins with."""
    for report in reports:
        speed, most = (rate(report, "A2C 64-64", n_envs) for n_envs in (10_000, 1_000_000))
        if speed and most:
            return (
                f"On one {report['machine']['gpu']} it trains A2C on {speed:.0f} million of them with 10,000 environments,\n"
                f"and on {most:.0f} million with 1,000,000 ([GPUs](docs/gpu.md)).\n"
            )
    return ""


def places(reports: Mapping[str, Report]) -> Iterator[tuple[Path, str, str]]:
    """Yield page, mark and text of every table of the docs."""
    every = reports.values()
    for mark, part, write in (
        ("gpu throughput", "bench", lambda each: throughput(found(each, "bench"), found(each, "peers"))),
        ("gpu steps", "steady", lambda each: gradient_steps(found(each, "steady"))),
        ("gpu trainings", "training", lambda each: trainings(found(each, "training"))),
        ("gpu iteration", "profile", lambda each: iteration(found(each, "profile")[0])),
        ("gpu times", "curves", lambda each: times(found(each, "curves"))),
        ("gpu counters", "ncu", lambda each: counters(found(each, "ncu"))),
    ):
        yield PAGE, mark, "".join(titled(each, write(each)) for each in every if found(each, part))
    yield PAGE, "gpu machines", "".join(f"- {about(each)}" for each in every)
