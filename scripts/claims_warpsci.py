"""The claims, figures and tables of WarpSci (Lan et al. 2024), and what the raw numbers of this repository say of each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from itertools import pairwise

import gpu_tables
import numpy as np
from evidence import (
    CAMPAIGN,
    CONTRADICTED,
    IN_KIND,
    LEAST,
    NOT_YET,
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
    of_rounds,
    over_seeds,
    quiet,
    ratios,
    verdict,
)

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
        return Found("–", NOT_YET)
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
            return Found("–", NOT_YET)
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
        rate(8.6, "A2C 64-64", 10_000, "throughput", "cartpole a2c 10000", "training"),
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
