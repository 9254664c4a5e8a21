"""Writes section EXARL of docs/reproductions.md: the tables between its markers, and the figure."""

from __future__ import annotations

from typing import Any

from common import DOCS, figure, head, replace, row, table

from exarl.answers import CLAIMS, Kept, errors, hub_message
from exarl.model import Times, simulate
from exarl.runs import CASES, FITTED, TRAIN_MS, parts, predicted, times

FIGURE = DOCS / "figures" / "exarl_scaling.png"
CAPTION = "Time of a rollout by number of actors; rates of real runs and of the model; the model up to 1,024 processes"
SIZES = (64, 140, 256, 512, 1024)
"""Processes of the model; one learner for 7 actors."""
MOST_LOAD = 4.0
"""Processes that want a core, beyond which the ranks of a run did not have one whenever they needed it."""
BUSY = (
    " Other programs kept the machine busy during these runs, so ranks waited for a core, which the model does not"
    " know. Its errors, and the times of push, pop, show and read, are not those of a quiet machine."
)


def claims(kept: Kept) -> str:
    """Return the table of all claims that are measured."""
    measured = {number: (claim, claim.answer(kept)) for number, claim in CLAIMS.items() if claim.is_measured(kept)}
    rows = [(number, c.text, answer.verdict, answer.found, f"`--only {c.parts}`") for number, (c, answer) in measured.items()]
    return table(["#", "claim", "here", "found", "command"], rows)


def validation(kept: Kept) -> str:
    """Return the relative errors of the model as a table, and the times that it is given."""
    found = errors(kept) if CLAIMS[8].is_measured(kept) else {}
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


def largest(axes: Any, given: Times) -> None:
    """Draw what the model says of many processes."""
    hub = Times(**{**vars(given), "message": hub_message() * given.train / 8e-3})
    lines = {name: (name, given) for name in ("queue", "async", "range", "random")}
    lines["EXARL's async: all by learner 0"] = ("exarl_async", hub)
    for width, (label, (protocol, own)) in zip((7.0, 4.0, 1.5, 1.5, 1.5), lines.items(), strict=True):  # some lie on each other
        rates = [simulate(protocol, n // 8, n - n // 8, own, 12 * (n // 8)).unique for n in SIZES]
        axes.loglog(SIZES, rates, ".-", label=label, linewidth=width)
    axes.set(
        xlabel="processes, 1 learner for 7 actors",
        ylabel="unique rollouts/s",
        title="model, sleeps as in the real runs",
    )


def write(kept: Kept) -> None:
    """Write the tables and the figure, and print the tables."""
    if CLAIMS[3].is_measured(kept) and CLAIMS[8].is_measured(kept):
        given = times(kept)
        with figure(FIGURE, 3, (13.0, 4.0)) as panels:
            saturation(panels[0], kept, given)
            compared(panels[1], kept, given)
            largest(panels[2], given)
            for panel, ticks in ((panels[1], (3, 5, 10, 20, 40)), (panels[2], SIZES)):
                panel.set_xticks(ticks, map(str, ticks), minor=False)
                panel.minorticks_off()
    picture = f"![{CAPTION}](figures/{FIGURE.name})\n\n" if FIGURE.exists() else ""
    for name, text in (("claims", claims(kept)), ("figures", picture), ("model", validation(kept))):
        print(text)
        replace(DOCS / "reproductions.md", f"exarl {name}", text)
