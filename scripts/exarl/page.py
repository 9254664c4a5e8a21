"""The table and the figure of docs/benchmarks/exarl.md, from the quiet runs of sleeping ranks."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from common import DOCS, figure, table

from exarl.model import Times
from exarl.runs import CASES, FITTED, ONE_LEARNER, TRAIN_MS, parts, predicted, times

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


def saturation(axes: Any, runs: dict[str, Values], given: Times) -> None:
    """Draw the time of a rollout against the number of actors of one learner."""
    actors = (1, 2, 4, 8)
    for color, mode in zip(("C0", "C1"), ("async", "queue"), strict=True):
        cases = [f"{mode} 1:{a}" for a in actors]
        axes.plot(actors, [1e3 / predicted(case, given, 200).rate for case in cases], color=color, label=f"{mode}, model")
        axes.plot(actors, [1e3 / runs[case]["rate"] for case in cases], "o", color=color, label=f"{mode}, real ranks")
    axes.axhline(TRAIN_MS, color="0.5", linestyle=":", linewidth=1.0)
    axes.set(xlabel="actors of one learner", ylabel="ms per rollout", ylim=(0, None), xticks=actors, title="one learner")


def compared(axes: Any, runs: dict[str, Values], given: Times) -> None:
    """Draw the rollouts per second of real runs against those of the model."""
    for marker, protocol in zip("os^v", ("async", "queue", "range", "random"), strict=True):
        own = [case for case in CASES if case in runs and case not in FITTED and parts(case)[0] == protocol]
        axes.loglog([predicted(case, given).rate for case in own], [runs[case]["rate"] for case in own], marker, label=protocol, alpha=0.8)
    axes.loglog([3.0, 60.0], [3.0, 60.0], color="0.5", linestyle=":", linewidth=1.0)
    axes.set(xlabel="rollouts/s, model", ylabel="rollouts/s, real ranks", title="model and real runs")


def draw(of: Measured) -> None:
    """Draw both, if all runs of one learner are measured."""
    exchanged, runs = of.medians()
    if all(case in runs for case in ONE_LEARNER):
        given = times(exchanged, runs)
        with figure(FIGURE, 2, (8.8, 4.0)) as panels:
            saturation(panels[0], runs, given)
            compared(panels[1], runs, given)
            ticks = (3, 5, 10, 20, 40)
            panels[1].set_xticks(ticks, map(str, ticks), minor=False)
            panels[1].set_yticks(ticks, map(str, ticks), minor=False)
            panels[1].minorticks_off()
