"""Measure how training scales with environments, with the width of a network and with actors: docs/benchmarks/scale.md.

    python scripts/scale.py [--only NAME ...] [--rounds N] [--wait MINUTES] [--minutes M] [--again] [--list]
    python scripts/scale.py --write

Every point of a curve is measured by `warprun bench` (medians of three turns) and kept in docs/benchmarks/scale.json as
soon as it has ended, so the same command goes on after an interruption; with --minutes no point starts after that time.
With --rounds all points are measured so many times, one round after the other, and medians count. Before the first point
the load average must fall below 0.3 within --wait minutes. A point beside which other processes used more than a tenth
of a core is repeated, three times at most, and counts only where no quiet one is kept; the page marks it. --list prints
the points. --write puts tables and sentences into the page and draws the figure (needs matplotlib).
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from campaign import Parts, Values, measure, read
from common import DOCS, described, figure, rate, replaced, settings, table

from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.kernels import peak
from warprun.kernels.threads import threads as threads_of_process
from warprun.report.style import COLORS
from warprun.runs.bench import bench

KEPT, PAGE = DOCS / "benchmarks" / "scale.json", DOCS / "benchmarks" / "scale.md"
FIGURE = DOCS / "figures" / "scale.png"
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
HORIZON = 16
"""Steps of a rollout of all settings."""
PLAIN = ["device=cpu", "agent.normalize_obs=false", "agent.normalize_reward=false"]
TAG = [
    *("env=tag_continuous", "env.params.exits=false", "agent=ppo", "tuned=none", "device=cpu"),
    *(f"agent.horizon={HORIZON}", "agent.epochs=1", "agent.minibatches=4", "agent.learning_rate=0.001"),
]
"""Tagged runners stay, so that all actors work all the time."""
ENVIRONMENTS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
WIDTHS, ENVIRONMENTS_OF_WIDTHS = (16, 32, 64, 128, 256, 512), 1_000
ACTORS, ENVIRONMENTS_OF_ACTORS = (2, 5, 10, 25, 100, 1_000), 128
"""Two full tiles of environments, one for each thread."""
ONE_PASS, OF_ROLLOUT = 8, 2
"""Operations for each weight: of a step with an update that reads it once, as all of this page do, and of its rollout."""
COPIED = 1 << 28
"""Numbers of the array that is copied, 1 GiB."""
KINDS = ("simulation", "rollout", "training")


class Curve(NamedTuple):
    """Points that differ in one number."""

    points: tuple[int, ...]
    threads: tuple[int, ...]
    settings: Callable[[int], list[str]]


def _of_environments(agent: str, n: int) -> list[str]:
    return ["env=cartpole", f"agent={agent}", *PLAIN, f"n_envs={n}"]


def _of_width(width: int) -> list[str]:
    return [*_of_environments("a2c", ENVIRONMENTS_OF_WIDTHS), f"agent.network.hidden=[{width},{width}]"]


def _of_actors(actors: int) -> list[str]:
    taggers = max(1, actors // 11)
    sizes = [f"env.options.taggers={taggers}", f"env.options.runners={actors - taggers}"]
    return [*TAG, *sizes, f"n_envs={ENVIRONMENTS_OF_ACTORS}"]


CURVES = {
    "a2c": Curve(ENVIRONMENTS, (2,), partial(_of_environments, "a2c")),
    # A rollout of one environment has too few rows for 16 minibatches.
    "ppo": Curve(ENVIRONMENTS[1:], (2,), partial(_of_environments, "ppo")),
    "width": Curve(WIDTHS, (1, 2), _of_width),
    "actors": Curve(ACTORS, (2,), _of_actors),
}
NAMES = ("machine", *CURVES)


# Measurements ---------------------------------------------------------------------------------------------------------


def point(curve: Curve, n: int) -> Values:
    """Return what `warprun bench` measures of a point, by threads: environment steps per second, and their arithmetic limit."""
    found = {}
    for measured in bench([compose(curve.settings(n))], curve.threads):
        if measured.limit_share is None:
            raise UserError(f"scale: {' '.join(curve.settings(n))}: not fused, so there is no arithmetic limit")
        found[str(measured.threads)] = {
            **{kind: getattr(measured, f"{kind}_steps_per_s") for kind in KINDS},
            "limit": measured.training_steps_per_s / measured.limit_share,
            "update_share": round(measured.update_share, 3),
            "bytes_per_env": measured.bytes_per_env,
        }
    return found


def machine_limits() -> Values:
    """Return the caches, FLOP/s of products by threads, and bytes per second that two threads read and write in memory."""
    caches = {}
    for cache in sorted(CACHES.glob("index*")):
        level, kind, size = ((cache / name).read_text().strip() for name in ("level", "type", "size"))
        caches[f"L{level} {kind}"] = size
    source, target = np.ones(COPIED, np.float32), np.zeros(COPIED, np.float32)

    def copy() -> int:
        threads_of_process(2).share(lambda begin, end, thread: np.copyto(target[begin:end], source[begin:end]), COPIED)
        return 2 * source.nbytes

    copy()
    return {"caches": caches, "flops": {str(n): peak.measure(n) for n in (1, 2)}, "copied": rate(copy, 1.0)}


def parts(name: str, rounds: int) -> Parts:
    """Return a part for every round and point of a curve, or for every round of the machine's limits."""
    if name == "machine":
        return {f"limits round={i}": machine_limits for i in range(rounds)}
    curve = CURVES[name]
    return {f"{n} round={i}": partial(point, curve, n) for i in range(rounds) for n in curve.points}


