"""The published claims of WarpSci and EXARL, and what the raw numbers of this repository say of each.

The verdicts follow from docs/reproductions.md, section "The rule". An interval reaches from the least to the largest
value of at least five runs or rounds. Of speeds only what was measured quietly counts.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from common import described, table
from published import SIZES
from studies import STUDIES
from study import Run, runs_of

Raw = dict[str, Any]
"""Numbers by file: reproduce, exarl, results."""
REPRODUCED, IN_KIND, CONTRADICTED = "reproduced", "reproduced in kind", "contradicted"
UNDECIDED, UNTESTABLE, NOT_YET = "undecided", "cannot be tested here", "not measured yet"
VERDICTS = (REPRODUCED, IN_KIND, CONTRADICTED, UNDECIDED, UNTESTABLE, NOT_YET)
ABOUT = (0.8, 1.25)
"""Ratios that are "about as fast"."""
SATURATED = 1.1
"""Ratio of rates below which more actors gain nothing worth the name."""
LEAST = 5
"""Runs or rounds of an interval."""
ENDS = (-0.25, -0.15)
"""Returns in which the published learning curves of the accelerator end."""
LATTICE = np.array([20, 18, 0])
"""Cells of the catalysis grid in x and y, which are periodic."""
NEAR = 1
"""Cells in each direction within which transition states are the same."""


class Interval(NamedTuple):
    """The median of some values, the least and the largest."""

    median: float
    low: float
    high: float
    runs: int

    def text(self, form: str) -> str:
        """Return it as text, with a format for each number."""
        return f"{self.median:{form}} [{self.low:{form}}, {self.high:{form}}]"


class Found(NamedTuple):
    """The number of a row, and its verdict."""

    number: str
    verdict: str


def interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of enough values, else None."""
    return Interval(statistics.median(values), min(values), max(values), len(values)) if len(values) >= LEAST else None


def quiet(raw: Raw, name: str, *starts: str) -> dict[str, Any]:
    """Return the values of the quiet parts of a measurement whose titles begin with one of `starts`."""
    parts = raw["reproduce"].get(name, {}).get("parts", {})
    return {title: part["values"] for title, part in parts.items() if part["quiet"] and title.startswith(starts or ("",))}


def of_rounds(raw: Raw, name: str, *keys: str) -> Interval | None:
    """Return the interval over rounds of a value that is found by keys."""
    found = []
    for values in quiet(raw, name).values():
        value: Any = values
        for key in keys:
            value = value[key]
        found.append(value)
    return interval(found)


def ratios(raw: Raw, name: str, above: tuple[str, ...], below: tuple[str, ...]) -> Interval | None:
    """Return the interval over rounds of the ratio of two values of a round."""
    found = []
    for values in quiet(raw, name).values():
        both: list[Any] = [values, values]
        for place, keys in enumerate((above, below)):
            for key in keys:
                both[place] = both[place][key]
        found.append(both[0] / both[1])
    return interval(found)


def verdict(shown: bool, opposite: bool) -> str:
    """Return the verdict of intervals that show the published direction, or the opposite one."""
    return IN_KIND if shown else CONTRADICTED if opposite else UNDECIDED


def kept_runs(raw: Raw, study: str, case: str) -> list[Run]:
    """Return the runs of a case of a study with its settings that did not fail."""
    return [run for run in runs_of(STUDIES[study], raw["results"].get(study, {})).get(case, []) if "failed" not in run]


def over_seeds(raw: Raw, study: str, case: str, key: str) -> Interval | None:
    """Return the interval of a number over the seeds of a case."""
    return interval([run[key] for run in kept_runs(raw, study, case) if key in run])


def missing(verdict: str = NOT_YET) -> Callable[[Raw], Found]:
    """Return the answer of a claim that nothing is measured for."""
    return lambda raw: Found("–", verdict)


# WarpSci --------------------------------------------------------------------------------------------------------------


def rate(name: str, unit: str, *keys: str) -> Callable[[Raw], Found]:
    """Return the answer of a rate of one A100: the rate here stands beside it and decides nothing."""

    def answer(raw: Raw) -> Found:
        found = of_rounds(raw, name, *keys)
        scale = 1e-6 if name == "covid_speed" else 1.0
        shown = Interval(found.median * scale, found.low * scale, found.high * scale, found.runs) if found else None
        return Found(f"{shown.text('.4g')} {unit}" if shown else "–", UNTESTABLE)

    return answer


