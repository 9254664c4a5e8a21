"""The figures of a report, each drawn by a function.

Matplotlib, of the extra `plot`, is imported with the first figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from warprun.report.compare import AXES, POINTS, Banded, Comparison, Setting
from warprun.report.runs import Run
from warprun.report.statistics import Interval, interval, median, performance_profile, probability_of_improvement
from warprun.report.style import HALF_WIDTH, LABEL, WIDTH, Style, Styles, folded, least_range, legend_shape, limits, logarithmic, row_height
from warprun.report.table import Line, unit_of_time
from warprun.runs.summary import iqm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PAIRS = 15
"""Most pairs that are all compared. If settings make more pairs, each setting is compared with the best one."""
CAPTIONS = {
    "learning": "Return during training. Lines: interquartile mean over seeds; bands: 95 % bootstrap intervals. A run that has ended keeps"
    " its last value. Wall time is that of training, without compilation. Grey: the threshold.",
    "throughput": "Environment steps per second of rollouts and updates, median over seeds, with 95 % bootstrap intervals. Dotted:"
    " throughput in proportion to the number of environments.",
    "scores": "Final return, and steps and time of training, without compilation, to the threshold, with 95 % bootstrap intervals over"
    " seeds. A setting half of whose runs or more do not reach the threshold has no time; an arrow: the interval has no end.",
    "profiles": "Performance profiles: the share of runs whose final return is above a value, with 95 % bootstrap intervals.",
    "improvement": "The probability that a run of the first setting has a higher final return than a run of the second, with 95 %"
    " bootstrap intervals. At 0.5 neither is better.",
}
"""Name of a figure -> its caption."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; sizes in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


class Canvas:
    """A figure with a row of panels for each environment."""

    def __init__(
        self, comparison: Comparison, columns: int, height: float, width: float = WIDTH, sharey: bool | Literal["row"] = False
    ) -> None:
        envs = comparison.envs
        self.figure = new_figure(width, height * len(envs))
        self.panels = self.figure.subplots(len(envs), columns, squeeze=False, sharey=sharey)
        for row, env in zip(self.panels, envs, strict=True):
            row[0].set_title(env, loc="left", fontweight="bold")

    def legend(self, styles: dict[str, Style], marked: bool = False) -> None:
        """Put one legend below all panels; the figure grows by its height."""
        from matplotlib.lines import Line2D

        columns, width, height = legend_shape(list(styles), self.figure.get_figwidth())
        self.figure.set_figheight(self.figure.get_figheight() + height)
        handles = [
            Line2D(
                [],
                [],
                color=style.color,
                linestyle=style.dash,
                marker=style.marker if marked else "",
                markersize=4,
                label=folded(label, width),
            )
            for label, style in styles.items()
        ]
        self.figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def learning(comparison: Comparison, bands: dict[str, list[Banded]], styles: Styles, log: bool) -> Figure:
    """Draw the return against environment steps and wall time, with bands over seeds."""
    canvas = Canvas(comparison, 2, 2.3, sharey="row")
    returns = comparison.settings[0].returns
    for env, row in zip(comparison.envs, canvas.panels, strict=True):
        for panel, axis in zip(row, AXES, strict=True):
            shown = [each for each in bands[axis] if each.setting.env == env]
            unit, scale = ("", 1.0) if axis == "env_steps" else unit_of_time([float(each.grid[-1]) for each in shown])
            for each in shown:
                style = styles[each.setting.values]
                panel.fill_between(each.grid / scale, each.band.low, each.band.high, color=style.color, alpha=0.2, linewidth=0)
                marker = style.marker if each.grid.size == 1 else ""
                panel.plot(each.grid / scale, each.band.value, color=style.color, linestyle=style.dash, marker=marker, markersize=4)
            mark_threshold(panel, comparison, env)
            if log:
                logarithmic(panel.xaxis)
            else:
                panel.set_xlim(left=0)
            panel.set_xlabel("environment steps" if axis == "env_steps" else f"training time ({unit})")
        row[0].set_ylabel(f"{'evaluation' if returns == 'eval' else 'training'} return")
        row[0].set_ylim(limits(row[0].dataLim.intervaly, least_range(comparison.of_env(env))))
    canvas.legend({comparison.label(values): style for values, style in styles.items()})
    return canvas.figure


def mark_threshold(panel: Axes, comparison: Comparison, env: str) -> None:
    """Draw the returns to reach as dashed lines."""
    for threshold in {comparison.threshold_of(setting) for setting in comparison.of_env(env)}:
        if threshold is not None:
            panel.axhline(threshold, color="0.45", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)


