"""Sort runs into settings to compare, by the values in which they differ. Seeds are averaged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from warprun.errors import UserError, did_you_mean, shown
from warprun.report.runs import Curve, Run
from warprun.report.statistics import Array, Band, intervals, iqm

CHOICES = {"env": "env.name", "agent": "agent.name", "concurrency": "concurrency.name"}
"""Short name of a config group -> the key with the name that was chosen."""
NOT_COMPARED = re.compile(r"seed|name|run_dir|output_root|(origin|log|eval|checkpoint|records)\..*|env\.(name|id|module|solved_at)")
"""Settings that are never compared: those of the records of a run, and those of the environment, which has panels and
rows of its own."""

COLUMNS = ("runs", "median", "mean", "iqm", "best", "threshold", "reached", "steps_to", "time_to", "throughput")
"""Names of the columns of the table that are not those of a metric, see `table.columns`."""


@dataclass(frozen=True)
class Setting:
    """The runs of one environment with the same values of the compared settings."""

    env: str
    values: tuple[object, ...]
    """Values of the compared settings, in their order."""
    runs: tuple[Run, ...]
    returns: str
    """The return that counts: eval or train."""

    def curves(self) -> list[Curve]:
        """Return the curve of the counted return of every run that has one."""
        return [curve for run in self.runs if (curve := run.curve(self.returns)).value.size]

    def final(self) -> Array:
        """Return the last return of every run, [runs]."""
        return np.array([curve.value[-1] for curve in self.curves()])

    def best(self) -> Array:
        """Return the highest return of every run, [runs]."""
        return np.array([curve.value.max() for curve in self.curves()])

    def reached(self, threshold: float) -> tuple[Array, Array]:
        """Return the env_steps and the seconds after which every run reaches `threshold`, [runs]; infinity if it does not.

        Seconds that are not known are NaN.
        """
        found = [run.first_at(self.returns, threshold) for run in self.runs if run.curve(self.returns).value.size]
        steps, wall = np.array(found).reshape(-1, 2).T
        return steps, wall

    def measured(self, name: str) -> Array:
        """Return the last value of a metric of every run that has it, [runs]."""
        return np.array([run.measures[name] for run in self.runs if name in run.measures])

    def throughput(self) -> Array:
        """Return the environment steps per second of the runs that have such records, [runs]."""
        speeds = np.array([run.throughput for run in self.runs])
        return speeds[np.isfinite(speeds)]


@dataclass(frozen=True)
class Comparison:
    """Settings that are compared."""

    by: tuple[str, ...]
    """The compared settings, as users write them."""
    settings: tuple[Setting, ...]
    averaged: tuple[str, ...]
    """Settings that differ between runs and are averaged like seeds."""
    threshold: float | None
    """The return to reach that the user gave."""
    columns: tuple[str, ...] = ()
    """The columns of the table that the user chose, names of COLUMNS or metrics; empty: all of COLUMNS."""

    @property
    def metrics(self) -> list[str]:
        """The metrics among the columns."""
        return [name for name in self.columns if name not in COLUMNS]

    @property
    def envs(self) -> list[str]:
        """The environments, in order."""
        return list(dict.fromkeys(setting.env for setting in self.settings))

    @property
    def kinds(self) -> list[tuple[object, ...]]:
        """The combinations of values, each once, over all environments."""
        return list(dict.fromkeys(setting.values for setting in sorted(self.settings, key=lambda setting: _order(setting.values))))

    def of_env(self, env: str) -> list[Setting]:
        """Return the settings of one environment."""
        return [setting for setting in self.settings if setting.env == env]

    def threshold_of(self, setting: Setting) -> float | None:
        """Return the return to reach: what the user gave, else the `env.solved_at` of the setting's runs."""
        if self.threshold is not None:
            return self.threshold
        found = {run.settings.get("env.solved_at") for run in setting.runs}
        only = found.pop() if len(found) == 1 else None
        return float(only) if isinstance(only, int | float) else None

    def label(self, values: tuple[object, ...]) -> str:
        """Return the name of a combination of values in figures."""
        parts = [text(value) if key in CHOICES else f"{short(key)}={text(value)}" for key, value in zip(self.by, values, strict=True)]
        return ", ".join(parts)