def growth(raw: Raw) -> Found:
    """Return how throughput grows from 10 to 10,000 environments."""
    cells = []
    for env in ("cartpole", "acrobot"):
        keys = [(f"{env} a2c {size}", "training") for size in (10_000, 10)]
        found = ratios(raw, "throughput", *keys)
        cells += [f"{env} {found.text('.2f')} x"] if found else []
    return Found("; ".join(cells) or "–", UNTESTABLE)


def times_to_bar(raw: Raw, env: str) -> dict[int, Interval]:
    """Return the seconds of training until the bar is reached, by number of environments; never is infinite."""
    found: dict[int, Interval] = {}
    for size in (10, 100, 1000, 10_000):
        runs = quiet(raw, "warpsci_2bc", f"{env} {size} ").values()
        own = interval([math.inf if run["s"] is None else run["s"] for run in runs])
        found |= {size: own} if own else {}
    return found


def sooner(env: str) -> Callable[[Raw], Found]:
    """Return the answer of figure 2b or 2c: more environments reach a return sooner."""

    def answer(raw: Raw) -> Found:
        found = times_to_bar(raw, env)
        if len(found) < 4:
            return Found("–", NOT_YET)
        pairs = list(zip(found.values(), list(found.values())[1:], strict=False))
        number = "; ".join(f"{size:,}: {own.text('.3g')} s" for size, own in found.items())
        if all(more.high < fewer.low for fewer, more in pairs):
            return Found(number, IN_KIND)
        return Found(number, CONTRADICTED if any(more.low > fewer.high for fewer, more in pairs) else UNDECIDED)

    return answer


def against_numpy(raw: Raw) -> Found:
    """Return how much faster kernels are than NumPy, each on one thread and with the same batch."""
    cells = []
    for n in (60, 1000):
        found = ratios(raw, "covid_speed", (f"kernels {n}",), (f"numpy {n}",))
        cells += [f"{n:,} environments: {found.text('.3g')} x"] if found else []
    return Found("; ".join(cells) or "–", UNTESTABLE)


def together(raw: Raw) -> Found:
    """Return what trained governors and planner gain over untrained ones with the published settings."""
    found = {group: over_seeds(raw, "covid", "published", f"trained - untrained/{group}") for group in ("governors", "planner")}
    known = {group: own for group, own in found.items() if own}
    if len(known) < len(found):
        return Found("–", NOT_YET)
    number = "gain over untrained policies: " + "; ".join(f"{group} {own.text('.1f')}" for group, own in known.items())
    # What a part of the budget does not gain may come later, so it contradicts nothing.
    return Found(number, verdict(all(own.low > 0.0 for own in known.values()), False))


def with_more_environments(raw: Raw) -> Found:
    """Return the mean success during training by number of environments, for as many environment steps.

    Returns do not decide: an agent that rests in a cell of low energy has a higher one and does not reach the goal.
    """
    cells, pairs = [], []
    for scenario in ("lh", "er1"):
        found = [over_seeds(raw, "catalysis_envs", f"{scenario}, {size}", "during/eval/terminated") for size in SIZES]
        known = [own for own in found if own]
        if len(known) < len(SIZES):
            return Found("–", NOT_YET)
        cells.append(f"{scenario}: " + ", ".join(f"{size}: {own.text('.1%')}" for size, own in zip(SIZES, known, strict=True)))
        pairs += list(pairwise(known))
    better, worse = all(fewer.high < more.low for fewer, more in pairs), any(more.high < fewer.low for fewer, more in pairs)
    return Found("episodes that reach the goal, mean over training: " + "; ".join(cells), verdict(better, worse))


def below_the_band(raw: Raw) -> Found:
    """Return the highest energy of learned paths beside that of the elastic band which begins as a straight line; `lh` decides."""
    cells, decided = [], NOT_YET
    for case in ("lh", "er1"):
        reached = [run for run in kept_runs(raw, "catalysis", case) if run["last/path/reaches_goal"]]
        own = interval([run["last/path/highest_energy"] for run in reached])
        if not own:
            return Found("–", NOT_YET)
        band = reached[0]["straight/highest_energy"]
        cells.append(f"{case}: {own.text('.3f')} eV, band {band:.3f} eV")
        decided = verdict(own.high < band, own.low > band) if case == "lh" else decided
    return Found("highest energy above the start, " + "; ".join(cells) + _with_published_settings(raw), decided)