def throughput(comparison: Comparison, styles: Styles) -> Figure | None:
    """Draw the throughput against the number of environments, log-log; return None if fewer than two numbers are
    compared.
    """
    by = tuple(key for key in comparison.by if key != "n_envs")
    found: dict[str, dict[str, list[tuple[int, Interval, Style]]]] = {}
    for setting in comparison.settings:
        for n_envs, alike in _by_size(setting).items():
            values = tuple(value for key, value in zip(comparison.by, setting.values, strict=True) if key != "n_envs")
            label = replace(comparison, by=by).label(values)
            if alike.throughput().size:
                point = (n_envs, interval(alike.throughput(), median), styles[setting.values])
                found.setdefault(setting.env, {}).setdefault(label, []).append(point)
    if not any(len(points) > 1 for series in found.values() for points in series.values()):
        return None
    labels = list(dict.fromkeys(label for series in found.values() for label in series))
    kept: dict[str, Style] = {}
    for series in found.values():
        for label, points in series.items():
            kept.setdefault(label, points[0][2])
    if len({(style.color, str(style.dash)) for style in kept.values()}) < len(kept):
        kept = {label: list(styles.values())[n % len(styles)] for n, label in enumerate(labels)}
    canvas = Canvas(comparison, 1, 2.7, width=HALF_WIDTH)
    for env, (panel,) in zip(comparison.envs, canvas.panels, strict=True):
        _draw_throughput(panel, found.get(env, {}), kept)
    if len(kept) > 1:
        canvas.legend(kept, marked=True)
    return canvas.figure


def _by_size(setting: Setting) -> dict[int, Setting]:
    """Return the runs of a setting by their number of environments."""
    sizes: dict[int, list[Run]] = {}
    for run in setting.runs:
        n_envs = run.settings.get("n_envs")
        if isinstance(n_envs, int):
            sizes.setdefault(n_envs, []).append(run)
    return {n_envs: Setting(setting.env, setting.values, tuple(runs), setting.returns) for n_envs, runs in sorted(sizes.items())}


def _draw_throughput(panel: Axes, series: dict[str, list[tuple[int, Interval, Style]]], kept: dict[str, Style]) -> None:
    for label, points in series.items():
        points.sort(key=lambda point: point[0])
        sizes = np.array([point[0] for point in points])
        value, low, high = np.array([point[1] for point in points]).T
        errors = np.nan_to_num(np.array([value - low, high - value]))
        style = kept[label]
        panel.errorbar(
            sizes, value, errors, color=style.color, linestyle=style.dash, marker=style.marker, markersize=4, capsize=2, elinewidth=0.9
        )
    every = [(size, each.value) for points in series.values() for size, each, _ in points]
    if every:
        size, value = min(every)
        ends = np.array([size, max(size for size, _ in every)], dtype=np.float64)
        panel.plot(ends, value * ends / size, color="0.45", linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=0)
        top = max(value for _, value in every)
        panel.set_ylim(top=max(2.0 * top, panel.get_ylim()[0] * 10), bottom=0.5 * min(value for _, value in every))
    panel.set(xlabel="environments", ylabel="environment steps per second")
    panel.margins(x=0.08)
    logarithmic(panel.xaxis)
    logarithmic(panel.yaxis)
    panel.set_xticks(sorted({size for size, _ in every}))
    panel.xaxis.set_major_formatter("{x:,.0f}")


def scores(comparison: Comparison, found: Sequence[Line], styles: Styles) -> Figure:
    """Draw final returns and times to the threshold of all settings, as points with intervals."""
    reached = any(line.reached and math.isfinite(line.reached.seconds.value) for line in found)
    labels = {line.setting.values: folded(comparison.label(line.setting.values), LABEL) for line in found}
    step = row_height(labels.values())
    height = 0.65 + step * max(len(comparison.of_env(env)) for env in comparison.envs)
    canvas = Canvas(comparison, 4 if reached else 2, height, sharey="row")
    for env, row in zip(comparison.envs, canvas.panels, strict=True):
        shown = [line for line in found if line.setting.env == env]
        unit, scale = unit_of_time([line.reached.seconds.value for line in shown if line.reached])
        columns: list[tuple[str, list[Interval]]] = [
            (f"final return\n({name})", [line.final[name] for line in shown]) for name in ("IQM", "median")
        ]
        if reached:
            columns += [
                ("env steps to\nthreshold", [line.reached.env_steps if line.reached else _UNKNOWN for line in shown]),
                (
                    f"training time to\nthreshold ({unit})",
                    [_scaled(line.reached.seconds, scale) if line.reached else _UNKNOWN for line in shown],
                ),
            ]
        ends = [end for _, intervals in columns[:2] for each in intervals for end in each if math.isfinite(end)]
        returns = limits(ends, least_range(comparison.of_env(env)))
        for panel, (name, intervals) in zip(row, columns, strict=True):
            _draw_points(panel, intervals, [styles[line.setting.values] for line in shown], returns if "return" in name else None)
            panel.set_xlabel(name)
        row[0].set_yticks(range(len(shown)), [labels[line.setting.values] for line in shown])
        row[0].set_ylim(len(shown) - 0.5, -0.5)
    return canvas.figure


