"""The table and the figure of docs/benchmarks/exarl.md, from the quiet runs of sleeping ranks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from common import DOCS, figure, table

from exarl.model import Times
from exarl.runs import CASES, FITTED, ONE_LEARNER, TRAIN_MS, parts, predicted, times
from warprun.report.style import COLORS

PAGE = DOCS / "benchmarks" / "exarl.md"
FIGURE = DOCS / "figures" / "exarl_scaling.png"
Values = dict[str, float]


class Measured(NamedTuple):
    """What rounds have measured."""

    times: list[Values]
    """Of an exchange, in each round."""
    runs: dict[str, list[Values]]
    """By case, what a run did in each round."""

    def medians(self) -> tuple[Values, dict[str, Values]]:
        """Return the medians over rounds of the times, and of the runs of each case."""
        return _medians(self.times), {case: _medians(rounds) for case, rounds in self.runs.items()}


def _medians(rounds: list[Values]) -> Values:
    return {key: statistics.median(values[key] for values in rounds) for key in rounds[0]}


def measured(parts: dict[str, Any]) -> Measured | None:
    """Return what the quiet parts of the measurement `exarl` of scripts/reproduce.py hold; None if the model lacks times."""
    found: dict[str, list[Values]] = {}
    for title, part in parts.items():
        if part["quiet"]:
            found.setdefault(title.rpartition(" round=")[0], []).append(part["values"])
    exchanged = found.pop("times", [])
    return Measured(exchanged, found) if exchanged and all(case in found for case in FITTED) else None


def validation(of: Measured) -> str:
    """Return the relative errors of the model as a table, and the times that it is given."""
    exchanged, runs = of.medians()
    given = times(exchanged, runs)
    errors = {case: predicted(case, given).rate / runs[case]["rate"] - 1.0 for case in CASES if case in runs and case not in FITTED}
    rows = []
    for case, error in errors.items():
        rates = [values["rate"] for values in of.runs[case]]
        real = f"{runs[case]['rate']:.2f} [{min(rates):.2f}, {max(rates):.2f}]"
        rows.append((f"`{case}`", real, f"{error:+.1%}", f"{runs[case]['lag']:.1f}", f"{runs[case]['learner_waiting']:.0%}"))
    worst = max(errors, key=lambda case: abs(errors[case]), default="")
    mean = statistics.mean(map(abs, errors.values())) if errors else 0.0
    told = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in exchanged.items())
    text = f"Mean of the absolute errors {mean:.1%}" + f"; largest {errors[worst]:+.1%} (`{worst}`)" * bool(worst)
    return table(("run", "rollouts/s, real ranks", "model", "lag", "learner waits"), rows) + f"\n{text}. Measured: {told}.\n"


def saturation(axes: Any, of: Measured, given: Times) -> None:
    """Draw the time of a rollout against the number of actors of one learner."""
    actors = (1, 2, 4, 8)
    for mode, color, label in (
        ("queue", COLORS[0], "queue: one actor is enough"),
        ("async", COLORS[1], "async: one actor waits for answers"),
    ):
        cases = [f"{mode} 1:{a}" for a in actors]
        _with_ranges(axes, actors, [[1e3 / values["rate"] for values in of.runs[case]] for case in cases], color)
        axes.plot(actors, [1e3 / predicted(case, given, 200).rate for case in cases], color=color, linewidth=1.2)
        place = {"xytext": (10, 2)} if mode == "async" else {"xytext": (-4, -34)}
        first = 1e3 / predicted(cases[0], given, 200).rate
        axes.annotate(label, (1, first), textcoords="offset points", color=color, fontweight="bold", **place)
    axes.axhline(TRAIN_MS, color="0.5", linestyle=":", linewidth=1.0)
    axes.annotate("a gradient step", (8, TRAIN_MS), (0, -12), textcoords="offset points", ha="right", color="0.4", fontsize=8)
    axes.set(xlabel="actors of one learner", ylabel="ms per rollout", ylim=(130, 220), xticks=actors)


def compared(axes: Any, of: Measured, given: Times) -> None:
    """Draw how far the rollouts per second of real runs are from those of the model, by learners."""
    places = {1: 0, 2: 1, 4: 2, 8: 3}
    for protocol, color, shift in zip(("queue", "async", "range", "random"), COLORS, (-0.24, -0.08, 0.08, 0.24), strict=False):
        own = [case for case in of.runs if case in CASES and case not in FITTED and parts(case)[0] == protocol]
        at = [places[parts(case)[1]] + shift for case in own]
        _with_ranges(axes, at, [[100 * values["rate"] / predicted(case, given).rate for values in of.runs[case]] for case in own], color)
        axes.annotate(protocol, (0.03, 0.2 + 0.45 * shift), xycoords="axes fraction", color=color)
    axes.axhline(100.0, color="0.5", linestyle=":", linewidth=1.0)
    axes.set(xlabel="learners", ylabel="rate of real ranks, % of the model", ylim=(75, 105), xlim=(-0.5, 3.5), xticks=list(places.values()))
    axes.set_xticklabels(map(str, places))


def _with_ranges(axes: Any, x: Sequence[float], values: Sequence[Sequence[float]], color: str) -> None:
    """Draw medians, and lines from the least to the largest."""
    middle = [statistics.median(each) for each in values]
    spread = [
        [m - min(each) for m, each in zip(middle, values, strict=True)],
        [max(each) - m for m, each in zip(middle, values, strict=True)],
    ]
    axes.errorbar(x, middle, spread, fmt="o", color=color, markersize=6, capsize=3)


def draw(of: Measured) -> None:
    """Draw both, if all runs of one learner are measured."""
    exchanged, runs = of.medians()
    if all(case in runs for case in ONE_LEARNER):
        given = times(exchanged, runs)
        with figure(FIGURE, 2, (8.0, 3.4)) as panels:
            saturation(panels[0], of, given)
            compared(panels[1], of, given)
