"""The summary at the end of a run: its returns, and notes on its curves if it did not learn. No torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from warprun.config.schema import Config
from warprun.runs import diagnosis
from warprun.runs.diagnosis import LEAST_RECORDS, Curves, finite
from warprun.spec import Spec

SPEED = "perf/env_steps_per_s"
NO_BETTER = "no evaluation was better than the first one"


def summarize(
    metrics: Mapping[str, float],
    history: Sequence[Mapping[str, float]],
    spec: Spec,
    returns: str,
    config: Config,
    solved: bool,
) -> dict[str, float | str]:
    """Return the lines of a run's summary, by name.

    `metrics` has the last value of every tag, `history` the records in their order. `returns` is the name, below `train/` and `eval/`, of
    the return that decides whether the environment is solved.
    """
    solved_at = config.env.solved_at
    lines: dict[str, float | str] = {}
    evaluated = f"eval/{returns}" in metrics
    if solved_at is not None and evaluated:
        lines["solved"] = f"{'yes' if solved else 'no'}: env.solved_at={solved_at:g}"
    for tag in (t for t in metrics if t.startswith("eval/") and t.endswith("return") and t != "eval/best_return"):
        lines[tag] = f"{measured(metrics[tag], metrics.get(f'{tag}_stderr'))} ({metrics['eval/episodes']:,.0f} fresh episodes)"
    if "eval/best_return" in metrics:
        lines["eval/best_return"] = f"{metrics['eval/best_return']:.4g} at {metrics['eval/best_env_steps']:,.0f} env_steps"
    lines |= {tag: value for tag, value in metrics.items() if tag.startswith("train/") and tag.endswith("return")}
    lines |= {tag: metrics[tag] for tag in ("eval/episode_length",) if tag in metrics}
    speed = typical_speed(history)
    if speed is not None:
        lines[SPEED] = speed
    notes = _of_evaluations(metrics, history, returns)
    if solved and NO_BETTER in notes:  # the first one was good
        notes.remove(NO_BETTER)
    # Without env.solved_at, better evaluations are the only sign of learning: such a run needs no notes on its training.
    if not solved and (solved_at is not None or NO_BETTER in notes):
        several = len(spec.groups) > 1
        notes += [note for group in spec.groups for note in diagnosis.notes(Curves(history, group, config, spec.time_limit, several))]
    return lines | {("note" if n == 0 else f"note {n + 1}"): note for n, note in enumerate(notes)}


def typical_speed(rows: Sequence[Mapping[str, float]]) -> float | None:
    """Return the median of a run's speed in env_steps/s over its records after the first, which loads kernels; None without any.

    A run of one record has the speed of this one.
    """
    speeds = finite(rows, SPEED)
    return statistics.median(speeds[1:] or speeds) if speeds else None


def iqm(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the interquartile mean over the last axis: the mean without the lowest and the highest floor(n / 4) scores.

    Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021), section 4.3.
    """
    count = scores.shape[-1]
    cut = count // 4
    return np.asarray(np.mean(np.sort(scores, axis=-1)[..., cut : count - cut], axis=-1))


def measured(mean: float, error: float | None) -> str:
    """Return a mean with its standard error, if it has one, both rounded to the second significant digit of the error."""
    if error is None or not math.isfinite(error):
        return f"{mean:.4g}"
    digits = 1 if error == 0.0 else max(0, 1 - math.floor(math.log10(error)))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def _of_evaluations(metrics: Mapping[str, float], history: Sequence[Mapping[str, float]], returns: str) -> list[str]:
    notes = []
    tag = f"eval/{returns}"
    evaluations = [row for row in history if tag in row]
    error = max((row.get(f"{tag}_stderr", 0.0) for row in evaluations), default=0.0)
    best = metrics.get("eval/best_return", -math.inf)
    if metrics.get("eval/unfinished"):
        notes.append(
            f"{metrics['eval/unfinished']:.0f} of {metrics['eval/episodes']:.0f} episodes were cut after eval.max_steps steps:"
            " their returns are incomplete"
        )
    if evaluations and best - evaluations[-1][tag] > 2.0 * error:
        notes.append(f"the best checkpoint is better than the last one, about {best:.4g}: checkpoint=best evaluates it")
    if len(evaluations) >= LEAST_RECORDS and best - evaluations[0][tag] <= 2.0 * error:
        notes.append(NO_BETTER)
    return notes
