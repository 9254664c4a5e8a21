"""The tables of what scripts/gpu_check.py has measured on GPUs: of a report, of docs/gpu.md and of README.md.

A raw file, docs/benchmarks/gpu_CARD.json, has the reports of gpu_check on cards of a type, the newest first; `python scripts/reproduce.py
--gpu gpu_report.json` adds one. What a report lacks, the tables take of an older one, and say so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from common import DOCS, Columns, by_columns, stop, table
from evidence import Interval, interval

Row = dict[str, Any]
Report = dict[str, Any]
Card = list[Report]
"""Reports of a type of card, the newest first."""
PAGE = DOCS / "gpu.md"
FOLDER = DOCS / "benchmarks"
KINDS = ("simulation", "rollout", "training")
LARGEST = 3
"""Kernels of an iteration with a line of their own."""


def kept() -> dict[str, Card]:
    """Return all raw files by the name of the card."""
    cards = [json.loads(file.read_text()) for file in sorted(FOLDER.glob("gpu_*.json"))]
    return {reports[0]["machine"]["gpu"]: reports for reports in cards}


def keep(file: Path) -> None:
    """Add a report of scripts/gpu_check.py to the raw file of its card. Exits with code 2 if it is none."""
    try:
        report = json.loads(file.read_text())
        name = re.sub(r"[^a-z0-9]+", "_", report["machine"]["gpu"].lower()).removeprefix("nvidia_").strip("_")
        kept = FOLDER / f"gpu_{name}.json"
        card = [report, *(json.loads(kept.read_text()) if kept.exists() else [])]
        list(places({name: card}))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        stop(f"{file} is no report of scripts/gpu_check.py on a GPU ({type(error).__name__}: {error})")
    kept.write_text(json.dumps(card, indent=1) + "\n")


def found(card: Card, part: str) -> list[Row]:
    """Return the rows of a part, each of the newest report that has it: `of` says which, if it is an older one. Older ones add columns."""
    rows: dict[tuple[Any, ...], Row] = {}
    for age, report in enumerate(card):
        for row in report["parts"].get(part, {}).get("found") or []:
            of = {"of": f" ({commit(report)})"} if age else {}
            key = tuple(row.get(name) for name in ("work", "kernel", "n_envs"))
            rows[key] = {**row, **rows.get(key, of)}
    return list(rows.values())


def commit(report: Report) -> str:
    """Return the first letters of the commit that was measured."""
    return (report["machine"]["commit"] or "unknown")[:7]


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
        cells.append((key[0] + own.get("of", ""), f"{key[1]:,}", *(millions(own, kind) for kind in KINDS), *jax, times))
    titles = ("work", "environments", "simulation, million steps/s", "rollouts", "training", "JAX, rollouts", "JAX, training", "warprun is")
    return table(titles, cells)


def layers(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return how far tensor cores are from float64, and the table of rates with them, in float32 and with torch."""
    rows = list(rows)
    said = {row["why_not"] or f"tensor cores are {row['error']:.1e} of the largest number off" for row in rows}
    cells = []
    for row in rows:
        rates = [
            millions({f"{kind}_steps_per_s": row[f"{by}{kind}_steps_per_s"]}, kind)
            for kind in ("rollout", "training")
            for by in ("", "float32_", "torch_")
        ]
        cells.append((row["work"], f"{row['n_envs']:,}", *rates))
    titles = ("work", "environments", "rollouts, million steps/s", "in float32", "by torch", "training", "in float32", "by torch")
    return "\n\n".join([*sorted(said), table(titles, cells)])


def titled_work(row: Mapping[str, Any]) -> str:
    """Return the work of a row, and the commit if an older report has measured it."""
    return str(row["work"]) + row.get("of", "")


STEADY: Columns = {
    "work": titled_work,
    "environments": lambda row: f"{row['n_envs']:,}" if row["n_envs"] else "",
    "gradient steps/s": lambda row: f"{row['gradient_steps_per_s']:,.0f}",
    "million environment steps/s": lambda row: millions(row, "training"),
}
"""Of agents that learn from replay, and of memory."""
TRAININGS: Columns = {
    "run": titled_work,
    "state": lambda row: row["state"],
    "eval return": lambda row: "" if row.get("eval") is None else f"{row['eval']:.1f}",
    "env steps": lambda row: f"{row['env_steps']:,}" if row.get("env_steps") else "",
    "wall s": lambda row: f"{row['wall_s']:.0f}",
}
COUNTERS: Columns = {
    "kernel": lambda row: f"`{row['kernel']}`" + row.get("of", ""),
    "environments": lambda row: f"{row['n_envs']:,}",
    "duration": lambda row: row.get("duration", ""),
    "registers of a thread": lambda row: row.get("registers", ""),
    **{f"{key}, %": lambda row, key=key: row.get(key, "") for key in ("occupancy", "compute", "memory")},
}
"""What Nsight Compute reads of kernels."""


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


def about(report: Report) -> str:
    """Return the card, versions, date and commit in a sentence."""
    machine = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    changed = f" {report['changed']}" if "changed" in report else ""
    return (
        f"{machine['gpu']}, driver {machine.get('driver', 'not read')}, {machine['cores']} cores, Python {machine['python']}, {packages}; "
        f"{report['date']}, commit {commit(report)}{changed}.\n"
    )


def titled(card: Card, text: str) -> str:
    """Return a table of a card for a page."""
    return f"{card[0]['machine']['gpu']}:\n\n{text}\n" if text else ""


def rounds(card: Card, work: str, n_envs: int) -> Interval | None:
    """Return the interval of training over rounds, million steps/s; None unless there are enough of them."""
    own = [row for row in found(card, "bench") if (row["work"], row["n_envs"]) == (work, n_envs)]
    return interval([rate / 1e6 for row in own for rate in row.get("training_rounds", ())])


def rate(card: Card, work: str, n_envs: int) -> float | None:
    """Return the median rate of training, million steps/s."""
    own = (row for row in found(card, "bench") if (row["work"], row["n_envs"]) == (work, n_envs))
    return next((row["training_steps_per_s"] / 1e6 for row in own), None)


def sentence(cards: Mapping[str, Card]) -> str:
    """Return the speed on a GPU that README.md begins with."""
    for name, card in cards.items():
        speed, most = (rate(card, "A2C 64-64", n_envs) for n_envs in (10_000, 1_000_000))
        if speed and most:
            return (
                f"On one {name} it trains A2C on {speed:.0f} million of them with 10,000 environments,\n"
                f"and on {most:.0f} million with 1,000,000 ([GPUs](docs/gpu.md)).\n"
            )
    return ""


def places(cards: Mapping[str, Card]) -> Iterator[tuple[Path, str, str]]:
    """Yield page, mark and text of every table of the docs."""
    for mark, part, write in (
        ("gpu throughput", "bench", lambda card: throughput(found(card, "bench"), found(card, "peers"))),
        ("gpu steps", "steady", lambda card: by_columns(STEADY, found(card, "steady"))),
        ("gpu trainings", "training", lambda card: by_columns(TRAININGS, found(card, "training"))),
        ("gpu iteration", "profile", lambda card: iteration(found(card, "profile")[0])),
        ("gpu times", "curves", lambda card: times(found(card, "curves"))),
        ("gpu counters", "ncu", lambda card: by_columns(COUNTERS, found(card, "ncu"))),
    ):
        yield PAGE, mark, "".join(titled(card, write(card)) for card in cards.values() if found(card, part))
    yield PAGE, "gpu machines", "".join(f"- {about(report)}" for card in cards.values() for report in card)