def shared_transition_state(raw: Raw) -> Found:
    """Return the transition states of learned paths of LH and ER, and whether they are in the same place."""
    cells, states = [], {}
    for case in ("lh", "er1", "er2"):
        reached = [run for run in kept_runs(raw, "catalysis", case) if run["last/path/reaches_goal"]]
        if len(reached) < LEAST:
            return Found("–", NOT_YET)
        states[case] = [np.array(run["transition/cell"]) for run in reached if "transition/cell" in run]
        places = sorted({tuple(int(n) for n in cell) for cell in states[case]})
        cells.append(f"{case}: {len(states[case])} of {len(reached)} paths have one" + f", at {', '.join(map(str, places))}" * bool(places))
    of_er = states["er1"] + states["er2"]
    apart = [_apart(one, other) for one in states["lh"] for other in of_er]
    shared = bool(apart) and max(apart) <= NEAR and all(len(found) >= LEAST for found in states.values())
    return Found("; ".join(cells) + _with_published_settings(raw), verdict(shared, not of_er or (bool(apart) and min(apart) > NEAR)))


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest distance of two cells in a direction, the shorter way around."""
    straight = np.abs(one - other)
    around = np.where(LATTICE > 0, np.minimum(straight, LATTICE - straight), straight)
    return float(around.max())


def _with_published_settings(raw: Raw) -> str:
    runs = [run for scenario in ("lh", "er1") for run in kept_runs(raw, "catalysis_published", f"{scenario} published")]
    reached = sum(bool(run["last/path/reaches_goal"]) for run in runs)
    return f". Published settings, lh and er1: {reached} of {len(runs)} paths reach the goal" if runs else ""


# EXARL ----------------------------------------------------------------------------------------------------------------


def ranks(raw: Raw, case: str, key: str = "rate") -> Interval | None:
    """Return the interval over rounds of what a run of sleeping ranks did."""
    return interval([values[key] for values in quiet(raw, "exarl", f"{case} round=").values()])


def faster(several: str, one: str, published: float | None = None) -> Callable[[Raw], Found]:
    """Return the answer of a claim that a run has a higher rate than another one, `published` times it if it has that size."""

    def answer(raw: Raw) -> Found:
        more, fewer = ranks(raw, several), ranks(raw, one)
        if not more or not fewer:
            return Found("–", NOT_YET)
        low, high = more.low / fewer.high, more.high / fewer.low
        number = f"rate of `{several}` by that of `{one}`: {more.median / fewer.median:.2f} [{low:.2f}, {high:.2f}]"
        if published and 1.0 < low <= published <= high:
            return Found(number, REPRODUCED)
        return Found(number, verdict(low > 1.0, high < 1.0))

    return answer


def saturated(raw: Raw) -> Found:
    """Return whether the queue of one learner gains less than a tenth from 8 actors instead of 2."""
    more, fewer = ranks(raw, "queue 1:8"), ranks(raw, "queue 1:2")
    if not more or not fewer:
        return Found("–", NOT_YET)
    low, high = more.low / fewer.high, more.high / fewer.low
    number = f"rate of `queue 1:8` by that of `queue 1:2`: {more.median / fewer.median:.2f} [{low:.2f}, {high:.2f}]"
    return Found(number, verdict(high < SATURATED, low > SATURATED))


def repeated(raw: Raw) -> Found:
    """Return how much of the reads of ranks is a repetition. What that costs in learning is not measured."""
    every, unique = ranks(raw, "random 4:8"), ranks(raw, "random 4:8", "unique")
    if not every or not unique:
        return Found("–", NOT_YET)
    return Found(f"repetitions of `random 4:8`: {1 - unique.median / every.median:.1%}", NOT_YET)


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
    """Return whether runs of the study `exarl` had fewer cores than the nine processes, or more, of a run (rule 7)."""
    runs = [run for case in cases for run in runs_of(STUDIES["exarl"], raw["results"]["exarl"])[case] if "machine" in run]
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


# The table ------------------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """A published claim, what is done here, and how it is answered."""

    name: str
    text: str
    done: str
    answer: Callable[[Raw], Found]


A100 = "one NVIDIA A100"
CAMPAIGN = "`python scripts/reproduce.py --only {}`: "
THROUGHPUT = CAMPAIGN.format("throughput") + "six rounds, two threads"
CURVES = CAMPAIGN.format("warpsci_2bc") + "A2C, 10 to 10,000 environments, 4 s of training, eight seeds"
COVID = CAMPAIGN.format("covid_speed") + "six rounds"
STUDY = "`python scripts/results.py {}`: "
COVID_RUNS = STUDY.format("covid --only published") + "54,000 steps, a tenth; five seeds"
PATHS = STUDY.format("catalysis --only lh er1 er2") + "PPO with the settings of conf/tuned, five seeds each; not the published settings"
SHARE = "of 600 million published steps (1.2 million episodes of up to 500 steps)"
CONVERGENCE = STUDY.format("catalysis_envs") + f"the published settings, 12 million steps, 2 % {SHARE}; five seeds, equal environment steps"
RANKS = CAMPAIGN.format("exarl") + "sleeping ranks, 50 updates each"
ACTORS = STUDY.format("exarl --jobs 1") + "CartPole, eight actors, five seeds"
CLAIMS = (
    Claim("WarpSci, figure 1", "how the framework is built: no result", "–", missing(UNTESTABLE)),
    Claim(
        "WarpSci, figure 2a",
        f"CartPole and Acrobot: throughput grows about linearly from 10 to 10,000 environments ({A100})",
        THROUGHPUT,
        growth,
    ),
    Claim(
        "WarpSci, 8.6 M",
        f"CartPole: 8.6 million steps/s with 10,000 environments and training ({A100})",
        THROUGHPUT,
        rate("throughput", "million steps/s, two cores", "cartpole a2c 10000", "training"),
    ),
    Claim("WarpSci, figure 2b", f"CartPole: more environments reach a return sooner ({A100})", CURVES, sooner("cartpole")),
    Claim("WarpSci, figure 2c", f"Acrobot: more environments reach a return sooner ({A100})", CURVES, sooner("acrobot")),
    Claim(
        "WarpSci, figure 3",
        f"COVID-19 economy: the time of rollouts and training grows about linearly with environments, 60 to 1,000 ({A100})",
        COVID,
        missing(UNTESTABLE),
    ),
    Claim(
        "WarpSci, 0.12 M",
        f"COVID-19 economy: 0.12 million steps/s with 1,000 environments and training ({A100})",
        COVID,
        rate("covid_speed", "million steps/s, two cores", "training 1000, two threads"),
    ),
    Claim(
        "WarpSci, 24 x and 30 x",
        "COVID-19 economy: 24 times (60 environments) and 30 times the throughput of a distributed set-up of 16 CPUs (A100)",
        COVID + "; kernels against vectorized NumPy, simulation only, both on one thread with the same batch: another comparison",
        against_numpy,
    ),
    Claim(
        "WarpSci, two-level agents",
        "COVID-19 economy: governors and planner learn together, 540,000 steps, 60 environments",
        COVID_RUNS,
        together,
    ),
    Claim(
        "WarpSci, figure 4",
        "catalysis: more environments (4, 20, 100, 500) learn faster and more stably, LH and ER, five seeds each, the same settings",
        CONVERGENCE,
        with_more_environments,
    ),
    Claim(
        "WarpSci, 0.95 M",
        f"catalysis: 0.95 million steps/s with 2,000 environments and training ({A100})",
        THROUGHPUT,
        rate("throughput", "million steps/s, two cores", "catalysis a2c 2000", "training"),
    ),
    Claim("WarpSci, elastic band", "catalysis: learned paths lie below those of the nudged elastic band", PATHS, below_the_band),
    Claim(
        "WarpSci, transition state",
        "catalysis: learned paths of LH and ER share a transition state",
        PATHS + "; the highest point of a path that both neighbours lie below",
        shared_transition_state,
    ),
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
        "`python scripts/exarl_claims.py --only small`; needs at least 5 cores",
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
        CAMPAIGN.format("exarl_inference") + "4 actors, six rounds",
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
        STUDY.format("booster_compat") + "a surrogate of the accelerator, five seeds",
        ends_of_curves,
    ),
)


def limit_of(raw: Raw) -> str:
    """Return the table of training against a C program, empty before it is measured."""
    kinds = [f"{units} {kind}" for units in (64, 32) for kind in ("rollout", "training")]
    rows = []
    for kind in kinds:
        found = [of_rounds(raw, "limit", f"{who} {kind}") for who in ("C", "warprun", "share")]
        rows += [(kind, *(each.text(".3g") for each in found if each))] if all(found) else []
    return table(["units, work", "C program", "warprun", "warprun / C"], rows) if rows else ""


def memory_of(found: Raw) -> str:
    """Return the table of recurrent PPO by several packages, from what scripts/bench/peers.py wrote; empty before it is measured."""
    rows = []
    for each in found.get("throughput", []):
        who, environments, settings, scale = each["name"], f"{each['n_envs']:,}", each["settings"], 1e-3
        if "wall_flops" in each:  # its rounds are multiply-adds
            who, environments, settings = "arithmetic limit", "", f"{each['wall_flops'] / 1e9:.0f} GFLOP/s"
            scale *= 2.0 * each["wall_median"] / each["wall_flops"]
        low, high = (f"{scale * rate:.3g}" for rate in (min(each["wall"]), max(each["wall"])))
        steps = f"{each['wall_median'] / 1e3:.3g} [{low}, {high}]"
        ratio = "" if who == "warprun" else f"{each['wall_ratio']:.3g} x"
        rows.append((each["work"].removeprefix("lstm-"), who, environments, settings, steps, f"{each['cpu_median'] / 1e3:.3g}", ratio))
    if not rows:
        return ""
    titles = ["horizon", "who", "environments", "settings", "thousand steps/s", "per CPU s", "warprun is"]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    loads = " and ".join(f"{load:.1f}" for load in found["load"])
    return (
        f"{table(titles, rows)}\nMeasured on {found['date']} on {found['machine']}; load {loads} at the start and at the end; medians of "
        f"{found['rounds']} rounds in which all take turns, with the least and the largest. {versions}.\n"
    )


HEADLINES = {
    "CartPole, simulation without a policy": ("cartpole a2c 10000", "simulation"),
    "CartPole, rollouts": ("cartpole a2c 10000", "rollout"),
    "CartPole, A2C": ("cartpole a2c 10000", "training"),
    "CartPole, PPO with its tuned settings, one epoch of 16 minibatches": ("cartpole ppo 10000", "training"),
    "Acrobot, A2C": ("acrobot a2c 10000", "training"),
    "catalysis, 2,000 environments, A2C": ("catalysis a2c 2000", "training"),
}


def headlines(raw: Raw) -> str:
    """Return the table of the page on performance, empty before it is measured."""
    found = {work: of_rounds(raw, "throughput", *keys) for work, keys in HEADLINES.items()}
    rows = [(work, interval.text(".3g")) for work, interval in found.items() if interval]
    return table(["work", "million environment steps/s"], rows) if rows else ""


DECIDING = {
    "exarl": "EXARL 7, 9 and 12",
    "catalysis": "elastic band, transition state",
    "catalysis_published": "published settings",
    "catalysis_envs": "figure 4",
    "covid": "two-level agents",
    "booster_compat": "figure 20",
}
"""Study of trainings -> what it decides."""


def trainings_of(raw: Raw) -> str:
    """Return a line for every study of trainings: where its runs were made, and at which load."""
    written = ""
    for name, what in DECIDING.items():
        runs = [run for own in runs_of(STUDIES[name], raw["results"].get(name, {})).values() for run in own if "machine" in run]
        loads = [run["load"] for run in runs if "load" in run]
        for machine in dict.fromkeys(run["machine"] for run in runs):
            count, failed = sum(run["machine"] == machine for run in runs), sum("failed" in run for run in runs)
            written += (
                f"\n`{name}` ({what}): {machine}. {count} runs, {failed} failed; load average {min(loads):.1f} to {max(loads):.1f}.\n"
            )
    return written


def table_of(raw: Raw) -> str:
    """Return the table of all claims, and the machines that it was measured on."""
    rows = [(claim.name, claim.text, claim.done, *claim.answer(raw)) for claim in CLAIMS]
    written = table(["claim", "what was published, on what", "what is done here", "found here", "verdict"], rows)
    for name, own in raw["reproduce"].items():
        parts = own["parts"].values()
        most = max((part["foreign_cores"] for part in parts if part["quiet"]), default=0.0)
        written += (
            f"\n`{name}`: {described(own['machine'])}. Load average before at most "
            f"{max(own['load_before'])}, other processes at most {most:.2f} of a core; {sum(not part['quiet'] for part in parts)} of "
            f"{len(parts)} parts not quiet and left out.\n"
        )
    return written + trainings_of(raw)
