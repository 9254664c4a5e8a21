"""The summary of a run at its end, and notes on its curves if it does not learn. No torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warprun.config.schema import Config
from warprun.runs import diagnosis
from warprun.runs.diagnosis import LEAST_RECORDS, OF_A_RUN_THAT_IMPROVED, SIGNS, Curves, finite
from warprun.runs.paired import Paired
from warprun.spec import Spec

SPEED = "perf/env_steps_per_s"
NO_BETTER = "no evaluation was better than the first one"


class Course(NamedTuple):
    """The measurements of a run so far."""

    metrics: Mapping[str, float]
    """The last value of every tag."""
    history: Sequence[Mapping[str, float]]
    """The records in their order."""
    spec: Spec
    returns: str
    """Name, below `train/` and `eval/`, of the return that decides whether the environment is solved."""
    config: Config
    solved: bool
    paired: Paired | None = None
    """The best checkpoint beside the last policy, if its evaluation was clearly better than the one at the end."""

    @property
    def evaluations(self) -> list[Mapping[str, float]]:
        """The records that have an evaluation."""
        return [row for row in self.history if f"eval/{self.returns}" in row]

    @property
    def reaches_bar(self) -> bool:
        """Whether the last evaluation reached `env.solved_at`; a run that goes on counts as solved only at its end."""
        bar = self.config.env.solved_at
        return bar is not None and self.metrics.get(f"eval/{self.returns}", -math.inf) >= bar

    @property
    def curves(self) -> list[Curves]:
        """The records of each group."""
        return [Curves(self.history, group, self.config, self.spec) for group in self.spec.groups]

    @property
    def is_level(self) -> bool:
        """Whether nothing got better, for any group."""
        return all(curves.is_level for curves in self.curves)

    @property
    def learns(self) -> bool:
        """Whether a run without `env.solved_at` gets better, the only sign that it learns, or has not shown yet that it does not."""
        is_open = len(self.evaluations) < LEAST_RECORDS or any(curves.improved for curves in self.curves)
        return self.config.env.solved_at is None and is_open

    @property
    def group(self) -> str | None:
        """Of several groups the one whose return decides what is best and what is solved."""
        return self.returns.rpartition("/")[0] or None

    @property
    def best(self) -> float:
        """The best return of an evaluation."""
        return self.metrics.get("eval/best_return", -math.inf)


def summarize(course: Course) -> dict[str, float | str]:
    """Return the lines of a run's summary, by name."""
    metrics, solved_at = course.metrics, course.config.env.solved_at
    lines: dict[str, float | str] = {}
    if solved_at is not None and f"eval/{course.returns}" in metrics:
        answer = "yes" if course.solved else "no"
        lines["solved"] = f"{answer}: env.solved_at={solved_at:g}{_doubt(course, solved_at)}{_reached_before(course)}"
    for tag in (t for t in metrics if t.startswith("eval/") and t.endswith("return") and t != "eval/best_return"):
        lines[tag] = f"{measured(metrics[tag], metrics.get(f'{tag}_stderr'))} ({metrics['eval/episodes']:,.0f} fresh episodes)"
    if "eval/best_return" in metrics:
        of_group = f" of group {course.group} (eval.group)" if course.group else ""
        lines["eval/best_return"] = f"{course.best:.4g} at {metrics['eval/best_env_steps']:,.0f} env_steps{of_group}{_bias(course)}"
    lines |= {tag: value for tag, value in metrics.items() if tag.startswith("train/") and tag.endswith("return")}
    lines |= {tag: metrics[tag] for tag in ("eval/episode_length",) if tag in metrics}
    speed = typical_speed(course.history)
    if speed is not None:
        lines[SPEED] = speed
    notes = [*_on_evaluations(course), *notes_on_learning(course), *_on_best(course)]
    return lines | {("note" if n == 0 else f"note {n + 1}"): note for n, note in enumerate(notes)}


