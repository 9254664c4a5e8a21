"""The claims of EXARL (LA-UR-21-27928), and what the raw numbers of this repository say of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from common import table
from evidence import (
    CAMPAIGN,
    NOT_YET,
    REPRODUCED,
    STUDY,
    UNDECIDED,
    UNTESTABLE,
    Claim,
    Found,
    Interval,
    Raw,
    interval,
    kept_runs,
    missing,
    over_seeds,
    quiet,
    ratios,
    verdict,
)
from exarl.runs import CASES

ABOUT = (0.8, 1.25)
"""Ratios that are "about as fast"."""
SATURATED = 1.1
"""Ratio of rates below which more actors gain nothing worth the name."""
ENDS = (-0.25, -0.15)
"""Returns in which the published learning curves of the accelerator end."""
RANKS = CAMPAIGN.format("exarl") + "sleeping ranks, 50 updates each"
ACTORS = STUDY.format("trainings", "benchmarks/exarl.md#trainings") + "CartPole, eight actors, five seeds"


def ranks(raw: Raw, case: str, key: str = "rate") -> Interval | None:
    """Return the interval over rounds of what a run of sleeping ranks did."""
    return interval([values[key] for values in quiet(raw, "exarl", f"{case} round=").values()])


def by_round(raw: Raw, case: str) -> dict[str, float]:
    """Return the rate of a run of sleeping ranks in every round, by the name of the round."""
    return {title.partition("round=")[2]: values["rate"] for title, values in quiet(raw, "exarl", f"{case} round=").items()}


def compared(raw: Raw, several: str, one: str) -> Interval | None:
    """Return the interval over rounds of the ratio of the rates of two runs."""
    more, fewer = by_round(raw, several), by_round(raw, one)
    return interval([more[name] / fewer[name] for name in more.keys() & fewer.keys()])


def of_page(raw: Raw) -> str:
    """Return what the runs of sleeping ranks did, as a table."""
    rows = []
    for case in CASES:
        rate, lag, waiting = (ranks(raw, case, key) for key in ("rate", "lag", "learner_waiting"))
        if rate and lag and waiting:
            rows.append((f"`{case}`", rate.text(".2f"), f"{lag.median:.1f}", f"{waiting.median:.0%}"))
    return table(("run", "rollouts/s", "lag", "learner waits"), rows)


def faster(several: str, one: str, published: float | None = None) -> Callable[[Raw], Found]:
    """Return the answer of a claim that a run has a higher rate than another one, `published` times it if it has that size."""

    def answer(raw: Raw) -> Found:
        found = compared(raw, several, one)
        if not found:
            return Found("–", NOT_YET)
        number = f"rate of `{several}` by that of `{one}`: {found.text('.2f')}"
        if published and 1.0 < found.low <= published <= found.high:
            return Found(number, REPRODUCED)
        return Found(number, verdict(found.low > 1.0, found.high < 1.0))

    return answer


def saturated(raw: Raw) -> Found:
    """Return whether the queue of one learner gains less than a tenth from 8 actors instead of 2."""
    found = compared(raw, "queue 1:8", "queue 1:2")
    if not found:
        return Found("–", NOT_YET)
    number = f"rate of `queue 1:8` by that of `queue 1:2`: {found.text('.2f')}"
    return Found(number, verdict(found.high < SATURATED, found.low > SATURATED))


def repeated(raw: Raw) -> Found:
    """Return how much of the reads of ranks is a repetition. What that costs in learning is not measured."""
    every, unique = ranks(raw, "random 4:8"), ranks(raw, "random 4:8", "unique")
    if not every or not unique:
        return Found("–", NOT_YET)
    return Found(f"repetitions of `random 4:8`: {1 - unique.median / every.median:.1%}", UNDECIDED)


def inference(raw: Raw) -> Found:
    """Return how fast central inference is, compared with copies of a small policy."""
    found = ratios(raw, "exarl_inference", ("10 k seed", "steps_per_s"), ("10 k async", "steps_per_s"))
    if not found:
        return Found("–", NOT_YET)
    least, most = ABOUT
    inside, outside = least <= found.low and found.high <= most, found.high < least or found.low > most
    return Found(f"`seed` by `async`, 10,000 parameters: {found.text('.2f')}", verdict(inside, outside))


def learned(key: str, higher: str, lower: str) -> Callable[[Raw], Found]:
    """Return the answer of a claim that one case of the study `exarl` has higher returns than another one."""

    def answer(raw: Raw) -> Found:
        both = [over_seeds(raw, "exarl", case, key) for case in (higher, lower)]
        if not both[0] or not both[1]:
            return Found("–", NOT_YET)
        number = "; ".join(f"`{case}`: {own.text('.1f')}" for case, own in zip((higher, lower), both, strict=True) if own)
        if crowded(raw, [higher, lower]):
            return Found(number, UNDECIDED)
        return Found(number, verdict(both[0].low > both[1].high, both[0].high < both[1].low))

    return answer


def crowded(raw: Raw, cases: Sequence[str]) -> bool:
    """Return whether runs of the study `exarl` had fewer cores than the nine processes, or more, of a run (rule 6)."""
    runs = [run for case in cases for run in kept_runs(raw, "exarl", case) if "machine" in run]
    return any(int(cores) < 9 for run in runs for cores in re.findall(r"(\d+) cores", run["machine"]))


def ends_of_curves(raw: Raw) -> Found:
    """Return the returns of the agents of figure 20 in compat mode, beside those in which the published curves end."""
    found = {agent: over_seeds(raw, "booster_compat", agent, "last/return") for agent in ("A2C", "DQN", "DQN, LSTM")}
    known = {agent: own for agent, own in found.items() if own}
    if len(known) < len(found):
        return Found("–", NOT_YET)
    least, most = ENDS
    number = "; ".join(f"{agent}: {own.text('.2f')}" for agent, own in known.items())
    inside = all(least <= own.low and own.high <= most for own in known.values())
    return Found(number, verdict(inside, all(own.high < least or own.low > most for own in known.values())))


CLAIMS = (
    Claim(
        "EXARL 1",
        "RMA queue, 20 learners and 120 actors: 77 % less time than the queue of one learner and as many processes",
        RANKS + "; 14 processes instead of 140",
        faster("queue 2:12", "queue 1:13"),
    ),
    Claim(
        "EXARL 2",
        "the same with 40 learners and 200 actors: 84 %",
        RANKS + "; 28 processes instead of 240",
        faster("queue 4:24", "queue 1:27"),
    ),
    Claim(
        "EXARL 3",
        "queue of one learner 25 % better than async",
        RANKS + "; with one actor",
        faster("queue 1:1", "async 1:1", 1.25),
    ),
    Claim("EXARL 3, saturation", "more actors of one learner gain nothing from some number on", RANKS, saturated),
    Claim(
        "EXARL 4",
        "targets of experiences computed on idle ranks: 3.30 times as fast with 4 processes; they were 90 % of the time",
        "– (needs at least 5 cores)",
        missing(UNTESTABLE),
    ),
    Claim(
        "EXARL 5",
        "async with several learners: +43.4 % throughput, 8 learners and 8 actors",
        RANKS,
        faster("async 8:8", "async 1:8", 1.434),
    ),
    Claim(
        "EXARL 6",
        "RMA with several learners: 31 % less time, 8 learners and 16 actors",
        RANKS + "; against one learner",
        faster("queue 8:16", "queue 1:16", 1 / 0.69),
    ),
    Claim("EXARL 7", "async converges worse with more learners", ACTORS, learned("training/return", "7 L=1", "7 L=8")),
    Claim("EXARL 8", "RMA scales to 1,024 processes, better than async with several learners", "–", missing(UNTESTABLE)),
    Claim(
        "EXARL 9",
        "the range window converges faster than the random one",
        ACTORS,
        learned("training/return", "9 range", "9 random"),
    ),
    Claim("EXARL 10", "collisions matter from a quarter as many learners as actors", RANKS, repeated),
    Claim(
        "EXARL 11",
        "central inference (SEED) about as fast as copies of the policy for a small model",
        CAMPAIGN.format("exarl_inference") + "4 actors",
        inference,
    ),
    Claim(
        "EXARL 12",
        'A2C with "v-trace" reaches 200 on CartPole-v0, without it does not',
        ACTORS,
        learned("last/return", "12 exarl_vtrace", "12 gae"),
    ),
    Claim(
        "EXARL, figure 20",
        f"A2C, DQN and DQN with LSTM on the accelerator: curves end at returns of {ENDS[0]} to {ENDS[1]}",
        STUDY.format("compat mode", "gallery.md#regulators-and-agents") + "a surrogate of the accelerator, five seeds",
        ends_of_curves,
    ),
)
