"""Measure speeds and what docs/reproductions.md compares with published claims, and check the numbers of the documentation.

    python scripts/reproduce.py [--only NAME ...] [--wait MINUTES] [--minutes M] [--again] [--list]
    python scripts/reproduce.py --write
    python scripts/reproduce.py --gpu gpu_report.json
    python scripts/reproduce.py --check

A measurement has parts, such as a run with one seed or a round in which all candidates take turns. Each part is kept in
docs/benchmarks/reproduce.json as soon as it has ended and not measured again, except with --again, so the same command
goes on after an interruption; with --minutes no part starts after that time. Before the first part the load average must
fall below 0.3 within --wait minutes. A part beside which other processes used more than a tenth of a core is repeated,
three times at most, and then kept as not quiet: the page does not count it. --list prints the parts and expected times.

--write puts the tables into their pages, and numbers of lines into docs/architecture.md. --gpu adds a report of scripts/gpu_check.py to
docs/benchmarks/gpu_CARD.json, and then writes them, too. --check recomputes all, prints what differs, and exits with code 1 then.
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
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import claims
import defaults_tables
import gpu_tables
import kernel_table
import mixed_equilibrium
import scale
import source_tables
import speed_tables
from bench import peer_tables
from campaign import Parts, Values, measure
from claims import times_to_bar
from common import DOCS, ROOT, figure, replace, replaced, settings, training_of
from evidence import Raw, quiet
from exarl import runs as ranks
from result_tables import TABLES
from startup import times as startups

from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.report.style import COLORS
from warprun.runs.bench import bench
from warprun.runs.evaluation import Evaluator

KEPT = DOCS / "benchmarks" / "reproduce.json"
PAGE = DOCS / "reproductions.md"
ROUNDS = 6
"""The least and the largest of six values hold the median with a chance of 97 %."""
SEEDS = 8
SIZES = (10, 100, 1000, 10_000)


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
    training_of(*given).take(3 * 16 * n_envs)
    run = training_of(*given, f"seed={seed}")
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


def exchange() -> Values:
    """Return million steps per second of an actor and a learner, of rollouts and of updates alone, and the share of the slower of these."""
    cartpoles = ("env=cartpole", "agent=a2c", "agent.advantage=vtrace", "agent.horizon=16", "n_envs=10000")
    (found,) = bench([compose([*cartpoles, "tuned=none", "device=cpu"])], (1,))
    rollouts, training = found.rollout_steps_per_s / 1e6, found.training_steps_per_s / 1e6
    updates = 1.0 / (1.0 / training - 1.0 / rollouts)
    rows = ranks.train(2, *cartpoles, "concurrency=rma", "max_minutes=0.3", "total_steps=1e12", "log.every=1s")
    first, last = rows[len(rows) // 2 - 1], rows[-2]  # the last one includes the final evaluation
    both = (last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"]) / 1e6
    measured = {"rollouts": rollouts, "updates": updates, "both": both, "share": both / min(rollouts, updates)}
    return {name: round(value, 4) for name, value in measured.items()}


def rounds_of(measured: Callable[[], Values]) -> Parts:
    """Return a part for every round."""
    return {f"round {i}": measured for i in range(ROUNDS)}


def rounds_by(module: str, function: str) -> Parts:
    """Return a part for every round of a function of a module, which is imported as the first one begins."""
    return rounds_of(lambda: dict(getattr(import_module(module), function)()))


def exarl() -> Parts:
    """Return a part for every round and run of sleeping ranks."""
    return {f"{case} round={i}": partial(ranks.measure, case) for i in range(ROUNDS) for case in ranks.CASES}


MEASUREMENTS = {
    "throughput": Measurement(partial(rounds_of, speeds), 6),
    "limit": Measurement(partial(rounds_by, "bench.limit", "shares"), 3),
    "startup": Measurement(partial(rounds_of, startups), 3),
    "loops": Measurement(partial(rounds_by, "bench.loops", "speeds"), 3),
    "actors": Measurement(partial(rounds_of, exchange), 5),
    "equilibrium": Measurement(mixed_equilibrium.parts, 1),
    "covid_speed": Measurement(partial(rounds_by, "covid_speed", "speeds"), 8),
    "warpsci_2bc": Measurement(warpsci_2bc, 12),
    "exarl_inference": Measurement(partial(rounds_by, "exarl.runs", "inference"), 15),
    "exarl": Measurement(exarl, 90),
}


# The pages ------------------------------------------------------------------------------------------------------------


def raw() -> Raw:
    """Return all raw numbers by file."""
    folder = DOCS / "benchmarks"
    files = {name: folder / f"{name}.json" for name in ("reproduce", "results", "peers")}
    return {name: json.loads(file.read_text()) if file.exists() else {} for name, file in files.items()} | {"gpu": gpu_tables.kept()}


FIGURE = DOCS / "figures" / "warpsci_2bc.png"
CAPTION = (
    "On two cores more environments reach a return later, in the median: seconds of training on a logarithmic axis, with 10 to 10,000"
    " environments, until an evaluation reaches 475 on CartPole and -85 on Acrobot; eight seeds, their medians, the least and the largest"
)


def draw(kept: Raw) -> None:
    """Draw the times of figures 2b and 2c: all seeds, medians, and lines from the least to the largest."""
    with figure(FIGURE, 1, (7.0, 3.2)) as (axes,):
        for env, color, shift in zip(("cartpole", "acrobot"), COLORS, (0.14, -0.14), strict=False):
            reached = times_to_bar(kept, env)
            for row, size in enumerate(SIZES):
                seeds = [run["s"] for run in quiet(kept, "warpsci_2bc", f"{env} {size} ").values() if run["s"] is not None]
                own, y = reached[size], row + shift
                axes.plot((own.low, own.high), (y, y), color=color, linewidth=1.2)
                axes.plot(seeds, [y] * len(seeds), "o", color=color, markersize=4, alpha=0.5, markeredgewidth=0)
                axes.plot(own.median, y, "|", color=color, markersize=13, markeredgewidth=2.5)
            axes.annotate(env, (reached[SIZES[-1]].low, y), (-8, 0), textcoords="offset points", ha="right", va="center", color=color)
        axes.set(xscale="log", xlabel="seconds of training until the return is reached", ylabel="environments")
        axes.set_yticks(range(len(SIZES)), [f"{size:,}" for size in SIZES])


def places(kept: Raw) -> Iterator[tuple[Path, str, str]]:
    """Yield page, mark and text of every table that is made from raw numbers."""
    yield PAGE, "claims", claims.table_of(kept)
    drawn = len(times_to_bar(kept, "acrobot")) == len(SIZES)
    yield PAGE, "figures", f"![{CAPTION}](figures/{FIGURE.name})\n\n" if drawn else ""
    for each in speed_tables.SPEEDS:
        yield *each.place, each.table(kept)
    yield DOCS.parent / "README.md", "speeds", speed_tables.first_sentence(kept) + gpu_tables.sentence(kept["gpu"])
    yield DOCS / "performance.md", "c program", speed_tables.limit_sentence(kept)
    yield DOCS / "benchmarks" / "exarl.md", "exarl runs", claims.of_ranks(kept)
    yield from scale.places()
    yield from source_tables.places()
    yield from gpu_tables.places(kept["gpu"])
    yield kernel_table.PAGE, "kernels", kernel_table.of_page(kernel_table.kept()[1])
    yield from peer_tables.of_pages(kept["peers"])
    yield DOCS / "agents.md", "equilibrium", mixed_equilibrium.of_page(quiet(kept, "equilibrium"))
    for mark, text in defaults_tables.of_page():
        yield defaults_tables.PAGE, mark, text
    for name, shown in TABLES.items():
        yield shown.page, shown.mark, shown.write(kept["results"][name])


def differences() -> list[str]:
    """Return a line for every table of a page that is not the one of the raw numbers."""
    found = []
    for page, mark, text in places(raw()):
        shown = page.read_text()
        if replaced(shown, mark, text) != shown:
            old = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- end -->", shown, flags=re.DOTALL)[0].splitlines()
            wrong = [line for line in old if line not in text.splitlines()] or ["a line is missing"]
            found.append(f"{page.relative_to(ROOT)}, {mark}: {wrong[0]}")
    walk = source_tables.WALK.read_text()
    return found + ["docs/architecture.md: a line has another number"] * (source_tables.numbered(walk) != walk)


def main() -> None:
    """Measure, write or check."""
    every = list(MEASUREMENTS)
    flags = {"again": False, "list": False, "write": False, "check": False}
    chosen = settings(__doc__, choices={"only": every}, only=every, wait=10.0, minutes=1e9, gpu="", **flags)
    if chosen.list:
        for name in chosen.only:
            print(f"{name}: {len(MEASUREMENTS[name].parts())} parts, about {MEASUREMENTS[name].minutes} minutes")
    elif chosen.write or chosen.gpu:
        if chosen.gpu:
            gpu_tables.keep(Path(chosen.gpu))
        for page, mark, text in places(raw()):
            replace(page, mark, text)
        source_tables.WALK.write_text(source_tables.numbered(source_tables.WALK.read_text()))
        if len(times_to_bar(raw(), "acrobot")) == len(SIZES):
            draw(raw())
    elif chosen.check:
        wrong = differences()
        for line in wrong:
            print(line)
        sys.exit(bool(wrong))
    else:
        try:
            parts = {name: MEASUREMENTS[name].parts() for name in chosen.only}
            measure(parts, KEPT, chosen.wait, chosen.minutes, chosen.only if chosen.again else ())
        except UserError as error:  # such as data that are not there
            print(f"reproduce: {error}", file=sys.stderr)
            sys.exit(2)


if __name__ == "__main__":
    main()
