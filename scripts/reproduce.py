"""Measure what docs/reproductions.md compares with published claims, and check the numbers of the documentation.

    python scripts/reproduce.py [--only NAME ...] [--wait MINUTES] [--minutes M] [--again] [--list]
    python scripts/reproduce.py --write
    python scripts/reproduce.py --check

A measurement has parts, such as a run with one seed or a round in which all candidates take turns. Each part is kept in
docs/benchmarks/reproduce.json as soon as it has ended and not measured again, except with --again, so the same command
goes on after an interruption; with --minutes no part starts after that time. Before a measurement the load average must
fall below 0.3 within --wait minutes. A part beside which other processes used more than a tenth of a core is repeated,
three times at most, and then kept as not quiet: the page does not count it. --list prints the parts and expected times.

--write puts the table into its page. --check recomputes the numbers of all pages that have raw files, prints what
differs, and names the pages with measured numbers but without raw files. It exits with code 1 for a difference.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import claims
import numpy as np
import scale
import testbed
from bench import population_tables
from campaign import Parts, Values, measure
from claims_warpsci import times_to_bar
from common import DOCS, ROOT, Training, figure, replaced, settings
from evidence import Raw, quiet
from studies import STUDIES
from study import runs_of

from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.runs.bench import bench
from warprun.runs.evaluation import Evaluator

if TYPE_CHECKING:
    from exarl.page import Measured

KEPT = DOCS / "benchmarks" / "reproduce.json"
PAGE = DOCS / "reproductions.md"
ROUNDS = 6
"""The least and the largest of six values hold the median with a chance of 97 %."""
SEEDS = 8
SIZES = (10, 100, 1000, 10_000)
WITHOUT_RAW = {
    "docs/auto.md": "times to solve",
    "docs/performance.md": "comparisons, expected times of a GPU, loops within a step",
    "docs/actors.md": "overhead and scaling of actors",
    "docs/booster.md": "regulators, agents in corrected mode",
    "docs/benchmarks/catalysis.md": "continuous actions, paths with published settings, convergence against wall time, speed",
    "docs/benchmarks/covid.md": "runs with 540,000 steps, references, the planner's learning rates, speed",
    "docs/benchmarks/ledger.md": "all tables",
    "docs/benchmarks/population.md": "population-based training against random search",
    "docs/benchmarks/tag.md": "all tables",
    "docs/benchmarks/throughput.md": "all tables without a named file",
}
"""Page -> its measured numbers that cannot be recomputed."""


class Measurement(NamedTuple):
    """A list of parts, each measured on its own."""

    parts: Callable[[], Parts]
    minutes: int
    """About how long all parts take on two quiet cores."""


# Measurements ---------------------------------------------------------------------------------------------------------


def learning_curve(env: str, n_envs: int, seed: int, seconds: float = 4.0, points: int = 40) -> Values:
    """Train as in figures 2b and 2c, with evaluations spaced evenly in the logarithm of time.

    The clock counts rollouts and updates only, so evaluations cost nothing. A training before it loads all kernels.
    """
    given = (f"experiment=warpsci_{env}", f"n_envs={n_envs}", "device=cpu")
    Training(*given).take(3 * 16 * n_envs)
    run = Training(*given, f"seed={seed}")
    due = [0.005 * (seconds / 0.005) ** (i / (points - 1)) for i in range(points)]
    spent, steps, curve = 0.0, 0, []
    with closing(Evaluator(run.setup, run.agent, 100, 1000 + seed)) as evaluator:
        while due:
            began = time.perf_counter()
            steps += run.iterate()
            spent += time.perf_counter() - began
            if spent >= due[0]:
                (mean,) = evaluator.play(greedy=True).mean_return.values()
                curve.append((round(spent, 5), steps, round(mean, 3)))
                due = [moment for moment in due if moment > spent]
    bar = float(run.config.env.solved_at or math.inf)
    reached = next((point for point in curve if point[2] >= bar), None)
    return {"bar": bar, "s": reached[0] if reached else None, "env_steps": reached[1] if reached else None, "curve": curve}


def warpsci_2bc() -> Parts:
    """Return a part for every environment, number of environments and seed; the numbers take turns."""
    cases = [(env, size, seed) for seed in range(SEEDS) for env in ("cartpole", "acrobot") for size in SIZES]
    return {f"{env} {size} seed={seed}": partial(learning_curve, env, size, seed) for env, size, seed in cases}


def speeds() -> Values:
    """Return million steps per second of simulation, rollout and training with two threads."""
    plain = ["agent.normalize_obs=false", "agent.normalize_reward=false", "device=cpu"]
    settings_of = {
        "cartpole a2c": (["env=cartpole", "agent=a2c", *plain], SIZES),
        "acrobot a2c": (["env=acrobot", "agent=a2c", "tuned=none", "agent.horizon=16", *plain], SIZES),
        "cartpole ppo": (["env=cartpole", "agent=ppo", *plain], SIZES[-1:]),
        "catalysis a2c": (["experiment=catalysis_published", "env.scenario=er1", "agent.horizon=64", "device=cpu"], (2000,)),
    }
    found = {}
    for name, (overrides, sizes) in settings_of.items():
        for measured in bench([compose([*overrides, f"n_envs={size}"]) for size in sizes], (2,)):
            rates = (measured.simulation_steps_per_s, measured.rollout_steps_per_s, measured.training_steps_per_s)
            kinds = zip(("simulation", "rollout", "training"), rates, strict=True)
            found[f"{name} {measured.n_envs}"] = {kind: round((rate or math.nan) / 1e6, 4) for kind, rate in kinds}
    return found


def throughput() -> Parts:
    """Return a part for every round."""
    return {f"round {i}": speeds for i in range(ROUNDS)}


def covid_speeds() -> Values:
    """Return environment steps per second of the COVID-19 economy, all on one thread unless the name says otherwise."""
    import covid_speed

    one = "concurrency.threads=1"
    found = {f"kernels {n}": covid_speed.simulation(n, 3.0, one) for n in (1, 60, 1000)}
    found |= {f"numpy {n}": covid_speed.numpy_simulation(n) for n in (1, 60, 1000)}
    found["kernels 1000, two threads"] = covid_speed.simulation(1000, 3.0, "concurrency.threads=2")
    for n in (60, 1000):
        split, _ = covid_speed.split(n, 4.0)
        found[f"training {n}, two threads"] = 1000 / (split.rollout + split.training)
    return {name: round(rate, 1) for name, rate in found.items()}


def covid() -> Parts:
    """Return a part for every round."""
    return {f"round {i}": covid_speeds for i in range(ROUNDS)}


def limit() -> Parts:
    """Return a part for every round of training against a C program."""
    from bench.limit import shares

    return {f"round {i}": shares for i in range(ROUNDS)}


def exarl() -> Parts:
    """Return a part for every round and run of sleeping ranks, and for the times of an exchange."""
    from exarl import runs

    found: Parts = {}
    for i in range(ROUNDS):
        found[f"times round={i}"] = lambda: dict(runs.exchange())
        found |= {f"{case} round={i}": partial(runs.measure, case) for case in runs.CASES}
    return found


def exarl_inference() -> Parts:
    """Return a part for every round of central inference."""
    from exarl import runs

    return {f"round {i}": lambda: dict(runs.inference()) for i in range(ROUNDS)}


MEASUREMENTS = {
    "throughput": Measurement(throughput, 6),
    "limit": Measurement(limit, 3),
    "covid_speed": Measurement(covid, 8),
    "warpsci_2bc": Measurement(warpsci_2bc, 12),
    "exarl_inference": Measurement(exarl_inference, 15),
    "exarl": Measurement(exarl, 60),
}


# The pages ------------------------------------------------------------------------------------------------------------


def raw() -> Raw:
    """Return all raw numbers by file."""
    folder = DOCS / "benchmarks"
    files = {name: folder / f"{name}.json" for name in ("reproduce", "results", "testbed", "population", "memory")}
    return {name: json.loads(file.read_text()) if file.exists() else {} for name, file in files.items()}


FIGURE = DOCS / "figures" / "warpsci_2bc.png"
CAPTION = (
    "On two cores fewer environments learn sooner: best evaluation so far against seconds of training on a logarithmic axis,"
    " for 10 to 10,000 environments; medians and quartiles of eight seeds"
)


def draw(kept: Raw) -> None:
    """Draw figures 2b and 2c: medians over seeds with quartiles, lines labelled where they are half-way up."""
    with figure(FIGURE, 2, (9.0, 3.6)) as panels:
        for axes, env in zip(panels, ("cartpole", "acrobot"), strict=True):
            for size in SIZES:
                runs = [run["curve"] for run in quiet(kept, "warpsci_2bc", f"{env} {size} ").values()]
                moments = np.geomspace(max(run[0][0] for run in runs), min(run[-1][0] for run in runs), 60)
                best = [np.maximum.accumulate([p[2] for p in run]) for run in runs]
                returns = [np.interp(moments, [p[0] for p in run], line) for run, line in zip(runs, best, strict=True)]
                low, middle, high = np.quantile(returns, (0.25, 0.5, 0.75), axis=0)
                (line,) = axes.semilogx(moments, middle)
                axes.fill_between(moments, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
                at = int(np.argmax(middle > 0.5 * (middle[0] + middle[-1])))
                axes.annotate(f"{size:,}", (moments[at], middle[at]), (5, -8), textcoords="offset points", color=line.get_color())
            axes.set(title=env, xlabel="seconds of training", ylabel="best evaluation so far")


def sleeping_ranks(kept: Raw) -> Measured | None:
    """Return what is measured of sleeping ranks, for the model of them; None also without simpy, which the model needs."""
    if not find_spec("simpy"):
        return None
    from exarl import page

    return page.measured(kept["reproduce"].get("exarl", {}).get("parts", {}))


def places(kept: Raw) -> Iterator[tuple[Path, str, str]]:
    """Yield page, mark and text of every table that is made from raw numbers."""
    yield PAGE, "claims", claims.table_of(kept)
    drawn = len(times_to_bar(kept, "acrobot")) == len(SIZES)
    yield PAGE, "figures", f"![{CAPTION}](figures/{FIGURE.name})\n\n" if drawn else ""
    yield DOCS / "performance.md", "headlines", claims.headlines(kept)
    yield DOCS / "benchmarks" / "throughput.md", "limit", claims.limit_of(kept)
    if sleeping := sleeping_ranks(kept):
        from exarl import page

        yield page.PAGE, "exarl model", page.validation(sleeping)
    yield from scale.places()
    yield DOCS / "benchmarks" / "throughput.md", "memory", claims.memory_of(kept["memory"])
    for mark, text in testbed.of_page(kept["testbed"]):
        yield DOCS / "defaults.md", mark, text
    for mark, text in population_tables.of_page(kept["population"]):
        yield DOCS / "benchmarks" / "population.md", mark, text
    for name, study in STUDIES.items():
        if study.place and name in kept["results"]:
            yield *study.place, study.table(runs_of(study, kept["results"][name]))


def differences() -> list[str]:
    """Return a line for every table of a page that is not the one of the raw numbers."""
    found = []
    for page, mark, text in places(raw()):
        shown = page.read_text()
        if replaced(shown, mark, text) != shown:
            old = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- end -->", shown, flags=re.DOTALL)[0].splitlines()
            wrong = [line for line in old if line not in text.splitlines()] or ["a line is missing"]
            found.append(f"{page.relative_to(ROOT)}, {mark}: {wrong[0]}")
    return found


def main() -> None:
    """Measure, write or check."""
    every = list(MEASUREMENTS)
    flags = {"again": False, "list": False, "write": False, "check": False}
    chosen = settings(__doc__, choices={"only": every}, only=every, wait=10.0, minutes=1e9, **flags)
    if chosen.list:
        for name in chosen.only:
            print(f"{name}: {len(MEASUREMENTS[name].parts())} parts, about {MEASUREMENTS[name].minutes} minutes")
    elif chosen.write:
        for page, mark, text in places(raw()):
            page.write_text(replaced(page.read_text(), mark, text))
        if len(times_to_bar(raw(), "acrobot")) == len(SIZES):
            draw(raw())
        if sleeping := sleeping_ranks(raw()):
            from exarl import page as exarl_page

            exarl_page.draw(sleeping)
    elif chosen.check:
        wrong = differences()
        print("\n".join([*wrong, *(f"no raw file: {page} ({what})" for page, what in WITHOUT_RAW.items())]))
        sys.exit(bool(wrong))
    else:
        try:
            parts = {name: MEASUREMENTS[name].parts() for name in chosen.only}
            measure(parts, KEPT, chosen.wait, chosen.minutes, chosen.again)
        except UserError as error:  # such as data that are not there
            print(f"reproduce: {error}", file=sys.stderr)
            sys.exit(2)


if __name__ == "__main__":
    main()
