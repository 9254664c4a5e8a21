"""What learning runs and the claims that need no ranks say: verdicts, and the numbers behind them."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np

from exarl.answers import REFUTED, REPRODUCED, Answer, Kept
from exarl.inference import STEP_MS, WIDTHS
from exarl.learning import MANY_STEPS
from exarl.small import ROUNDS


def generation(kept: Kept) -> Answer:
    """Answer claim 4."""
    found = kept["small"]["generation"]
    alone, four = found["one at a time, 1"], found["one at a time, 4"]
    share, batched = alone / (alone + found["step"]), found["together"]
    return Answer(
        f"{REPRODUCED if alone / four > 2.0 else f'not {REPRODUCED}'} for one at a time on {found['cores']:.0f} cores; a batch leaves "
        + ("nothing to move" if batched < 0.1 * alone else "something to move"),
        f"targets of 32 experiences one at a time: {1e3 * alone:.1f} ms, {share:.0%} of an update; 2 processes "
        f"{alone / found['one at a time, 2']:.2f} x, 4 processes {alone / four:.2f} x. In one batch: {1e3 * batched:.2f} ms, "
        f"{alone / batched:.0f} x, {batched / (batched + found['step']):.0%} of an update",
    )


def score(run: dict[str, Any]) -> float:
    """Return the mean of a learning curve over environment steps; records may lie apart unevenly."""
    steps, values = zip(*run["curve"], strict=True)
    return float(np.interp(np.linspace(0.0, steps[-1], 200), steps, values).mean())


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean, and its standard error."""
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5


def scores(kept: Kept, name: str) -> tuple[float, float]:
    """Return the mean over seeds of the mean of the learning curve, and its standard error."""
    return mean_and_error([score(run) for run in kept["learning"][name].values()])


def apart(low: tuple[float, float], high: tuple[float, float]) -> bool:
    """Return whether one mean is below another by more than two standard errors of their difference."""
    return high[0] - low[0] > 2.0 * (low[1] ** 2 + high[1] ** 2) ** 0.5


def convergence(kept: Kept) -> Answer:
    """Answer claim 7."""
    found = {learners: scores(kept, f"7 L={learners}") for learners in (1, 2, 4, 8)}
    cells = "; ".join(f"L={learners}: {mean:.0f} ± {error:.0f}" for learners, (mean, error) in found.items())
    seeds = len(kept["learning"]["7 L=1"])
    return Answer(
        REPRODUCED if apart(found[8], found[1]) else f"{REFUTED}: no difference between L = 1 and 8 beyond two standard errors",
        f"mean return of all training episodes in {MANY_STEPS:,} env_steps, {seeds} seeds: {cells}",
    )


def windows(kept: Kept) -> Answer:
    """Answer claim 9."""
    near, far = scores(kept, "9 range"), scores(kept, "9 random")
    lags = {name: statistics.mean(run["lag"] for run in kept["learning"][f"9 {name}"].values()) for name in ("range", "random")}
    verdict = REPRODUCED if apart(far, near) else f"{REFUTED}: no difference beyond two standard errors"
    seeds = len(kept["learning"]["9 range"])
    return Answer(
        verdict,
        f"mean return of all training episodes, {seeds} seeds, L = 4, A = 8: range {near[0]:.0f} ± {near[1]:.0f}, "
        f"random {far[0]:.0f} ± {far[1]:.0f}; mean lag {lags['range']:.1f} and {lags['random']:.1f}",
    )


def collisions(kept: Kept) -> Answer:
    """Answer claim 10."""
    found = kept["small"]["collisions"]
    cells = "; ".join(
        f"L={learners}: {own['counted']:.3f} ({own['chance']:.3f}), redundant {own['redundant']:.3f} ({own['expected']:.3f})"
        for learners, own in found.items()
    )
    agree = all(abs(own["counted"] - own["chance"]) <= 3.0 * sigma(own["chance"]) for own in found.values())
    return Answer(
        f"{REPRODUCED}, but they cost little there" if agree else f"{REFUTED}: not within 3 sigma",
        f"A = 16, share of updates with a collision, counted (closed form): {cells}. At L = 25 % of A {found['4']['counted']:.0%} of the "
        f"updates have one, and {found['4']['redundant']:.0%} of the reads are redundant",
    )


def sigma(chance: float) -> float:
    """Return the standard deviation of the counted share of rounds."""
    return math.sqrt(chance * (1.0 - chance) / ROUNDS)


def central(kept: Kept) -> Answer:
    """Answer claim 11."""
    found, cells, ratios = kept["11"], [], {}
    for size in WIDTHS:
        copies, shared = found[f"{size} async"], found[f"{size} seed"]
        ratios[size] = shared["steps_per_s"] / copies["steps_per_s"]
        cells.append(
            f"{size} parameters: {copies['steps_per_s']:.0f} and {shared['steps_per_s']:.0f} steps/s, {copies['bytes_per_step']:,.0f} and "
            f"{shared['bytes_per_step']:.0f} bytes per step"
        )
    faster = [size for size, ratio in ratios.items() if ratio > 1.0]
    return Answer(
        REPRODUCED if abs(ratios["10 k"] - 1.0) < 0.2 else f"{REFUTED}: {ratios['10 k']:.2f} x",
        f"`async` and `seed`, 4 actors, step {STEP_MS:.0f} ms: {'; '.join(cells)}. "
        + (f"`seed` is faster from {faster[0]} parameters on" if faster else "`seed` is faster at none of these sizes"),
    )


def cartpole(kept: Kept) -> Answer:
    """Answer claim 12."""
    found = {name: [run["last"] for run in kept["learning"][f"12 {name}"].values()] for name in ("plain", "exarl_vtrace", "vtrace")}
    solved = {name: sum(value >= 195.0 for value in values) for name, values in found.items()}
    cells = []
    for name, values in found.items():
        mean, error = mean_and_error(values)
        cells.append(f"{name} {mean:.0f} ± {error:.0f} ({', '.join(f'{value:.0f}' for value in sorted(values))})")
    holds = min(solved["exarl_vtrace"], solved["vtrace"]) > solved["plain"]
    return Answer(
        REPRODUCED if holds else REFUTED,
        f"8 actors, `async`, mean return of the last 100 of 1,000 episodes, every seed: {'; '.join(cells)}",
    )