# The page -------------------------------------------------------------------------------------------------------------


class Number(NamedTuple):
    """The median of a number over its rounds."""

    value: float
    quiet: bool

    def text(self, scale: float = 1.0) -> str:
        """Return it as text, marked if it was measured beside other work."""
        shown = self.value * scale
        return ("" if self.quiet else "~") + (f"{shown:,.0f}" if shown >= 1000 else f"{shown:.3g}")


Kept = Mapping[str, Any]


def number(kept: Kept, name: str, title: object, *keys: str) -> Number:
    """Return the median over the quiet rounds of a point, over all if none was quiet."""
    rounds = [part for own, part in kept[name]["parts"].items() if own.startswith(f"{title} ")]
    quiet = [part for part in rounds if part["quiet"]]
    values = []
    for part in quiet or rounds:
        value = part["values"]
        for key in keys:
            value = value[key]
        values.append(float(value))
    return Number(statistics.median(values), bool(quiet))


def line(kept: Kept, name: str, kind: str, threads: int = 2) -> np.ndarray:
    """Return the environment steps per second at the points of a curve; `kind` may be "limit" or "rollout limit"."""
    key, times = ("limit", ONE_PASS / OF_ROLLOUT) if kind == "rollout limit" else (kind, 1.0)
    return times * np.array([number(kept, name, n, str(threads), key).value for n in CURVES[name].points])


def share(kept: Kept, name: str, kind: str = "training", threads: int = 2) -> np.ndarray:
    """Return the shares of the arithmetic limit at the points of a curve."""
    return line(kept, name, kind, threads) / line(kept, name, "rollout limit" if kind == "rollout" else "limit", threads)


def complete(kept: Kept) -> bool:
    """Return whether every curve has all points."""
    wanted = {name: parts(name, 1) for name in NAMES}
    return all(set(own) <= set(kept.get(name, {"parts": {}})["parts"]) for name, own in wanted.items())