_UNKNOWN = Interval(math.nan, math.nan, math.nan)


def _scaled(each: Interval, scale: float) -> Interval:
    return Interval(*(value / scale for value in each))


def _draw_points(panel: Axes, intervals: Sequence[Interval], styles: Sequence[Style], shown: tuple[float, float] | None) -> None:
    """Draw one interval in each row, on an axis with the limits `shown`; None: from 0 to the largest end."""
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)
    left, right = shown or (0.0, 1.1 * max((end for each in intervals for end in each if math.isfinite(end)), default=0.0) or 1.0)
    panel.set_xlim(left, right)
    panel.locator_params(axis="x", nbins=4)
    for place, (each, style) in enumerate(zip(intervals, styles, strict=True)):
        if not math.isfinite(each.value):
            continue
        if not math.isnan(each.low):
            panel.plot([each.low, min(each.high, right)], [place, place], color=style.color, linewidth=4, alpha=0.35, solid_capstyle="butt")
        if math.isinf(each.high):
            panel.plot(right, place, marker=">", markersize=4, color=style.color, clip_on=False)
        panel.plot(each.value, place, marker=style.marker, markersize=5, color=style.color, linestyle="", clip_on=False)


def profiles(comparison: Comparison, styles: Styles) -> Figure:
    """Draw performance profiles of the final returns."""
    canvas = Canvas(comparison, 1, 2.4, width=HALF_WIDTH)
    for env, (panel,) in zip(comparison.envs, canvas.panels, strict=True):
        settings = comparison.of_env(env)
        every = np.unique(np.concatenate([setting.final() for setting in settings]))
        right = every[-1]  # beyond it a profile would show returns that may not exist
        left = min(limits((every[0], right), least_range(settings))[0], right - least_range(settings))
        # A profile changes at final returns only; of many, so many that the eye sees no difference.
        every = every[np.unique(np.linspace(0, len(every) - 1, POINTS).round().astype(int))]
        thresholds = np.array([left, *every])
        for setting in settings:
            style, profile = styles[setting.values], performance_profile(setting.final(), thresholds)
            panel.fill_between(thresholds, profile.low, profile.high, color=style.color, alpha=0.15, linewidth=0, step="post")
            panel.step(thresholds, profile.value, where="post", color=style.color, linestyle=style.dash)
        panel.set(xlabel=f"final {settings[0].returns} return τ", ylabel="share of runs above τ", xlim=(left, right), ylim=(-0.03, 1.03))
    canvas.legend({comparison.label(values): style for values, style in styles.items()})
    return canvas.figure


def improvements(comparison: Comparison) -> list[tuple[tuple[object, ...], tuple[object, ...], Interval]]:
    """Return pairs of combinations, and the probability that the first is better over the environments that both have."""
    finals = {(setting.env, setting.values): setting.final() for setting in comparison.settings}
    kinds = comparison.kinds
    pairs = [(one, other) for n, other in enumerate(kinds) for one in kinds[n + 1 :]]
    if len(pairs) > MOST_PAIRS:
        best = max(kinds, key=lambda kind: np.mean([_rank(comparison, env, kind) for env in comparison.envs]))
        pairs = [(best, other) for other in kinds if other != best]
    found = []
    for one, other in pairs:
        envs = [env for env in comparison.envs if (env, one) in finals and (env, other) in finals]
        if envs:
            found.append((one, other, probability_of_improvement([finals[e, one] for e in envs], [finals[e, other] for e in envs])))
    return found


def _rank(comparison: Comparison, env: str, kind: tuple[object, ...]) -> float:
    """Return the share of the settings of an environment whose IQM is not above that of `kind`; 0 if it has no runs there."""
    means = {setting.values: float(iqm(setting.final())) for setting in comparison.of_env(env)}
    return sum(value <= means[kind] for value in means.values()) / len(means) if kind in means else 0.0


def improvement(comparison: Comparison, styles: Styles) -> Figure | None:
    """Draw probabilities of improvement; return None for a single setting."""
    found = improvements(comparison)
    if not found:
        return None
    names = [(comparison.label(one), comparison.label(other)) for one, other, _ in found]
    between = "  >  " if max(len(one) + len(other) for one, other in names) < LABEL else "\n>  "
    labels = [f"{folded(one, LABEL)}{between}{folded(other, LABEL)}" for one, other in names]
    figure = new_figure(WIDTH, 0.55 + row_height(labels) * len(found))
    panel = figure.subplots()
    _draw_points(panel, [each for *_, each in found], [styles[one] for one, *_ in found], (-0.02, 1.02))
    panel.axvline(0.5, color="0.45", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
    panel.set_yticks(range(len(found)), labels)
    panel.set(ylim=(len(found) - 0.5, -0.5), xlabel="probability of improvement")
    return figure
