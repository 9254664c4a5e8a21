"""The figures of section EXARL of docs/reproductions.md."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from exarl.answers import Kept, hub_message
from exarl.claims import CLAIMS
from exarl.learning import EPISODES
from exarl.model import Times, simulate
from exarl.scaling import CASES, FITTED, TRAIN_MS, parts, predicted, times

FOLDER = Path(__file__).parents[2] / "docs" / "figures"
SCALING, LEARNING = FOLDER / "exarl_scaling.png", FOLDER / "exarl_learning.png"
CAPTIONS = {
    SCALING: "Time of a rollout by number of actors; rates of real runs and of the model; the model up to 1,024 processes",
    LEARNING: "Learning curves: every seed, and the mean over seeds",
}
SIZES = (64, 140, 256, 512, 1024)
"""Processes of the model; one learner for 7 actors."""


def saturation(axes: Any, kept: Kept, given: Times) -> None:
    """Draw the time of a rollout against the number of actors of one learner."""
    for number, mode in enumerate(("async", "queue")):
        actors = (1, 2, 4, 8)
        axes.plot(actors, [1e3 / predicted(f"{mode} 1:{a}", given, 200).rate for a in actors], color=f"C{number}", label=f"{mode}, model")
        axes.plot(
            actors, [1e3 / kept["sleepy"][f"{mode} 1:{a}"]["rate"] for a in actors], "o", color=f"C{number}", label=f"{mode}, real ranks"
        )
    axes.axhline(TRAIN_MS, color="0.5", linestyle=":", linewidth=1.0)
    axes.set(xlabel="actors of one learner", ylabel="ms per rollout", ylim=(0, None), xticks=actors, title="one learner")
    axes.legend(frameon=False, fontsize=8)


def validation(axes: Any, kept: Kept, given: Times) -> None:
    """Draw the rollouts per second of real runs against those of the model."""
    cases = [case for case in CASES if case in kept["sleepy"] and case not in FITTED]
    for number, protocol in enumerate(("async", "queue", "range", "random")):
        own = [case for case in cases if parts(case)[0] == protocol]
        rates = [kept["sleepy"][case]["rate"] for case in own]
        axes.loglog([predicted(case, given).rate for case in own], rates, "os^v"[number], color=f"C{number}", label=protocol, alpha=0.8)
    ends = [3.0, 60.0]
    ticks = (3, 5, 10, 20, 40)
    axes.loglog(ends, ends, color="0.5", linestyle=":", linewidth=1.0)
    axes.set(xlabel="rollouts/s, model", ylabel="rollouts/s, real ranks", title="model and real runs")
    axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
    axes.set_yticks(ticks, [str(tick) for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)


def largest(axes: Any, given: Times) -> None:
    """Draw what the model says of many processes."""
    hub = Times(**{**vars(given), "message": hub_message() * given.train / 8e-3})
    lines = {name: (name, given) for name in ("queue", "async", "range", "random")}
    lines["EXARL's async: all by learner 0"] = ("exarl_async", hub)
    for width, (label, (protocol, own)) in zip((7.0, 4.0, 1.5, 1.5, 1.5), lines.items(), strict=True):  # some lie on each other
        rates = [simulate(protocol, n // 8, n - n // 8, own, 12 * (n // 8)).unique for n in SIZES]
        axes.loglog(SIZES, rates, ".-", label=label, linewidth=width)
    axes.set(xlabel="processes, 1 learner for 7 actors", ylabel="unique rollouts/s", title="model, sleeps as in the real runs")
    axes.set_xticks(SIZES, [str(n) for n in SIZES], minor=False)
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)


def curves(axes: Any, runs: dict[str, list[tuple[list[float], list[float]]]]) -> None:
    """Draw every seed thinly, and the mean over the seeds where all have a point."""
    for number, (label, seeds) in enumerate(runs.items()):
        for steps, values in seeds:
            axes.plot(steps, values, color=f"C{number}", alpha=0.25, linewidth=0.7)
        length = min(len(values) for _, values in seeds)
        mean = [statistics.mean(values[n] for _, values in seeds) for n in range(length)]
        axes.plot(seeds[0][0][:length], mean, color=f"C{number}", linewidth=2.0, label=label)
    axes.set_ylabel("mean return of training episodes")
    axes.legend(frameon=False, fontsize=8)


def learning(kept: Kept) -> dict[str, dict[str, list[tuple[list[float], list[float]]]]]:
    """Return title -> label -> [(x, return)] of each seed, of the learning runs that are kept."""
    found: dict[str, dict[str, list[tuple[list[float], list[float]]]]] = {}
    titles = {"12": "8 actors, CartPole-v0", "7": "several learners, async", "9": "rma, 4 learners, 8 actors"}
    for name, runs in kept.get("learning", {}).items():
        claim, _, label = name.partition(" ")
        if not runs:
            continue
        if claim == "12":
            seeds = [([50.0 * (n + 1) for n in range(len(run["fifties"]))], run["fifties"]) for run in runs.values()]
        else:
            seeds = [([point[0] / 1e3 for point in run["curve"]], [point[1] for point in run["curve"]]) for run in runs.values()]
        found.setdefault(titles[claim], {})[label] = seeds
    return found


def draw(kept: Kept) -> None:
    """Draw both figures from what is kept."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    if CLAIMS[3].is_measured(kept) and CLAIMS[8].is_measured(kept):
        given = times(kept["times"], kept["sleepy"])
        figure, axes = pyplot.subplots(1, 3, figsize=(13.0, 4.0), layout="constrained")
        saturation(axes[0], kept, given)
        validation(axes[1], kept, given)
        largest(axes[2], given)
        figure.savefig(SCALING, dpi=130)
    panels = learning(kept)
    if panels:
        figure, axes = pyplot.subplots(1, len(panels), figsize=(4.4 * len(panels), 4.0), layout="constrained", squeeze=False)
        for place, (title, runs) in zip(axes[0], panels.items(), strict=True):
            curves(place, runs)
            place.set(title=title, xlabel=f"episodes of {EPISODES:,}" if "v0" in title else "thousand env_steps")
        figure.savefig(LEARNING, dpi=130)