def _doubt(course: Course, solved_at: float) -> str:
    """Return why a run whose last evaluation reached the bar is not solved; empty if it did not, or is."""
    if course.solved or not course.reaches_bar:
        return ""
    tag = f"eval/{course.returns}"
    if course.metrics[tag] - 2.0 * course.metrics.get(f"{tag}_stderr", math.inf) < solved_at:
        return ", less than two standard errors below the return"
    return ", which a final evaluation has to confirm"


def notes_on_learning(course: Course) -> list[str]:
    """Return what the curves of a run show at its end, with things to try; no signs if it is solved, or has no bar and gets better."""
    if course.solved or course.reaches_bar:
        return []
    signs = [] if course.learns else [note for curves in course.curves for note in diagnosis.notes(curves)]
    is_told = course.is_level and not list(_on_best(course))  # which says more: that the policy became worse
    return ([NO_BETTER + (", for any group" if course.group else "")] if is_told else []) + signs


def notes_halfway(course: Course) -> list[str]:
    """Return the same of a run that goes on; of curves that get better only what is wrong all the same."""
    if course.reaches_bar or course.learns:
        return []
    chosen = [(curves, OF_A_RUN_THAT_IMPROVED if curves.improved else SIGNS) for curves in course.curves]
    return [note for curves, signs in chosen for note in diagnosis.notes(curves, signs)]


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


def _reached_before(course: Course) -> str:
    """Return that the best checkpoint reaches `env.solved_at` where the last policy does not, if the same episodes show it."""
    bar, more = course.config.env.solved_at, course.paired.more(course.group) if course.paired else None
    if bar is None or course.reaches_bar or not course.paired or not more or more.mean < 0.0:
        return ""
    best = course.paired.gain(course.group).best
    return f" (the last policy; the best checkpoint has {measured(*best)})" if best.mean >= bar else ""


def _on_evaluations(course: Course) -> Iterator[str]:
    metrics = course.metrics
    if metrics.get("env/resets_on_nan"):
        yield (
            f"{metrics['env/resets_on_nan']:,.0f} resets on NaN while training (env.on_nan=reset): the episodes that they ended count"
            " neither in train/return nor in train/episodes"
        )
    if metrics.get("eval/resets_on_nan"):
        yield (
            f"{metrics['eval/resets_on_nan']:,.0f} resets on NaN while the {metrics['eval/episodes']:,.0f} episodes of the evaluation were"
            " played (env.on_nan=reset): the return of an episode counts up to its first reset"
        )
    if metrics.get("eval/unfinished"):
        yield (
            f"{metrics['eval/unfinished']:.0f} of {metrics['eval/episodes']:.0f} episodes were cut after eval.max_steps steps:"
            " their returns are incomplete"
        )


def _on_best(course: Course) -> Iterator[str]:
    """Yield the note that the best checkpoint is better than the last one, if the same episodes show it."""
    paired = course.paired
    more = paired.more(course.group) if paired else None
    if not paired or not more or more.mean < 0.0:
        return
    gains = [(name, paired.gains[name]) for name in sorted(paired.gains, key=lambda name: name != course.group)]
    told = [
        f"{f'group {name} ' if course.group else ''}{measured(*gain.best)} in the place of {measured(*gain.last)}" for name, gain in gains
    ]
    yield (
        f"the best checkpoint, after {paired.env_steps:,} env_steps, is better than the last one: over the same {paired.episodes:,} fresh"
        f" episodes it returns {', '.join(told)}; checkpoint=best evaluates it"
    )


def _bias(course: Course) -> str:
    """Return why the best of several evaluations is too high, and its return in fresh episodes if these were played."""
    returns = [row[f"eval/{course.returns}"] for row in course.evaluations]
    if len(returns) < 2 or returns[-1] >= course.best:
        return ""
    said = f", the highest of {len(returns)} evaluations and so biased upwards"
    if not course.paired:
        return said
    fresh = course.paired.gain(course.group).best
    return f"{said}; {measured(*fresh)} over the {course.paired.episodes:,} fresh episodes"