def compare(runs: Sequence[Run], by: Sequence[str] | None, threshold: float | None, returns: str | None) -> Comparison:
    """Sort runs into settings. `by`: the settings to compare, None: those that differ.

    `returns`: eval or train; None: eval if all runs have evaluations, else train. Raises UserError for a setting that
    no run has.
    """
    differing = differing_settings(runs)
    chosen = tuple(key for key in (differing if by is None else by) if key != "env") or ("agent",)
    known = list(dict.fromkeys(key for run in runs for key in run.settings))
    for key in chosen:
        if CHOICES.get(key, key) not in known:
            raise UserError(f"by={key}: no run has the setting {shown(key)}; {did_you_mean(key, [*CHOICES, *known])}")
    if returns is None:
        returns = "eval" if all(run.evaluations.value.size for run in runs) else "train"
    grouped: dict[tuple[str, tuple[object, ...]], list[Run]] = {}
    for run in sorted(runs, key=lambda run: str(run.folder)):
        values = tuple(_plain(run.settings.get(CHOICES.get(key, key))) for key in chosen)
        grouped.setdefault((run.env, values), []).append(run)
    keys = sorted(grouped, key=lambda key: (key[0], _order(key[1])))
    settings = tuple(Setting(env, values, tuple(grouped[env, values]), returns) for env, values in keys)
    usable = tuple(setting for setting in settings if setting.curves())
    return Comparison(chosen, usable, tuple(key for key in differing if key not in chosen), threshold)


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings that differ between runs, without those that only differ because another agent was chosen, or
    the like, and without those that followed from the others in all runs.
    """
    derived = set.intersection(*({each.partition("=")[0] for each in _list(run.settings.get("origin.derived"))} for run in runs))
    differing = [name for name, key in CHOICES.items() if name != "env" and len({str(run.settings.get(key)) for run in runs}) > 1]
    alike: dict[tuple[str, ...], list[Mapping[str, object]]] = {}
    for run in runs:
        alike.setdefault((run.env, *(str(run.settings.get(key)) for key in CHOICES.values())), []).append(run.settings)
    for settings in alike.values():
        for key in dict.fromkeys(key for each in settings for key in each):
            if NOT_COMPARED.fullmatch(key) or key in (*CHOICES.values(), *derived):
                continue
            values = {id(each[key]): each[key] for each in settings if key in each}  # most are shared: the rest is done once for each
            written = set(map(repr, values.values()))
            if len(written) > 1 and len({repr(_plain(value)) for value in values.values()}) > 1:
                differing.append(key)
    return list(dict.fromkeys(differing))


def _list(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def short(key: str) -> str:
    """Return the last part of a dotted key."""
    return key.rpartition(".")[2]


def text(value: object) -> str:
    """Return a value of a setting for readers."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(value: object) -> object:
    """Return a value as a key of a dict: lists and sections as text, whole floats as int."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value if isinstance(value, bool | int | float | str | None) else re.sub(r"['\s]", "", str(value))


def _order(values: tuple[object, ...]) -> list[tuple[int, float, str]]:
    """Return a key that sorts numbers by size, and before texts."""
    return [(0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value)) for value in values]


POINTS = 200
AXES = ("env_steps", "wall_s")
"""Horizontal axes of curves."""


class Banded(NamedTuple):
    """The interquartile mean of the curves of a setting, with its band, on a grid."""

    setting: Setting
    grid: Array
    band: Band


def banded(comparison: Comparison, axis: str, log: bool) -> list[Banded]:
    """Return the band of every setting over `axis`, one of AXES."""
    return [_band(setting, axis, log) for setting in comparison.settings]


def _band(setting: Setting, axis: str, log: bool) -> Banded:
    grid, values = on_grid(setting.curves(), axis, log)
    return Banded(setting, grid, intervals(values, iqm))


def on_grid(curves: Sequence[Curve], axis: str, log: bool = False, points: int = POINTS) -> tuple[Array, Array]:
    """Return a grid [points] and the returns of the curves on it, [curves, points].

    The grid begins where every run has a value and ends where the last run ends. Between two values returns are interpolated linearly.
    A run that has ended, such as one that is solved, keeps its last value.
    """
    places: list[Array] = [getattr(curve, axis) for curve in curves]
    first, last = max(place[0] for place in places), max(place[-1] for place in places)
    if last <= first:
        grid = np.array([first])
    elif log and first > 0:
        grid = np.geomspace(first, last, points)
    else:
        grid = np.linspace(first, last, points)
    return grid, np.array([np.interp(grid, place, curve.value) for place, curve in zip(places, curves, strict=True)])


def csv_rows(found: Sequence[Banded], axis: str) -> list[list[object]]:
    """Return the rows of curves.csv: env, compared values, axis, place, interquartile mean, low, high."""
    return [
        [each.setting.env, *each.setting.values, axis, *map(float, point)]
        for each in found
        for point in zip(each.grid, *each.band, strict=True)
    ]