def percent(*shares: float) -> str:
    """Return a share, or the least and the largest of several, as text."""
    low, high = (f"{100 * bound:.{0 if bound > 0.095 else 1}f}" for bound in (min(shares), max(shares)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def cells(kept: Kept, name: str, i: int, kind: str, threads: int = 2) -> tuple[str, str]:
    """Return million steps per second at a point, and the share of the limit."""
    steps = number(kept, name, CURVES[name].points[i], str(threads), kind)
    return steps.text(1e-6), percent(share(kept, name, kind, threads)[i])


def of_environments(kept: Kept) -> str:
    """Return the table of environments."""
    rows = []
    for i, n in enumerate(ENVIRONMENTS):
        ppo = cells(kept, "ppo", i - 1, "training") if n in CURVES["ppo"].points else ("", "")
        rates = (*cells(kept, "a2c", i, "rollout"), *cells(kept, "a2c", i, "training"), *ppo)
        iteration = 1e6 * HORIZON * n / line(kept, "a2c", "training")[i]
        size = n * number(kept, "a2c", n, "2", "bytes_per_env").value / 2**20
        rows.append((f"{n:,}", *rates, f"{iteration:,.0f}", f"{size:,.3g}"))
    titles = ["environments", "rollouts", "limit", "A2C", "limit", "PPO", "limit", "iteration of A2C, µs", "rollout, MiB"]
    return table(titles, rows)


def of_widths(kept: Kept) -> str:
    """Return the table of widths."""
    columns = {f"{kind}, {t} thread{'s' * (t - 1)}": (kind, t) for kind in KINDS[1:] for t in (1, 2)}
    rows = [(n, *(text for column in columns.values() for text in cells(kept, "width", i, *column))) for i, n in enumerate(WIDTHS)]
    return table(["units", *(title for column in columns for title in (column, "limit"))], rows)


def of_actors(kept: Kept) -> str:
    """Return the table of actors."""
    rows = []
    for i, n in enumerate(ACTORS):
        rates = [number(kept, "actors", n, "2", kind).text(1e-6 * n) for kind in KINDS]
        steps = number(kept, "actors", n, "2", "training").text(1e-3)
        rows.append((f"{n:,}", *rates, percent(share(kept, "actors")[i]), steps))
    return table(["actors", "simulation", "rollouts", "training", "limit", "thousand environment steps/s"], rows)


def findings(kept: Kept) -> list[str]:
    """Return the sentence that each panel shows: environments, widths, actors."""
    few, first, last = (ENVIRONMENTS.index(n) for n in (10, 1_000, 100_000))
    a2c, ppo, width = (share(kept, name) for name in ("a2c", "ppo", "width"))
    ppo = np.concatenate(([math.nan], ppo))  # at the points of A2C
    fewest, most = (line(kept, "actors", "training") * ACTORS)[[0, -1]]
    return [
        f"from {ENVIRONMENTS[first]:,} to {ENVIRONMENTS[last]:,} environments A2C trains at {percent(*a2c[first : last + 1])} of the "
        f"arithmetic limit and PPO at {percent(*ppo[first : last + 1])}; with 10 at {percent(a2c[few])} and {percent(ppo[few])}, "
        f"with 1,000,000 at {percent(a2c[-1])} and {percent(ppo[-1])}",
        f"the share is {percent(width[0])} with {WIDTHS[0]} units and {percent(width[-1])} with {WIDTHS[-1]}",
        f"an actor's step takes {fewest / most:.1f} times as long among {ACTORS[-1]:,} actors as among {ACTORS[0]}",
    ]


def caption(kept: Kept) -> str:
    """Return what the figure shows."""
    text = "; ".join(findings(kept))
    return f"{text[0].upper()}{text[1:]}. Dashed: arithmetic limits; two threads where nothing else is said"


def measured_on(kept: Kept) -> str:
    """Return where and when the numbers were measured."""
    every = [part for name in NAMES for part in kept[name]["parts"].values()]
    first = next(iter(kept["machine"]["parts"].values()))["values"]
    machines = dict.fromkeys(described(kept[name]["machine"]) for name in NAMES)
    flops = [number(kept, "machine", "limits", "flops", str(n)).text(1e-9) for n in (1, 2)]
    rounds = min(len(kept[name]["parts"]) // len(parts(name, 1)) for name in NAMES)
    lines = (
        f"Measured on {' and '.join(machines)}; caches: {', '.join(map(' '.join, first['caches'].items()))}.",
        f"{min(part['date'] for part in every)[:10]}, {rounds} round{'s' * (rounds > 1)}, load average before at most "
        f"{max(load for name in NAMES for load in kept[name]['load_before'])}.",
        f"Products reach {flops[0]} GFLOP/s with one thread and {flops[1]} with two;",
        f"two threads that copy 1 GiB move {number(kept, 'machine', 'limits', 'copied').text(1e-9)} GB/s.",
        f"{sum(not part['quiet'] for part in every)} of {len(every)} points were measured beside other work; a ~ marks them.",
    )
    return "\n".join(lines) + "\n"


def places() -> Iterator[tuple[Path, str, str]]:
    """Yield page, mark and text of the tables and sentences of the page, empty before all is measured."""
    kept = read(KEPT)
    texts: dict[str, Callable[[Kept], str]] = {
        "machine": measured_on,
        "figure": lambda kept: f"![{caption(kept)}](../figures/{FIGURE.name})\n",
        "environments": of_environments,
        "widths": of_widths,
        "actors": of_actors,
    }
    for mark, text in texts.items():
        yield PAGE, mark, text(kept) if complete(kept) else ""


# The figure -----------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A line of a panel."""

    label: str
    y: np.ndarray
    color: str
    style: str = "o-"


def draw(kept: Kept) -> None:
    """Draw the three panels."""
    blue, orange, green = COLORS[0], COLORS[1], COLORS[5]
    limit = {"color": "0.45", "style": "--"}
    actors = np.array(ACTORS)
    panels = (
        (
            "environments",
            ENVIRONMENTS,
            [
                Line("limit, rollouts", line(kept, "a2c", "rollout limit"), **limit),
                Line("rollouts", line(kept, "a2c", "rollout"), green),
                Line("limit, training", line(kept, "a2c", "limit"), **limit),
                Line("A2C", line(kept, "a2c", "training"), blue),
                Line("PPO", line(kept, "ppo", "training"), orange),
            ],
        ),
        (
            "units of both hidden layers",
            WIDTHS,
            [
                Line("rollouts, 2 threads", line(kept, "width", "rollout"), green),
                Line("limit, 2 threads", line(kept, "width", "limit"), **limit),
                Line("A2C, 2 threads", line(kept, "width", "training"), blue),
                Line("limit, 1 thread", line(kept, "width", "limit", 1), "0.65", "--"),
                Line("A2C, 1 thread", line(kept, "width", "training", 1), orange),
            ],
        ),
        (
            "actors of an environment",
            ACTORS,
            [
                Line("limit, rollouts", actors * line(kept, "actors", "rollout limit"), **limit),
                Line("simulation", actors * line(kept, "actors", "simulation"), "0.0"),
                Line("rollouts", actors * line(kept, "actors", "rollout"), green),
                Line("limit, training", actors * line(kept, "actors", "limit"), **limit),
                Line("PPO", actors * line(kept, "actors", "training"), orange),
            ],
        ),
    )
    titles = ("CartPole, 64-64 units", "CartPole, 1,000 environments", f"tag in the plane, {ENVIRONMENTS_OF_ACTORS} environments")
    whats = ("environment", "environment", "actor")
    with figure(FIGURE, len(panels), (9.0, 3.6)) as axes:
        for each, (axis, points, lines), title, what in zip(axes, panels, titles, whats, strict=True):
            for own in lines:
                each.loglog(points[-len(own.y) :], own.y, own.style, color=own.color, linewidth=1.6, markersize=4)
            each.set(title=title, xlabel=axis, ylabel=f"{what} steps per second")
            each.set_xticks(points, [short(n) for n in points], minor=False)
            each.minorticks_off()
            each.set_xlim(points[0] * 0.8, points[-1] * (points[-1] / points[0]) ** 0.6)
            label_ends(each, points[-1], lines)


def short(n: int) -> str:
    """Return a number for an axis."""
    return f"{n:,}" if n < 10_000 else f"{n // 1000} k" if n < 1_000_000 else f"{n // 1_000_000} M"


def label_ends(axes: Any, x: float, lines: Sequence[Line]) -> None:
    """Write the label of each line beside its end; labels stand apart."""
    low, high = (math.log10(bound) for bound in axes.get_ylim())
    step = 0.055 * (high - low)
    below = -math.inf
    for own in sorted(lines, key=lambda own: own.y[-1]):
        below = max(math.log10(own.y[-1]), below + step)
        axes.annotate(
            own.label,
            (x, 10**below),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            color=own.color,
        )


def main() -> None:
    """Measure or write."""
    flags = {"again": False, "list": False, "write": False}
    chosen = settings(__doc__, choices={"only": NAMES}, only=list(NAMES), rounds=1, wait=10.0, minutes=1e9, **flags)
    measurements = {name: parts(name, chosen.rounds) for name in chosen.only}
    if chosen.list:
        print("\n".join(f"{name} {title}" for name, own in measurements.items() for title in own))
    elif chosen.write:
        for page, mark, text in places():
            page.write_text(replaced(page.read_text(), mark, text))
        if complete(read(KEPT)):
            draw(read(KEPT))
    else:
        try:
            measure(measurements, KEPT, chosen.wait, chosen.minutes, chosen.only if chosen.again else ())
        except UserError as error:
            print(f"scale: {error}", file=sys.stderr)
            sys.exit(2)


if __name__ == "__main__":
    main()
