"""The published claims of WarpSci (Lan et al. 2024) and EXARL (LA-UR-21-27928), and what the raw numbers of this repository say of each."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

import gpu_tables
import numpy as np
from common import table
from evidence import (
    CAMPAIGN,
    CONTRADICTED,
    IN_KIND,
    LEAST,
    NOT_YET,
    NOTHING,
    REPRODUCED,
    STUDY,
    UNDECIDED,
    UNTESTABLE,
    Claim,
    Found,
    Interval,
    Raw,
    conditions,
    interval,
    kept_runs,
    of_rounds,
    over_seeds,
    quiet,
    ratios,
    untestable,
    verdict,
)
from exarl.runs import CASES

# WarpSci --------------------------------------------------------------------------------------------------------------

LATTICE = np.array([20, 18, 0])
"""Cells of the catalysis grid in x and y, which are periodic."""
NEAR = 1
"""Cells in each direction within which transition states are the same."""
A100 = "one NVIDIA A100"
ON_A_GPU = "; `python scripts/gpu_check.py bench`: five rounds on one GPU"
THROUGHPUT = CAMPAIGN.format("throughput") + "six rounds, two threads" + ON_A_GPU
FEW_ROUNDS = " (three rounds)"
SIZES = (4, 20, 100, 500)
"""Environments of figure 4."""
GROWING = (10, 100, 1000, 10_000)
"""Environments of figure 2a."""
CURVES = CAMPAIGN.format("warpsci_2bc") + "A2C, 10 to 10,000 environments, 4 s of training, eight seeds"
COVID = CAMPAIGN.format("covid_speed") + "six rounds"
COVID_RUNS = STUDY.format("learning", "benchmarks/environments.md#the-covid-19-economy") + "54,000 steps, a tenth; five seeds"
PATHS = (
    STUDY.format("tuned settings", "benchmarks/environments.md#catalysis")
    + "PPO with the settings of conf/tuned, five seeds each; not the published settings"
)
SHARE = "of 600 million published steps (1.2 million episodes of up to 500 steps)"
CONVERGENCE = (
    STUDY.format("more environments", "benchmarks/environments.md#numbers-of-environments")
    + f"the published settings, 12 million steps, 2 % {SHARE}; five seeds, equal environment steps"
)


def rate(published: float, work: str, n_envs: int, name: str, *keys: str) -> Callable[[Raw], Found]:
    """Return the answer of a rate of one A100, million steps/s: that of two cores decides nothing, enough rounds on another GPU do."""

    def answer(raw: Raw) -> Found:
        found, decided = of_rounds(raw, name, *keys), UNTESTABLE
        cells = [f"{found.scaled(1e-6 if name == 'covid_speed' else 1.0).text('.4g')} million steps/s, two cores"] if found else []
        for gpu, card in raw.get("gpu", {}).items():
            if (median := gpu_tables.rate(card, work, n_envs)) is None:
                continue
            own = gpu_tables.rounds(card, work, n_envs)
            cells.append(f"{own.text('.4g') if own else f'{median:.4g}'} million steps/s, {gpu}{'' if own else FEW_ROUNDS}")
            decided = IN_KIND if own and own.low > published else NOT_YET if decided == UNTESTABLE and not own else decided
        return Found("; ".join(cells) or "–", decided)

    return answer


def growth(raw: Raw) -> Found:
    """Return how throughput grows from 10 to 10,000 environments: on two cores from end to end, on a GPU each number beside the next."""
    cells, verdicts = [], []
    for env, work in (("cartpole", "A2C 64-64"), ("acrobot", "Acrobot, A2C 64-64")):
        keys = [(f"{env} a2c {size}", "training") for size in (10_000, 10)]
        found = ratios(raw, "throughput", *keys)
        cells += [f"{env} {found.text('.2f')} x on two cores"] if found else []
        for gpu, card in raw.get("gpu", {}).items():
            medians = {size: gpu_tables.rate(card, work, size) for size in GROWING}
            known = [f"{size:,}: {median:.3g}" for size, median in medians.items() if median]
            if len(known) < len(GROWING):
                continue
            own = [each for size in GROWING if (each := gpu_tables.rounds(card, work, size))]
            shown = "; ".join(known)
            cells.append(f"{env}, {gpu}: {shown} million steps/s{'' if len(own) == len(GROWING) else FEW_ROUNDS}")
            grows = len(own) == len(GROWING) and all(fewer.high < more.low for fewer, more in pairwise(own))
            verdicts.append(verdict(grows, False) if len(own) == len(GROWING) else NOT_YET)
    best = next((each for each in (IN_KIND, UNDECIDED, NOT_YET) if each in verdicts), UNTESTABLE)
    return Found("; ".join(cells) or "–", best)


def times_to_bar(raw: Raw, env: str) -> dict[int, Interval]:
    """Return the seconds of training until the bar is reached, by number of environments; never is infinite."""
    found: dict[int, Interval] = {}
    for size in GROWING:
        runs = quiet(raw, "warpsci_2bc", f"{env} {size} ").values()
        own = interval([math.inf if run["s"] is None else run["s"] for run in runs])
        found |= {size: own} if own else {}
    return found


def sooner(env: str) -> Callable[[Raw], Found]:
    """Return the answer of figure 2b or 2c: more environments reach a return sooner."""

    def answer(raw: Raw) -> Found:
        found = times_to_bar(raw, env)
        if len(found) < 4:
            return NOTHING
        pairs = list(zip(found.values(), list(found.values())[1:], strict=False))
        number = "; ".join(f"{size:,}: {own.text('.3g')} s" for size, own in found.items()) + ", two cores"
        for gpu, card in raw.get("gpu", {}).items():
            rows = [row for row in gpu_tables.found(card, "curves") if row["work"] == env and None not in row["s"]]
            medians = "; ".join(f"{row['n_envs']:,}: {statistics.median(row['s']):.3g} s" for row in rows)
            number += f"; {medians}, {gpu} (three seeds)" if medians else ""
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
        return NOTHING
    number = "gain over untrained policies: " + "; ".join(f"{group} {own.text('.1f')}" for group, own in known.items())
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
            return NOTHING
        cells.append(f"{scenario}: " + ", ".join(f"{size}: {own.text('.1%')}" for size, own in zip(SIZES, known, strict=True)))
        pairs += list(pairwise(known))
    better = all(fewer.high < more.low for fewer, more in pairs)
    return Found("episodes that reach the goal, mean over training: " + "; ".join(cells), verdict(better, False))


def below_the_band(raw: Raw) -> Found:
    """Return the highest energy of learned paths beside that of the elastic band which begins as a straight line; `lh` decides."""
    cells, decided = [], NOT_YET
    for case in ("lh", "er1"):
        reached = [run for run in kept_runs(raw, "catalysis", case) if run["last/path/reaches_goal"]]
        own = interval([run["last/path/highest_energy"] for run in reached])
        if not own:
            return NOTHING
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
            return NOTHING
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


OF_WARPSCI = (
    Claim("WarpSci, figure 1", "how the framework is built: no result", "–", untestable),
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
        rate(8.6, "A2C 64-64", 10_000, "throughput", "cartpole a2c 10000", "training"),
    ),
    Claim("WarpSci, figure 2b", f"CartPole: more environments reach a return sooner ({A100})", CURVES, sooner("cartpole")),
    Claim("WarpSci, figure 2c", f"Acrobot: more environments reach a return sooner ({A100})", CURVES, sooner("acrobot")),
    Claim(
        "WarpSci, figure 3",
        f"COVID-19 economy: the time of rollouts and training grows about linearly with environments, 60 to 1,000 ({A100})",
        COVID,
        untestable,
    ),
    Claim(
        "WarpSci, 0.12 M",
        f"COVID-19 economy: 0.12 million steps/s with 1,000 environments and training ({A100})",
        COVID + ON_A_GPU,
        rate(0.12, "COVID-19, PPO", 1_000, "covid_speed", "training 1000, two threads"),
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
        rate(0.95, "catalysis, A2C", 2_000, "throughput", "catalysis a2c 2000", "training"),
    ),
    Claim("WarpSci, elastic band", "catalysis: learned paths lie below those of the nudged elastic band", PATHS, below_the_band),
    Claim(
        "WarpSci, transition state",
        "catalysis: learned paths of LH and ER share a transition state",
        PATHS + "; the highest point of a path that both neighbours lie below",
        shared_transition_state,
    ),
)

# EXARL ----------------------------------------------------------------------------------------------------------------

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


def of_ranks(raw: Raw) -> str:
    """Return what the runs of sleeping ranks did, as a table."""
    rows = []
    for case in CASES:
        rate, lag, waiting = (ranks(raw, case, key) for key in ("rate", "lag", "learner_waiting"))
        if rate and lag and waiting:
            rows.append((f"`{case}`", rate.text(".2f"), f"{lag.median:.1f}", f"{waiting.median:.0%}"))
    return table(("run", "rollouts/s", "lag", "learner waits"), rows)


def bounded(
    text: str, find: Callable[[Raw], Interval | None], least: float, most: float = math.inf, published: float | None = None
) -> Callable[[Raw], Found]:
    """Return the answer of a claim that a ratio lies within bounds, and is `published` if the claim has its size."""

    def answer(raw: Raw) -> Found:
        found = find(raw)
        if not found:
            return NOTHING
        number = f"{text}: {found.text('.2f')}"
        if published and least < found.low <= published <= found.high:
            return Found(number, REPRODUCED)
        return Found(number, verdict(found.within(least, most), found.beyond(least, most)))

    return answer


def faster(several: str, one: str, published: float | None = None) -> Callable[[Raw], Found]:
    """Return the answer of a claim that a run has a higher rate than another one, `published` times it if it has that size."""
    return bounded(f"rate of `{several}` by that of `{one}`", lambda raw: compared(raw, several, one), 1.0, published=published)


def repeated(raw: Raw) -> Found:
    """Return how much of the reads of ranks is a repetition. What that costs in learning is not measured."""
    every, unique = ranks(raw, "random 4:8"), ranks(raw, "random 4:8", "unique")
    if not every or not unique:
        return NOTHING
    return Found(f"repetitions of `random 4:8`: {1 - unique.median / every.median:.1%}", UNDECIDED)


def learned(key: str, higher: str, lower: str) -> Callable[[Raw], Found]:
    """Return the answer of a claim that one case of the study `exarl` has higher returns than another one."""

    def answer(raw: Raw) -> Found:
        both = [over_seeds(raw, "exarl", case, key) for case in (higher, lower)]
        if not both[0] or not both[1]:
            return NOTHING
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
        return NOTHING
    number = "; ".join(f"{agent}: {own.text('.2f')}" for agent, own in known.items())
    within, beyond = (all(test(own, *ENDS) for own in known.values()) for test in (Interval.within, Interval.beyond))
    return Found(number, verdict(within, beyond))


OF_EXARL = (
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
    Claim("EXARL 3", "queue of one learner 25 % better than async", RANKS + "; with one actor", faster("queue 1:1", "async 1:1", 1.25)),
    Claim(
        "EXARL 3, saturation",
        "more actors of one learner gain nothing from some number on",
        RANKS,
        bounded("rate of `queue 1:8` by that of `queue 1:2`", lambda raw: compared(raw, "queue 1:8", "queue 1:2"), 0.0, SATURATED),
    ),
    Claim(
        "EXARL 4",
        "targets of experiences computed on idle ranks: 3.30 times as fast with 4 processes; they were 90 % of the time",
        "– (needs at least 5 cores)",
        untestable,
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
    Claim("EXARL 8", "RMA scales to 1,024 processes, better than async with several learners", "–", untestable),
    Claim("EXARL 9", "the range window converges faster than the random one", ACTORS, learned("training/return", "9 range", "9 random")),
    Claim("EXARL 10", "collisions matter from a quarter as many learners as actors", RANKS, repeated),
    Claim(
        "EXARL 11",
        "central inference (SEED) about as fast as copies of the policy for a small model",
        CAMPAIGN.format("exarl_inference") + "4 actors",
        bounded(
            "`seed` by `async`, 10,000 parameters",
            lambda raw: ratios(raw, "exarl_inference", ("10 k seed", "steps_per_s"), ("10 k async", "steps_per_s")),
            *ABOUT,
        ),
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

# The page -------------------------------------------------------------------------------------------------------------

CLAIMS = (*OF_WARPSCI, *OF_EXARL)
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
        runs = [run for own in raw["results"].get(name, {}).values() for run in own.values() if "machine" in run]
        loads = [run["load"] for run in runs if "load" in run]
        for machine in dict.fromkeys(run["machine"] for run in runs):
            count, failed = sum(run["machine"] == machine for run in runs), sum("failed" in run for run in runs)
            load = f"; load average {min(loads):.1f} to {max(loads):.1f}" if loads else ""
            written += f"\n`{name}` ({what}): {machine}. {count} runs, {failed} failed{load}.\n"
    return written


def table_of(raw: Raw) -> str:
    """Return the table of all claims, and the machines that it was measured on."""
    rows = [(claim.name, claim.text, claim.done, *claim.answer(raw)) for claim in CLAIMS]
    written = table(["claim", "what was published, on what", "what is done here", "found here", "verdict"], rows)
    return written + "".join(f"\n`{name}`: {conditions(raw, name)}" for name in raw["reproduce"]) + trainings_of(raw)
