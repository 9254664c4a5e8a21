"""The data of an episode before it begins: the table of actions, the scaling, the window of VIMIN, and the fixed start."""

import numpy as np

from warprun.environment import float32, int32
from warprun.envs.booster.model import SEEN, SETTLE, Params, Sample, SimpleParams, Tables, follow, note
from warprun.envs.booster.published import CHANGES, CYCLE, SETTING, SIGNALS

PLANTS = {"full": Params, "simple": SimpleParams}
ACTIONS = 30
WINDOW = 150
"""Samples before the start of `mode=compat`, whose smallest and largest VIMIN are the edges of the window."""
START = 400
"""Place in the super-cycle where `mode=compat` starts; no burst is near."""


def quantile(share: np.ndarray) -> np.ndarray:
    """Return quantiles of the published changes of VIMIN, linear between the published ones; `share` is 1/31..30/31."""
    found: np.ndarray = np.interp(share, np.linspace(1, ACTIONS, len(CHANGES)) / (ACTIONS + 1), CHANGES)
    return found


def changes() -> np.ndarray:
    """Return the change of VIMIN of each discrete action, [30]."""
    return quantile(np.arange(1, ACTIONS + 1) / (ACTIONS + 1))


def bounds() -> tuple[float, float]:
    """Return the ends of the continuous action: four times the quartiles."""
    low, high = 4 * quantile(np.array([0.25, 0.75]))
    return float(low), float(high)


def scaling(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return shift and scale of each signal, [SEEN]; VIMIN is counted from SETTING. `kind`: robust or minmax."""
    ranges = SIGNALS.values()
    shift = np.array([r.median if kind == "robust" else r.low for r in ranges])
    width = np.array([r.quartiles if kind == "robust" else r.high - r.low for r in ranges])
    return shift - SETTING * (np.array(list(SIGNALS)) == "VIMIN"), 1 / width


def under_recorded_regulator(plant: str, samples: int, place: int) -> list[Sample]:
    """Return samples under the recorded regulator that end at `place` of the super-cycle; always the same ones."""
    p = PLANTS[plant]()
    now = Sample(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (place - samples - SETTLE) % CYCLE, 0.0)  # type: ignore[arg-type]
    course = []
    for shocks in np.random.default_rng(0).standard_normal((SETTLE + samples, 2)):
        now = follow(now, -p.gain * now.iminer, *shocks, p)
        course.append(now)
    return course[SETTLE:]


def make_tables(history: int, kind: str, plant: str, compat: bool, steps: int) -> Tables:
    """Return the tables. The window is that of the recorded regulator: before the fixed start, else in a whole super-cycle."""
    shift, scale = scaling(kind)
    course = under_recorded_regulator(plant, WINDOW if compat else CYCLE, START)
    values = [sample.delta for sample in course]
    last = course[-1]
    made = Tables(
        changes().astype(float32),
        shift.astype(float32),
        scale.astype(float32),
        float32(min(values)),
        float32(max(values)),
        int32(compat),
        int32(steps),
        np.zeros((history, SEEN), float32),
        *(float32(value) for value in (last.delta, last.delta_1, last.iminer, last.iminer_1, last.ramp, last.line)),
        int32(last.place),
    )
    for row, sample in zip(made.start, course[-history:], strict=True):
        note(row, 0, sample, PLANTS[plant](), made)
    return made
