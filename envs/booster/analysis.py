"""Report a run for `warprun eval`: one super-cycle under the learned policy and under regulators, on the same disturbances."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from warprun.envs.booster import control
from warprun.envs.booster.control import Course, Episodes
from warprun.envs.booster.published import CYCLE, RATE, SETTING

if TYPE_CHECKING:
    from warprun.runs.recording import Player, Recording

NOTICE = "booster: a surrogate fitted to published numbers; it is no digital twin of the Fermilab Booster"
INSTALL = 'booster: figures need matplotlib; run: pip install "warprun[plot]"'
LEARNED, PI, PID, QUADRATIC, NONE = "learned", "PI, published gains", "PID, best gains", "best quadratic", "no control"
NAMES = {LEARNED: "learned", PI: "pi", PID: "pid", QUADRATIC: "quadratic", NONE: "no_control"}
"""Names of the regulators in the numbers of an evaluation."""
SEARCHED = (100, 100)
"""Number and length in steps of the episodes that gains are searched on."""
SEGMENT = 150
"""Samples of a segment of the spectrum."""


def report(play: Player, folder: Path) -> dict[str, float]:
    """Write `regulation.csv`, `regulators.csv` and figures of an episode of one super-cycle; return its numbers by
    name.
    """
    recording = play.under(time_limit=CYCLE)()
    p, tables = recording.params, recording.tables
    limit, searched = control.limit_of(play.environment.groups[0].action, tables.changes), control.simulate(p, *SEARCHED)
    regulators: dict[str, control.Regulator] = {
        PI: control.Pid(),
        PID: control.best_pid(searched, p, tables, limit),
        QUADRATIC: control.best_quadratic(searched, p, tables, limit),
    }
    episodes = episodes_of(recording)
    courses = {name: control.run(regulator, episodes, p, tables, limit) for name, regulator in regulators.items()}
    courses = {LEARNED: learned(recording)} | courses | {NONE: control.run(control.none, episodes, p, tables)}
    write_course(folder / "regulation.csv", courses)
    write_regulators(folder / "regulators.csv", courses)
    try:
        from warprun.envs.booster import figures
    except ImportError:
        print(INSTALL)
    else:
        figures.draw(folder, courses)
    print(NOTICE)
    shown = {f"cycle/mean_iminer_{NAMES[name]}": float(np.nanmean(np.abs(course.iminer))) for name, course in courses.items()}
    return shown | {"cycle/steps_learned": float(courses[LEARNED].length[0])}


def learned(recording: Recording) -> Course:
    """Return the course of a recorded episode, N = 1."""
    states = recording.states["agent"]
    delta, iminer = (states[name][1:].T.astype(float) for name in ("delta", "iminer"))
    return Course(delta, iminer, recording.rewards["agent"].T.astype(float), np.array([delta.shape[1]]))


def episodes_of(recording: Recording) -> Episodes:
    """Return the start and the disturbances of a recorded episode, N = 1."""
    states = {name: values.astype(float) for name, values in recording.states["agent"].items()}
    start = (states[name][0] for name in ("delta", "delta_1", "iminer", "iminer_1"))
    return Episodes(*start, states["disturbance"][1:].T)


def write_course(path: Path, courses: Mapping[str, Course]) -> None:
    """Write a row for every sample: seconds, and VIMIN and IMINER under each regulator."""
    with open(path, "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["s", *(f"{signal} {name}" for name in courses for signal in ("VIMIN", "IMINER"))])
        for t in range(max(len(course.delta[0]) for course in courses.values())):
            values = [value for course in courses.values() for value in at(course, t)]
            lines.writerow([f"{t / RATE:.4f}", *values])


def at(course: Course, t: int) -> tuple[str, str]:
    """Return VIMIN and IMINER of sample `t` as text; empty after the end of the episode."""
    if t >= course.length[0]:
        return "", ""
    return f"{SETTING + course.delta[0, t]:.5f}", f"{course.iminer[0, t]:.5f}"


def write_regulators(path: Path, courses: Mapping[str, Course]) -> None:
    """Write a row for every regulator: mean and root mean square of IMINER, spread of VIMIN, reward of a step, and steps."""
    with open(path, "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["regulator", "mean_magnitude_iminer", "rms_iminer", "deviation_vimin", "reward_per_step", "steps"])
        for name, course in courses.items():
            length = int(course.length[0])
            delta, iminer = course.delta[0, :length], course.iminer[0, :length]
            numbers = np.abs(iminer).mean(), np.sqrt(np.mean(iminer**2)), delta.std(), course.rewards.sum() / length
            lines.writerow([name, *(f"{number:.5f}" for number in numbers), length])


def spectrum(iminer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return frequencies in Hz and the power density of IMINER [T] per Hz, without its mean.

    The density is the mean of the periodograms of half overlapping segments under a Hann window (Welch, IEEE Trans.
    Audio Electroacoust. 15, 1967). Both arrays are empty for fewer than two samples.
    """
    length = min(SEGMENT, len(iminer))
    if length < 2:
        return np.empty(0), np.empty(0)
    window = np.hanning(length + 2)[1:-1]
    starts = range(0, len(iminer) - length + 1, max(1, length // 2))
    segments = np.stack([iminer[first : first + length] for first in starts]) - iminer.mean()
    power = (np.abs(np.fft.rfft(window * segments)) ** 2).mean(0) / (RATE * (window**2).sum())
    power[1 : (length + 1) // 2] *= 2  # negative frequencies
    return np.fft.rfftfreq(length, 1 / RATE), power
