"""Writes the table and the figure of docs/benchmarks/exarl.md."""

from __future__ import annotations

from typing import Any

from common import DOCS, figure, head, replace, row

from exarl.model import Times
from exarl.runs import CASES, FITTED, ONE_LEARNER, TRAIN_MS, parts, predicted, times

Kept = dict[str, Any]
PAGE = DOCS / "benchmarks" / "exarl.md"

FIGURE = DOCS / "figures" / "exarl_scaling.png"
CAPTION = "Time of a rollout by number of actors; rates of real runs and of the model"
MOST_LOAD = 4.0
"""Processes that want a core, beyond which the ranks of a run did not have one whenever they needed it."""
BUSY = (
    " Other programs kept the machine busy during these runs, so ranks waited for a core, which the model does not"
    " know. Its errors, and the times of push, pop, show and read, are not those of a quiet machine."
)


def errors(kept: Kept) -> dict[str, float]:
    """Return the relative error of the model for each real run that it was not fitted to."""
    given, runs = times(kept), kept["sleepy"]
    return {case: predicted(case, given).rate / runs[case]["rate"] - 1.0 for case in CASES if case in runs and case not in FITTED}


def is_measured(kept: Kept) -> bool:
    """Return whether there is all that the model is given."""
    return "times" in kept and all(case in kept.get("sleepy", {}) for case in FITTED)


def validation(kept: Kept) -> str:
    """Return the relative errors of the model as a table, and the times that it is given."""
    found = errors(kept) if is_measured(kept) else {}
    if not found:
        return ""
    worst, lines = max(found, key=lambda case: abs(found[case])), []
    for case, error in found.items():
        real = kept["sleepy"][case]
        waiting, load = f"{real['learner_waiting']:.0%}", f"{real['load']:.0f}"
        lines.append(row(f"`{case}`", f"{real['rate']:.2f}", f"{error:+.1%}", f"{real['lag']:.1f}", waiting, load))
    measured = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in kept["times"].items())
    mean = sum(map(abs, found.values())) / len(found)
    shared = BUSY if max(kept["sleepy"][case]["load"] for case in found) > MOST_LOAD else ""
    titles = head("run", "rollouts/s, real ranks", "model", "lag", "learner waits", "load")
    errors_of_model = f"Mean of the absolute errors {mean:.1%}; largest {found[worst]:+.1%} (`{worst}`)."
    return "\n".join([titles, *lines, "", f"{errors_of_model} Measured: {measured}.{shared}", ""])


def saturation(axes: Any, kept: Kept, given: Times) -> None:
    """Draw the time of a rollout against the number of actors of one learner."""
    actors = (1, 2, 4, 8)
    for color, mode in zip(("C0", "C1"), ("async", "queue"), strict=True):
        cases = [f"{mode} 1:{a}" for a in actors]
        axes.plot(actors, [1e3 / predicted(case, given, 200).rate for case in cases], color=color, label=f"{mode}, model")
        axes.plot(
            actors,
            [1e3 / kept["sleepy"][case]["rate"] for case in cases],
            "o",
            color=color,
            label=f"{mode}, real ranks",
        )
    axes.axhline(TRAIN_MS, color="0.5", linestyle=":", linewidth=1.0)
    axes.set(xlabel="actors of one learner", ylabel="ms per rollout", ylim=(0, None), xticks=actors, title="one learner")


def compared(axes: Any, kept: Kept, given: Times) -> None:
    """Draw the rollouts per second of real runs against those of the model."""
    for marker, protocol in zip("os^v", ("async", "queue", "range", "random"), strict=True):
        own = [case for case in CASES if case in kept["sleepy"] and case not in FITTED and parts(case)[0] == protocol]
        rates = [kept["sleepy"][case]["rate"] for case in own]
        axes.loglog([predicted(case, given).rate for case in own], rates, marker, label=protocol, alpha=0.8)
    axes.loglog([3.0, 60.0], [3.0, 60.0], color="0.5", linestyle=":", linewidth=1.0)
    axes.set(xlabel="rollouts/s, model", ylabel="rollouts/s, real ranks", title="model and real runs")


def write(kept: Kept) -> None:
    """Write the table and the figure, and print the table."""
    if is_measured(kept) and all(case in kept["sleepy"] for case in ONE_LEARNER):
        given = times(kept)
        with figure(FIGURE, 2, (8.8, 4.0)) as panels:
            saturation(panels[0], kept, given)
            compared(panels[1], kept, given)
            ticks = (3, 5, 10, 20, 40)
            panels[1].set_xticks(ticks, map(str, ticks), minor=False)
            panels[1].minorticks_off()
    picture = f"![{CAPTION}](../figures/{FIGURE.name})\n\n" if FIGURE.exists() else ""
    for name, text in (("figures", picture), ("model", validation(kept))):
        print(text)
        replace(PAGE, f"exarl {name}", text)
